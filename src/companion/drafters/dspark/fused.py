"""The backbone for drafting: fused weights over one flat stream of blocks, and a cache instead of the whole context.

Per round and request: the rows that the target's features give are appended to every layer's cache by one product
(`inject`), then the block runs behind them (`hidden`). The block's own keys and values are written after the committed
rows and not counted, so that the next round overwrites them: rollback as a length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.drafters.blocks import fuse_layer, rotate
from companion.drafters.dspark.backbone import DFlashBackbone, InjectedLayer
from companion.drafters.dspark.config import DSparkConfig
from companion.engine.attention import Plan
from companion.engine.cache import Cache
from companion.engine.norm import RMSNorm
from companion.engine.paged import Paged, kernel_holds
from companion.engine.target import Layer
from companion.engine.transfer import upload


class Rows:
    """Rows of several requests in one stream, and where each goes in the cache."""

    def __init__(self, spans: list[tuple[int, int, int]], device: torch.device) -> None:
        """``spans``: slot, first position and number of rows of each request."""
        self.spans = spans
        self.positions: slice | Tensor  # [N]
        self.owners: Tensor | None = None  # [N] slot of each row; None: one request
        if len(spans) == 1:
            _, start, count = spans[0]
            self.positions = slice(start, start + count)
        else:
            positions = [start + i for _, start, count in spans for i in range(count)]
            owners = [slot for slot, _, count in spans for _ in range(count)]
            self.positions, self.owners = upload([positions, owners], device)

    def places(self, cached: Tensor) -> Tensor:  # [..., slots, kv_heads, capacity, head_dim]
        """Where the rows go: for one request that piece of its slot, [..., kv_heads, N, head_dim], else all slots."""
        return cached if self.owners is not None else cached[:, self.spans[0][0], :, self.positions]

    def write(self, place: Tensor, rows: Tensor) -> None:  # [N, layers, kv_heads, head_dim], or of one layer
        if self.owners is None:
            place.copy_(rows.movedim(0, -2))
        else:
            place[..., self.owners, :, self.positions, :] = rows


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
        self.masks = [config.mask_token_id] * (config.block_size - 1)
        self.fc = across(model.fc.weight)
        norm = partial(RMSNorm, eps=config.shape.eps)
        self.norm = norm(own(model.norm.weight))
        layers = [layer for layer in model.layers if isinstance(layer, InjectedLayer)]
        attention = [layer.self_attn for layer in layers]
        self.layers = [_Layer.of(fuse_layer(layer, config.shape, device, dtype), norm) for layer in layers]
        inject_kv = across(*(a.k_proj.weight for a in attention), *(a.v_proj.weight for a in attention))
        self.hidden_norm, self.inject_kv = norm(own(model.hidden_norm.weight)).into(inject_kv)
        self.inject_norm = norm(own(*(a.k_norm.weight.expand(config.shape.kv_heads, -1) for a in attention)))
        self.cos = own(model.rotary.cos)  # [P, 1, head_dim]
        self.signed_sin = own(model.rotary.signed_sin)

    def inject(self, features: Tensor, rows: Rows, cache: Cache) -> None:  # [N, m, d]
        """Append the context of Eq. 2 to the keys and values of every layer (Eq. 3)."""
        s = self.config.shape
        context = self.hidden_norm(features.flatten(1) @ self.fc)  # [N, d]
        kv = (context @ self.inject_kv).view(-1, 2, s.layers * s.kv_heads, s.head_dim)
        k = kv[:, 0]
        rotate(self.inject_norm(k), (self.cos[rows.positions], self.signed_sin[rows.positions]), out=k)
        rows.write(rows.places(cache.both), kv.view(-1, 2 * s.layers, s.kv_heads, s.head_dim))
        for slot, start, count in rows.spans:
            cache.lengths[slot] = start + count

    def hidden(self, anchors: Sequence[int], slots: list[int], cache: Cache) -> Tensor:
        """h_k [R, gamma, d] of the block of each request: its anchor, then masks, behind what its slot holds."""
        rows = Rows([(slot, cache.lengths[slot], self.config.block_size) for slot in slots], self.device)
        return self.block(upload(self.blocks(anchors), self.device), rows.positions, _Seen(rows, cache))

    def blocks(self, anchors: Sequence[int]) -> list[int]:
        """What is fed: each anchor, and masks behind it."""
        return [token for anchor in anchors for token in (anchor, *self.masks)]

    def block(self, tokens: Tensor, positions: slice | Tensor, seen: Plan) -> Tensor:  # [N], [N] -> [R, gamma, d]
        """The layers over the blocks of all requests; ``seen`` keeps their keys and values and lets them attend."""
        c, s = self.config, self.config.shape
        rotary = (self.cos[positions], self.signed_sin[positions])  # [N, 1, head_dim]
        x = F.embedding(tokens, self.embedding)  # [N, d]
        for index, layer in enumerate(self.layers):
            qkv = (layer.input_norm(x) @ layer.qkv).view(-1, s.heads + 2 * s.kv_heads, s.head_dim)
            qk = rotate(layer.qk_norm(qkv[:, : -s.kv_heads]), rotary)
            seen.append(index, qk[:, s.heads :], qkv[:, -s.kv_heads :])
            x = torch.addmm(x, seen.attend(index, qk[:, : s.heads]), layer.out)
            gate, up = (layer.mlp_norm(x) @ layer.gate_up).chunk(2, -1)
            x = torch.addmm(x, F.silu(gate) * up, layer.down)
        hidden = self.norm(x).view(-1, c.block_size, x.shape[-1])
        return hidden if c.anchor_predicts else hidden[:, 1:]


class _Layer(NamedTuple):
    """A layer of the engine's fused form; its norms' weights are in the next matrices where no precision is lost."""

    input_norm: Callable[[Tensor], Tensor]
    qkv: Tensor  # [d, (heads + 2 kv_heads) head_dim]
    qk_norm: RMSNorm
    out: Tensor  # [heads head_dim, d]
    mlp_norm: Callable[[Tensor], Tensor]
    gate_up: Tensor  # [d, 2 m]
    down: Tensor  # [m, d]

    @classmethod
    def of(cls, layer: Layer, norm: Callable[[Tensor], RMSNorm]) -> _Layer:
        input_norm, qkv = norm(layer.input_norm).into(layer.qkv)
        mlp_norm, gate_up = norm(layer.mlp_norm).into(layer.gate_up)
        return cls(input_norm, qkv, norm(layer.qk_norm), layer.out, mlp_norm, gate_up, layer.down)


class _Seen:
    """What the blocks of a round attend to: their own slot, up to the end of the block, in both directions."""

    def __init__(self, rows: Rows, cache: Cache) -> None:
        device = cache.keys.device
        slots, ends = [slot for slot, _, _ in rows.spans], [start + count for _, start, count in rows.spans]
        end, first = max(ends), slots[0]
        self.paged = Paged.blocks(slots, ends, rows.spans[0][2], cache) if kernel_holds(cache) else None
        self.requests, self.layers, self.slots, self.mask = len(slots), len(cache.keys), None, None
        neighbours = slots == list(range(first, first + len(slots)))  # a view of the cache, no copy
        if not neighbours:
            self.slots = upload(slots, device)
        if self.paged is None and min(ends) < end:  # a longer neighbour: hide what lies beyond a request's own rows
            beyond = torch.arange(end, device=device) >= upload(ends, device)[:, None]  # [R, end]
            zeros = torch.zeros(beyond.shape, device=device, dtype=cache.keys.dtype)
            self.mask = zeros.masked_fill_(beyond, float("-inf"))[:, None, None]  # [R, 1, 1, end]
        window = (slice(None), slice(first, first + len(slots)) if neighbours else slice(None), slice(None), slice(end))
        self.seen, self.new = cache.both[window].unbind(), rows.places(cache.both).unbind()  # keys, then values
        self.rows = rows

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:  # [N, kv_heads, d] twice
        self.rows.write(self.new[layer], keys)
        self.rows.write(self.new[layer + self.layers], values)

    def attend(self, layer: int, q: Tensor) -> Tensor:  # [N, heads, d] -> [N, heads * d]
        if self.paged is not None:
            return self.paged.attend(layer, q)
        k, v = self.seen[layer], self.seen[layer + self.layers]
        if self.slots is not None:
            k, v = k[self.slots], v[self.slots]
        split = q.view(self.requests, -1, *q.shape[1:]).transpose(1, 2)  # [R, heads, block, d]
        out = F.scaled_dot_product_attention(split, k, v, attn_mask=self.mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(len(q), -1)


def product_form(weight: Tensor) -> Tensor:  # [out, in] -> [in, out]
    """The transpose; stored that way on a CPU, where a product with few rows then takes half the time."""
    return weight.t().contiguous() if weight.device.type == "cpu" else weight.t()
