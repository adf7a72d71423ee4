"""Attention over a ragged stream: each request's new tokens against its own cache, causal among themselves.

The only place of the forward that knows requests. Requests with equally many new tokens share one call; no query is
padded, and what another request, a longer neighbour or a rolled-back suffix left in the cache is masked out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.protocols import RaggedBatch


@dataclass(frozen=True, slots=True)
class Group:
    """Requests with n new tokens each."""

    rows: Tensor | None  # [g * n] of the stream; None: all of it, in order
    slots: Tensor | slice  # [g] cache slots
    new: int  # n
    end: int  # longest cached + new
    mask: Tensor | None  # [g, 1, n, end] additive; None: everything is visible


class AttentionPlan:
    """What every layer of one forward shares: where keys and values go, who attends together, and the masks."""

    def __init__(self, batch: RaggedBatch, dtype: torch.dtype) -> None:
        device = batch.tokens.device
        self.spans = list(zip(batch.slots, batch.starts, batch.starts[1:], batch.lengths, strict=False))
        by_size: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for slot, start, stop, length in self.spans:
            by_size[stop - start].append((slot, start, length))
        self.groups = [_group(n, members, dtype, device, whole=len(by_size) == 1) for n, members in by_size.items()]
        self.one = len(self.spans) == 1
        if not self.one:
            sizes = torch.tensor([stop - start for _, start, stop, _ in self.spans], device=device)
            self.row_slots = torch.tensor(batch.slots, device=device).repeat_interleave(sizes)  # [N]
            self.positions = batch.positions

    def append(self, new: Tensor, cache: Tensor) -> None:  # [N, kv_heads, d], [slots, kv_heads, capacity, d]
        """Write the stream's keys or values behind what each request has in the cache."""
        if self.one:
            slot, _, stop, length = self.spans[0]
            cache[slot, :, length : length + stop] = new.transpose(0, 1)
        else:
            cache[self.row_slots, :, self.positions] = new

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[N, heads, d] queries to [N, heads * d], grouped-query heads shared as Qwen3 does."""
        outputs = []
        for g in self.groups:
            rows = q if g.rows is None else q[g.rows]
            split = rows.view(-1, g.new, *q.shape[1:]).transpose(1, 2)  # [g, heads, n, d]
            k, v = keys[g.slots, :, : g.end], values[g.slots, :, : g.end]
            out = F.scaled_dot_product_attention(split, k, v, attn_mask=g.mask, enable_gqa=True)
            outputs.append(out.transpose(1, 2).reshape(len(rows), -1))
        if len(outputs) == 1:
            return outputs[0]
        together = torch.empty(len(q), outputs[0].shape[1], device=q.device, dtype=q.dtype)
        for g, out in zip(self.groups, outputs, strict=True):
            together[g.rows] = out
        return together


def _group(
    n: int, members: list[tuple[int, int, int]], dtype: torch.dtype, device: torch.device, *, whole: bool
) -> Group:
    slots = [slot for slot, _, _ in members]
    lengths = torch.tensor([length for _, _, length in members], device=device)
    end = max(length for _, _, length in members) + n
    first = slots[0]
    run = slots == list(range(first, first + len(slots)))  # neighbours in the cache need no copy
    mask = None
    if n > 1 or len(members) > 1:
        last_visible = lengths[:, None, None] + torch.arange(n, device=device)[:, None]  # [g, n, 1]
        hidden = torch.arange(end, device=device) > last_visible  # [g, n, end]
        mask = torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None]
    return Group(
        rows=None if whole else torch.cat([torch.arange(start, start + n) for _, start, _ in members]).to(device),
        slots=slice(first, first + len(slots)) if run else torch.tensor(slots, device=device),
        new=n,
        end=end,
        mask=mask,
    )
