"""One key/value cache for all requests of a drafter: a slot each, found by request, given back at its end."""

from __future__ import annotations

import torch

from companion.engine.cache import Cache
from companion.engine.target import Qwen3Shape


class Slots:
    """Slots of a cache that grows with the number of requests and the length of their texts.

    ``cache.lengths[slot]`` counts the committed rows. What a draft writes behind them is never counted, so the next
    round overwrites it: rolling back costs nothing.
    """

    def __init__(self, shape: Qwen3Shape, limit: int, device: torch.device, dtype: torch.dtype) -> None:
        self.limit = limit  # rows that a slot can ever need
        self.cache = Cache(shape.layers, 1, shape.kv_heads, min(limit, 256), shape.head_dim, device, dtype)
        self._of: dict[int, int] = {}
        self._free = [0]

    def __contains__(self, request: int) -> bool:
        return request in self._of

    def slot(self, request: int) -> int:
        """The request's slot, a new and empty one at first."""
        if request not in self._of:
            if not self._free:
                used = self.cache.slots
                self.cache = self.cache.grown(2 * used, self.cache.capacity)
                self._free = list(range(used, 2 * used))[::-1]
            self._of[request] = self._free.pop()
        return self._of[request]

    def reserve(self, rows: int) -> Cache:
        """The cache, with room for ``rows`` rows in every slot."""
        if rows > self.cache.capacity:
            self.cache = self.cache.grown(self.cache.slots, min(self.limit, max(rows, 2 * self.cache.capacity)))
        return self.cache

    def release(self, request: int) -> None:
        slot = self._of.pop(request, None)
        if slot is not None:
            self.cache.rollback(slot, 0)
            self._free.append(slot)
