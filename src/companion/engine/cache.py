"""The key/value cache: one preallocated block per request, and rollback as a length."""

from __future__ import annotations

from typing import Any

import torch


class Cache:
    """Keys and values of ``slots`` requests, each with room for ``capacity`` tokens.

    The block table of a paged cache is the identity here: slot s of layer l is ``keys[l][s]`` [kv_heads, capacity, d].
    Stale entries behind a slot's length are never read, since attention is given the length.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        # one block, keys of all layers and then values of all: a round cuts its window out of both at once
        self.both = torch.zeros((2 * layers, slots, kv_heads, capacity, head_dim), device=device, dtype=dtype)
        self.keys, self.values = self.both[:layers], self.both[layers:]
        self.lengths = [0] * slots
        self.recorded: dict[Any, Any] = {}  # what was recorded over this memory and ends with it, by its bucket

    @property
    def slots(self) -> int:
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    @property
    def nbytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def rollback(self, slot: int, length: int) -> None:
        """Keep the first ``length`` tokens of ``slot``; the rest is overwritten by what comes next."""
        if not 0 <= length <= self.lengths[slot]:
            raise ValueError(f"cannot roll slot {slot} back to {length} tokens: it holds {self.lengths[slot]}")
        self.lengths[slot] = length

    def grown(self, slots: int, capacity: int) -> Cache:
        """A cache of at least this size with the same content; itself when it is large enough."""
        if slots <= self.slots and capacity <= self.capacity:
            return self
        layers, old_slots, kv_heads, old_capacity, head_dim = self.keys.shape
        slots, capacity = max(slots, old_slots), max(capacity, old_capacity)
        new = Cache(layers, slots, kv_heads, capacity, head_dim, self.keys.device, self.keys.dtype)
        new.both[:, :old_slots, :, :old_capacity] = self.both
        new.lengths[:old_slots] = self.lengths
        return new
