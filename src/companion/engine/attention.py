"""Attention over a ragged stream: each request's new tokens against its own cache, causal among themselves.

The only place of the forward that knows requests. Requests with equally many new tokens share one call, and so do all
whose blocks are short: their queries are laid side by side, padded to the longest, since one call with some idle rows
is far quicker than one for each length. Requests are taken in the order of their slots, so that the cache is read where
it lies: a slot in between, free or with a prompt that is read in another call, gets idle rows too, which is far quicker
than to copy the keys and values around it. What another request, a longer neighbour or a rolled-back suffix left in the
cache is masked out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from companion.engine.cache import Cache
from companion.protocols import RaggedBatch

STAIRS = 32  # rows of the longest block whose causal mask is a view of one that is made once
PADDED = 16  # rows of the longest block that others are padded to
HOLES = 2  # a stretch of the cache with up to so many slots for each that is read is read whole

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the requests are: their slots, first rows in the stream, rows there, and tokens in the cache, [R] each."""

    slots: I64
    starts: I64
    sizes: I64
    lengths: I64

    @classmethod
    def of(cls, batch: RaggedBatch) -> Spans:
        starts = np.array(batch.starts)
        return cls(np.array(batch.slots), starts[:-1], np.diff(starts), np.array(batch.lengths))

    def __len__(self) -> int:
        return len(self.slots)

    def at(self, members: I64) -> Spans:
        """These requests, in this order."""
        return Spans(self.slots[members], self.starts[members], self.sizes[members], self.lengths[members])

    def rows(self, first: I64) -> I64:  # [R] -> [sum of sizes]
        """``first``, ``first`` + 1, .. of each request, as many as it has rows."""
        before = np.cumsum(self.sizes) - self.sizes
        return np.repeat(first - before, self.sizes) + np.arange(self.sizes.sum())


class Plan(Protocol):
    """What the layers ask: take my new keys and values, and let my queries attend."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None: ...
    def attend(self, layer: int, q: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Group:
    """Requests with n new tokens each, or at most n, and the part of the cache that they see."""

    rows: Tensor | None  # [g * n] of the stream, any row where a place is idle; None: all of it, in order
    slots: Tensor | None  # [g] cache slots to gather; None: `keys` and `values` are views already
    new: int  # n
    members: int  # g
    mask: Tensor | None  # [g or 1, 1, n, end] additive; None: everything is visible
    seen: tuple[Tensor, ...]  # keys of each layer, then values: [g or slots (to gather from), kv_heads, end, d]


class AttentionPlan:
    """What every layer of one forward shares: where keys and values go, who attends together, and the masks.

    ``places`` [N] says where each row of the stream lies in the groups' rows, one after another (None: they are the
    stream), ``row_slots`` [N] where its keys and values go (None: to the slot of the only request).
    """

    def __init__(self, batch: RaggedBatch, cache: Cache) -> None:
        self.layers = len(cache.keys)
        self.groups: list[Group] = []
        self.places: Tensor | None = None
        self.row_slots: Tensor | None = None
        if len(batch.slots) == 1:
            self._one(batch.slots[0], batch.lengths[0], batch.starts[1], cache)
        else:
            self._many(Spans.of(batch), batch, cache)

    def _one(self, slot: int, length: int, n: int, cache: Cache) -> None:
        """A request alone: its part of the cache is a view, to write and to read."""
        end, own = length + n, slice(slot, slot + 1)
        self.new = cache.both[:, slot, :, length:end].unbind()  # keys of each layer, then values
        seen = cache.both[:, own, :, :end].unbind()
        self.groups.append(Group(None, None, n, 1, _equal_mask(n, length, end, cache), seen))

    def _many(self, spans: Spans, batch: RaggedBatch, cache: Cache) -> None:
        device = batch.tokens.device
        order = np.argsort(spans.slots)
        short = spans.sizes[spans.sizes <= PADDED].max(initial=0)
        padded = np.maximum(spans.sizes, short)
        new = np.unique(padded).tolist()
        whole = len(new) == 1 and bool((order[1:] > order[:-1]).all())
        places, before = np.empty(int(spans.sizes.sum()), dtype=np.int64), 0
        for n in new:
            own = spans.at(order[padded[order] == n])
            group, cells = _group(n, own, cache, device, whole=whole)
            places[own.rows(own.starts)] = before + cells
            before += group.new * group.members
            self.groups.append(group)
        if self.groups[0].rows is not None:
            self.places = torch.from_numpy(places).to(device)
        self.row_slots = torch.from_numpy(np.repeat(spans.slots, spans.sizes)).to(device)
        self.positions = batch.positions
        self.new = cache.both.unbind()

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:  # [N, kv_heads, d] twice
        """Write the stream's keys and values behind what each request has in the cache."""
        for new, cached in ((keys, self.new[layer]), (values, self.new[layer + self.layers])):
            if self.row_slots is None:
                cached.copy_(new.transpose(0, 1))  # [kv_heads, n, d]
            else:
                cached[self.row_slots, :, self.positions] = new

    def attend(self, layer: int, q: Tensor) -> Tensor:  # [N, heads, d]
        """Queries to [N, heads * d], each over its own request's cache, grouped-query heads shared as Qwen3 does."""
        outputs = []
        for g in self.groups:
            rows = q if g.rows is None else q.index_select(0, g.rows)
            split = rows.view(-1, g.new, *q.shape[1:]).transpose(1, 2)  # [g, heads, n, d]
            k, v = g.seen[layer], g.seen[layer + self.layers]
            if g.slots is not None:
                k, v = k[g.slots], v[g.slots]
            out = F.scaled_dot_product_attention(split, k, v, attn_mask=g.mask, enable_gqa=True)
            outputs.append(out.transpose(1, 2).reshape(len(rows), -1))
        if self.places is None:
            return outputs[0]
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).index_select(0, self.places)


def _group(n: int, spans: Spans, cache: Cache, device: torch.device, *, whole: bool) -> tuple[Group, I64]:
    """The group, and the places of its spans' rows in it. ``whole``: these are all requests, in order; spans come in
    the order of their slots."""
    first, stretch = int(spans.slots[0]), int(spans.slots[-1] - spans.slots[0]) + 1
    viewed = stretch <= HOLES * len(spans)  # no copy: slots of others in between are members with idle rows alone
    members = stretch if viewed else len(spans)
    owners = spans.slots - first if viewed else np.arange(len(spans))
    lengths = np.full(members, spans.lengths[0])
    lengths[owners] = spans.lengths
    end = min(int(lengths.max()) + n, cache.capacity)  # idle rows may reach beyond the cache
    places = spans.rows(owners * n)
    rows = None
    if not whole or len(places) < members * n:
        owned = np.full(members * n, spans.starts[0])
        owned[places] = spans.rows(spans.starts)
        rows = torch.from_numpy(owned).to(device)
    window = (slice(None), slice(first, first + stretch) if viewed else slice(None), slice(None), slice(end))
    group = Group(
        rows=rows,
        slots=None if viewed else torch.from_numpy(spans.slots).to(device),
        new=n,
        members=members,
        mask=_mask(n, lengths, end, cache),
        seen=cache.both[window].unbind(),
    )
    return group, places


def _mask(n: int, lengths: I64, end: int, cache: Cache) -> Tensor | None:  # [g or 1, 1, n, end] additive
    """Row i of a request with ``length`` tokens in the cache sees these and the i + 1 first new ones."""
    if (lengths == lengths[0]).all():
        return _equal_mask(n, int(lengths[0]), end, cache)
    return _hidden(torch.from_numpy(lengths), n, end, cache)


def _equal_mask(n: int, length: int, end: int, cache: Cache) -> Tensor | None:  # [1, 1, n, end] additive
    """Where all have as many tokens in the cache."""
    if n == 1:
        return None
    if n > STAIRS:
        return _hidden(torch.tensor([length]), n, end, cache)
    steps = _stairs(cache.capacity, cache.keys.device, cache.keys.dtype)
    return steps[None, None, :n, cache.capacity - length : cache.capacity - length + end]


def _hidden(lengths: Tensor, n: int, end: int, cache: Cache) -> Tensor:  # [g] -> [g, 1, n, end] additive
    device, dtype = cache.keys.device, cache.keys.dtype
    last_visible = lengths.to(device)[:, None, None] + torch.arange(n, device=device)[:, None]
    hidden = torch.arange(end, device=device) > last_visible  # [g, n, end]
    return torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None]


@lru_cache(maxsize=16)
def _stairs(capacity: int, device: torch.device, dtype: torch.dtype) -> Tensor:  # [STAIRS, capacity + STAIRS]
    """The causal mask of any short block: row i is open up to column ``capacity`` + i, and a view that begins
    ``length`` columns before ``capacity`` is the mask behind ``length`` tokens."""
    hidden = torch.full((STAIRS, capacity + STAIRS), float("-inf"), device=device, dtype=dtype)
    return hidden.triu_(capacity + 1)
