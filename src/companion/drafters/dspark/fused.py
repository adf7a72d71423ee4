"""The backbone for drafting: fused weights over one flat stream of blocks, and a cache instead of the whole context.

Per round and request: the rows that the target's features give are appended to every layer's cache by one product
(`inject`), then the block runs behind them (`hidden`). The block's own keys and values are written after the committed
rows and not counted, so that the next round overwrites them: rollback as a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.drafters.blocks import fuse_layer, rotate
from companion.drafters.dspark.backbone import DFlashBackbone, InjectedLayer
from companion.drafters.dspark.config import DSparkConfig
from companion.engine.cache import Cache


class Rows(NamedTuple):
    """Rows of several requests in one stream, and where each goes in the cache."""

    spans: list[tuple[int, int, int]]  # slot, first position and number of rows of each request
    positions: Tensor  # [N]
    owners: Tensor | None  # [N] slot of each row; None: one request

    @classmethod
    def of(cls, spans: list[tuple[int, int, int]], device: torch.device) -> Rows:
        positions = [torch.arange(start, start + count, device=device) for _, start, count in spans]
        if len(spans) == 1:
            return cls(spans, positions[0], None)
        slots, _, counts = (torch.tensor(column, device=device) for column in zip(*spans, strict=True))
        return cls(spans, torch.cat(positions), slots.repeat_interleave(counts))

    def write(
        self,
        cached: Tensor,  # [..., slots, kv_heads, capacity, head_dim]
        rows: Tensor,  # [N, ..., kv_heads, head_dim]
    ) -> None:
        """Put each row at its position in its request's slot; leading dimensions are layers."""
        if self.owners is None:
            slot, start, count = self.spans[0]
            cached[..., slot, :, start : start + count, :] = rows.movedim(0, -2)
        else:
            cached[..., self.owners, :, self.positions, :] = rows


class FusedBackbone:
    """Inference with the weights of a `DFlashBackbone`: equal to it, to rounding."""

    def __init__(
        self,
        model: DFlashBackbone,
        config: DSparkConfig,
        embedding: Tensor,  # [V, d]
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        def own(*weights: Tensor) -> Tensor:  # a copy: the model may go on training
            return torch.cat([w.detach() for w in weights]).to(device, dtype)

        def across(*weights: Tensor) -> Tensor:  # stored as [in, out], see `companion.engine.target.Layer`
            return own(*weights).t().contiguous()

        self.config, self.device, self.dtype = config, device, dtype
        self.embedding = embedding.detach().to(device, dtype)
        self.fc = across(model.fc.weight)
        self.hidden_norm, self.norm = own(model.hidden_norm.weight), own(model.norm.weight)
        layers = [layer for layer in model.layers if isinstance(layer, InjectedLayer)]
        attention = [layer.self_attn for layer in layers]
        self.layers = [fuse_layer(layer, config.shape, device, dtype) for layer in layers]
        self.inject_kv = across(*(a.k_proj.weight for a in attention), *(a.v_proj.weight for a in attention))
        self.inject_norm = torch.stack([own(a.k_norm.weight) for a in attention])[:, None]  # [L, 1, head_dim]
        self.cos = own(model.rotary.cos)  # [P, 1, head_dim]
        self.signed_sin = own(model.rotary.signed_sin)

    @torch.inference_mode()
    def inject(self, features: Tensor, rows: Rows, cache: Cache) -> None:  # [N, m, d]
        """Append the context of Eq. 2 to the keys and values of every layer (Eq. 3)."""
        s = self.config.shape
        context = torch.rms_norm(features.flatten(1) @ self.fc, (s.hidden,), self.hidden_norm, s.eps)  # [N, d]
        k, v = (context @ self.inject_kv).view(-1, 2, s.layers, s.kv_heads, s.head_dim).unbind(1)
        k = torch.rms_norm(k, (s.head_dim,), None, s.eps) * self.inject_norm
        k = rotate(k, (self.cos[rows.positions, None], self.signed_sin[rows.positions, None]))
        rows.write(cache.keys, k)
        rows.write(cache.values, v)
        for slot, start, count in rows.spans:
            cache.lengths[slot] = start + count

    @torch.inference_mode()
    def hidden(self, anchors: Sequence[int], slots: list[int], cache: Cache) -> Tensor:
        """h_k [R, gamma, d] of the block of each request: its anchor, then masks, behind what its slot holds."""
        c, s = self.config, self.config.shape
        rows = Rows.of([(slot, cache.lengths[slot], c.block_size) for slot in slots], self.device)
        block = torch.full((len(slots), c.block_size), c.mask_token_id, device=self.device)
        block[:, 0] = torch.tensor(anchors, device=self.device)
        rotary = (self.cos[rows.positions], self.signed_sin[rows.positions])
        seen = _Seen(rows, cache)
        x = F.embedding(block.flatten(), self.embedding)  # [N, d]
        for index, layer in enumerate(self.layers):
            qkv = torch.rms_norm(x, (s.hidden,), layer.input_norm, s.eps) @ layer.qkv
            qkv = qkv.view(-1, s.heads + 2 * s.kv_heads, s.head_dim)
            qk = torch.rms_norm(qkv[:, : -s.kv_heads], (s.head_dim,), None, s.eps) * layer.qk_norm
            qk = rotate(qk, rotary)
            rows.write(cache.keys[index], qk[:, s.heads :])
            rows.write(cache.values[index], qkv[:, -s.kv_heads :])
            x = x + seen.attend(index, qk[:, : s.heads]) @ layer.out
            gate, up = (torch.rms_norm(x, (s.hidden,), layer.mlp_norm, s.eps) @ layer.gate_up).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ layer.down
        predicting = x.view(len(slots), c.block_size, -1)[:, c.block_size - c.proposal_length :]
        return torch.rms_norm(predicting, (s.hidden,), self.norm, s.eps)


class _Seen:
    """What the blocks of a round attend to: their own slot, up to the end of the block, in both directions."""

    def __init__(self, rows: Rows, cache: Cache) -> None:
        device = cache.keys.device
        slots, ends = [slot for slot, _, _ in rows.spans], [start + count for _, start, count in rows.spans]
        end, first = max(ends), slots[0]
        self.requests, self.slots, self.mask = len(slots), None, None
        neighbours = slots == list(range(first, first + len(slots)))  # a view of the cache, no copy
        if not neighbours:
            self.slots = torch.tensor(slots, device=device)
        if min(ends) < end:  # a longer neighbour: hide what lies beyond a request's own rows
            beyond = torch.arange(end, device=device) >= torch.tensor(ends, device=device)[:, None]  # [R, end]
            zeros = torch.zeros(beyond.shape, device=device, dtype=cache.keys.dtype)
            self.mask = zeros.masked_fill_(beyond, float("-inf"))[:, None, None]  # [R, 1, 1, end]
        window = (slice(None), slice(first, first + len(slots)) if neighbours else slice(None), slice(None), slice(end))
        self.keys, self.values = cache.keys[window].unbind(), cache.values[window].unbind()

    def attend(self, layer: int, q: Tensor) -> Tensor:  # [N, heads, d] -> [N, heads * d]
        k, v = self.keys[layer], self.values[layer]
        if self.slots is not None:
            k, v = k[self.slots], v[self.slots]
        split = q.view(self.requests, -1, *q.shape[1:]).transpose(1, 2)  # [R, heads, block, d]
        out = F.scaled_dot_product_attention(split, k, v, attn_mask=self.mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(len(q), -1)
