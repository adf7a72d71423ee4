"""Attention over a ragged stream: each request's new tokens against its own cache, causal among themselves.

The only place of the forward that knows requests. Requests with equally many new tokens share one call, and so do all
whose blocks are short: their queries are laid side by side, padded to the longest, since one call with some idle rows
is far quicker than one for each length. Requests are taken in the order of their slots, so that the cache is read where
it lies: a slot in between, free or with a prompt that is read in another call, gets idle rows too, which is far quicker
than to copy the keys and values around it. What another request, a longer neighbour or a rolled-back suffix left in the
cache is masked out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.engine.cache import Cache
from companion.protocols import RaggedBatch

STAIRS = 32  # rows of the longest block whose causal mask is a view of one that is made once
PADDED = 16  # rows of the longest block that others are padded to
HOLES = 2  # a stretch of the cache with up to so many slots for each that is read is read whole

Span = tuple[int, int, int, int]  # slot, first row and row behind the last in the stream, tokens in the cache


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
    """What every layer of one forward shares: where keys and values go, who attends together, and the masks."""

    def __init__(self, batch: RaggedBatch, cache: Cache) -> None:
        device = batch.tokens.device
        self.layers = len(cache.keys)
        self.spans = list(zip(batch.slots, batch.starts, batch.starts[1:], batch.lengths, strict=False))
        by_size: dict[int, list[Span]] = defaultdict(list)
        short = max((n for n in (stop - start for _, start, stop, _ in self.spans) if n <= PADDED), default=0)
        for span in sorted(self.spans):
            by_size[max(short, span[2] - span[1])].append(span)
        whole = len(by_size) == 1 and self.spans == sorted(self.spans)
        self.groups: list[Group] = []
        places = []
        for n, members in by_size.items():
            group, own = _group(n, members, cache, device, whole=whole)
            places.append(own + sum(g.new * g.members for g in self.groups))
            self.groups.append(group)
        self.places = None  # [N] where each row of the stream lies in the groups' rows, one after another
        if self.groups[0].rows is not None:
            owned = torch.cat([torch.arange(m[1], m[2]) for members in by_size.values() for m in members])
            self.places = torch.empty_like(owned).index_copy_(0, owned, torch.cat(places)).to(device)
        if len(self.spans) == 1:
            slot, _, stop, length = self.spans[0]
            new = (slice(None), slot, slice(None), slice(length, length + stop))
            self.new = cache.both[new].unbind()  # keys of each layer, then values
            self.row_slots = None
        else:
            sizes = torch.tensor([stop - start for _, start, stop, _ in self.spans], device=device)
            owners = torch.tensor(batch.slots, device=device)
            self.row_slots = owners.repeat_interleave(sizes, output_size=len(batch.tokens))  # [N]; without a sync
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


def _group(n: int, spans: list[Span], cache: Cache, device: torch.device, *, whole: bool) -> tuple[Group, Tensor]:
    """The group, and the places of its spans' rows in it. ``whole``: these are all requests, in order; spans come in
    the order of their slots."""
    slots, lengths = [slot for slot, *_ in spans], [length for *_, length in spans]
    end = min(max(lengths) + n, cache.capacity)  # idle rows may reach beyond the cache
    first, stretch = slots[0], slots[-1] + 1 - slots[0]
    viewed = stretch <= HOLES * len(slots)  # no copy: slots of others in between are members with idle rows alone
    members = stretch if viewed else len(slots)
    owners = [slot - first for slot in slots] if viewed else list(range(len(slots)))
    if members > len(slots):
        known = dict(zip(owners, lengths, strict=True))
        lengths = [known.get(owner, lengths[0]) for owner in range(members)]
    places = torch.cat([torch.arange(o * n, o * n + m[2] - m[1]) for o, m in zip(owners, spans, strict=True)])
    rows = None
    if not whole or len(places) < members * n:
        owned = torch.cat([torch.arange(start, stop) for _, start, stop, _ in spans])
        rows = torch.full((members * n,), spans[0][1]).index_copy_(0, places, owned).to(device)
    window = (slice(None), slice(first, first + stretch) if viewed else slice(None), slice(None), slice(end))
    group = Group(
        rows=rows,
        slots=None if viewed else torch.tensor(slots, device=device),
        new=n,
        members=members,
        mask=_mask(n, lengths, end, cache),
        seen=cache.both[window].unbind(),
    )
    return group, places


def _mask(n: int, lengths: list[int], end: int, cache: Cache) -> Tensor | None:  # [g or 1, 1, n, end] additive
    """Row i of a request with ``length`` tokens in the cache sees these and the i + 1 first new ones."""
    length, device, dtype = lengths[0], cache.keys.device, cache.keys.dtype
    if min(lengths) == max(lengths):
        if n == 1:
            return None
        if n <= STAIRS:
            steps = _stairs(cache.capacity, device, dtype)
            return steps[None, None, :n, cache.capacity - length : cache.capacity - length + end]
    last_visible = torch.tensor(lengths, device=device)[:, None, None] + torch.arange(n, device=device)[:, None]
    hidden = torch.arange(end, device=device) > last_visible  # [g, n, end]
    return torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None]


@lru_cache(maxsize=16)
def _stairs(capacity: int, device: torch.device, dtype: torch.dtype) -> Tensor:  # [STAIRS, capacity + STAIRS]
    """The causal mask of any short block: row i is open up to column ``capacity`` + i, and a view that begins
    ``length`` columns before ``capacity`` is the mask behind ``length`` tokens."""
    hidden = torch.full((STAIRS, capacity + STAIRS), float("-inf"), device=device, dtype=dtype)
    return hidden.triu_(capacity + 1)
