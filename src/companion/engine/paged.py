"""Attention on the kernel: it reads each request's keys and values where they lie, whatever the others' lengths are.

What `companion.engine.attention` arranges for PyTorch's attention, groups of equal length, padding and masks, the
kernel does not need: a request's slot is its page, and two numbers say what a row may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from companion.engine.attention import AttentionPlan, Plan
from companion.engine.cache import Cache
from companion.engine.transfer import upload
from companion.kernels.launch import FLOATS, runs_here
from companion.kernels.ragged_attention import Stream, ragged_attention
from companion.protocols import RaggedBatch


def attention_plan(batch: RaggedBatch, cache: Cache) -> Plan:
    """How the layers of one forward append and attend: by the kernel where it runs and holds the cache's dtype."""
    return PagedPlan(batch, cache) if kernel_holds(cache) else AttentionPlan(batch, cache)


def kernel_holds(cache: Cache) -> bool:
    return cache.both.dtype in FLOATS and runs_here(cache.both)


class Paged:
    """Rows attend over the slots of their requests, one page each."""

    def __init__(self, slots: Sequence[int], stream: Stream, cache: Cache) -> None:
        self.layers, self.cached = len(cache.keys), cache.both.unbind()  # keys of each layer, then values
        self.table = upload(slots, cache.both.device).view(-1, 1)
        self.stream = stream

    @classmethod
    def blocks(cls, slots: Sequence[int], ends: Sequence[int], size: int, cache: Cache) -> Paged:
        """A block of ``size`` rows of each request, which sees all up to its end, in both directions."""
        device = cache.both.device
        requests = torch.arange(len(slots), device=device).repeat_interleave(size)
        return cls(slots, Stream.blocks(requests, upload(ends, device), size), cache)

    def attend(self, layer: int, q: Tensor) -> Tensor:  # [N, heads, d] -> [N, heads * d]
        keys, values = self.cached[layer], self.cached[layer + self.layers]
        return ragged_attention(q, keys, values, self.table, self.stream).flatten(1)


class PagedPlan(Paged):
    """A `Plan` for verification and prefill: causal, each row at its position."""

    def __init__(self, batch: RaggedBatch, cache: Cache) -> None:
        sizes = [stop - start for start, stop in pairwise(batch.starts)]
        owners = [r for r, size in enumerate(sizes) for _ in range(size)]
        requests, most = upload(owners, batch.tokens.device), max(sizes, default=1)
        super().__init__(batch.slots, Stream.causal(requests, batch.positions, len(batch.slots), most), cache)
        self.positions, self.row_slots = batch.positions, self.table[requests, 0]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:  # [N, kv_heads, d] twice
        """Write the stream's keys and values behind what each request has in the cache."""
        for new, cached in ((keys, self.cached[layer]), (values, self.cached[layer + self.layers])):
            cached[self.row_slots, :, self.positions] = new
