"""The parts of a Qwen3 decoder layer that every neural drafter is built of, under the names that checkpoints use."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion.engine.target import Layer, Qwen3Shape

Rotary = tuple[Tensor, Tensor]  # cos and sin of each row's position, [..., 1, head_dim]


class RotaryTable(nn.Module):
    """cos and sin for every position up to ``max_context``; no parameters, nothing in a checkpoint."""

    def __init__(self, shape: Qwen3Shape) -> None:
        super().__init__()
        half = shape.head_dim // 2
        inverse = 1.0 / shape.rope_theta ** (torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(shape.max_context, dtype=torch.float32)[:, None] * inverse  # [P, half]
        self.cos: Tensor
        self.signed_sin: Tensor  # the minus of rotate-half is in the first half
        self.register_buffer("cos", torch.cat([angle.cos(), angle.cos()], -1)[:, None], persistent=False)
        self.register_buffer("signed_sin", torch.cat([-angle.sin(), angle.sin()], -1)[:, None], persistent=False)

    def forward(self, positions: Tensor) -> Rotary:  # [...] int64
        return self.cos[positions], self.signed_sin[positions]


def rotate(x: Tensor, rotary: Rotary, out: Tensor | None = None) -> Tensor:  # [..., heads, head_dim]
    cos, signed_sin = rotary
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), signed_sin, out=out)


class Attention(nn.Module):
    """The projections of Qwen3 attention with their head norms; who attends to whom is the caller's affair."""

    def __init__(self, shape: Qwen3Shape, width: int) -> None:  # width: of what is projected to q, k and v
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = nn.RMSNorm(shape.head_dim, shape.eps)
        self.k_norm = nn.RMSNorm(shape.head_dim, shape.eps)

    def queries(self, x: Tensor, rotary: Rotary) -> Tensor:  # [..., width] -> [..., heads, head_dim]
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), rotary)

    def keys_values(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:  # twice [..., kv_heads, head_dim]
        k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.k_proj, self.v_proj))
        return rotate(self.k_norm(k), rotary), v


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [..., d]
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(Protocol):
    """A layer made of these parts, whatever its attention reads."""

    @property
    def input_layernorm(self) -> nn.RMSNorm: ...
    @property
    def self_attn(self) -> Attention: ...
    @property
    def post_attention_layernorm(self) -> nn.RMSNorm: ...
    @property
    def mlp(self) -> MLP: ...


def fuse_layer(layer: DecoderLayer, shape: Qwen3Shape, device: torch.device, dtype: torch.dtype) -> Layer:
    """A copy of the layer's weights in the engine's fused form, for drafting."""

    def own(*weights: Tensor) -> Tensor:
        return torch.cat([w.detach() for w in weights]).to(device, dtype)

    a, mlp = layer.self_attn, layer.mlp
    return Layer(
        input_norm=own(layer.input_layernorm.weight),
        qkv=own(a.q_proj.weight, a.k_proj.weight, a.v_proj.weight).t().contiguous(),
        qk_norm=own(a.q_norm.weight.expand(shape.heads, -1), a.k_norm.weight.expand(shape.kv_heads, -1)),
        out=own(a.o_proj.weight).t().contiguous(),
        mlp_norm=own(layer.post_attention_layernorm.weight),
        gate_up=own(mlp.gate_proj.weight, mlp.up_proj.weight).t().contiguous(),
        down=own(mlp.down_proj.weight).t().contiguous(),
    )
