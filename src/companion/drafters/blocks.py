"""The parts of a Qwen3 decoder layer that every neural drafter is built of, under the names that checkpoints use."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion.engine.target import Qwen3Shape

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


def rotate(x: Tensor, rotary: Rotary) -> Tensor:  # [..., heads, head_dim]
    cos, signed_sin = rotary
    return x * cos + torch.roll(x, x.shape[-1] // 2, -1) * signed_sin


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
