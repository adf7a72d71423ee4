"""The same layer for drafting: fused weights over one flat stream, and a cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.drafters.blocks import fuse_layer, rotate
from companion.drafters.eagle3.model import Eagle3
from companion.engine.attention import AttentionPlan


class FusedEagle3:
    """Inference with a copy of the weights of an `Eagle3`: equal to it, to rounding.

    Embedding and head are not copied where device and dtype stay the same.
    """

    def __init__(self, model: Eagle3, *, device: torch.device, dtype: torch.dtype) -> None:
        def own(weight: Tensor) -> Tensor:
            return weight.detach().to(device, dtype, copy=True)

        self.shape, self.device, self.dtype = model.config.shape, device, dtype
        self.embedding = model.embed_tokens.weight.detach().to(device, dtype)
        self.head = model.lm_head.weight.detach().to(device, dtype)
        self.fc, self.norm = own(model.fc.weight).t().contiguous(), own(model.norm.weight)
        self.hidden_norm = own(model.layer.hidden_norm.weight)
        self.layer = fuse_layer(model.layer, self.shape, device, dtype)
        self.cos, self.signed_sin = own(model.rotary.cos), own(model.rotary.signed_sin)  # [P, 1, head_dim]

    def fuse(self, features: Tensor) -> Tensor:  # [n, m, d] -> [n, d]
        return features.to(self.device, self.dtype).flatten(1) @ self.fc

    def logits(self, hidden: Tensor) -> Tensor:  # [R, d] -> [R, V], at least fp32
        logits = F.linear(self._norm(hidden, self.norm), self.head)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def keys_values(
        self,
        tokens: Tensor,  # [N]
        hidden: Tensor,  # [N, d]
        positions: Tensor,  # [N]
    ) -> tuple[Tensor, Tensor]:  # [N, kv_heads, head_dim] twice
        """What these pairs leave in the cache."""
        s = self.shape
        kv = self._joined(tokens, hidden) @ self.layer.qkv[:, s.heads * s.head_dim :]
        k, v = kv.view(-1, 2, s.kv_heads, s.head_dim).unbind(1)
        k = torch.rms_norm(k, (s.head_dim,), None, s.eps) * self.layer.qk_norm[s.heads :]
        return rotate(k, (self.cos[positions], self.signed_sin[positions])), v

    def step(
        self,
        tokens: Tensor,  # [N]
        hidden: Tensor,  # [N, d]
        positions: Tensor,  # [N]
        plan: AttentionPlan,
    ) -> Tensor:
        """The layer's raw output [N, d]; keys and values go into the plan's cache."""
        s, layer = self.shape, self.layer
        qkv = (self._joined(tokens, hidden) @ layer.qkv).view(-1, s.heads + 2 * s.kv_heads, s.head_dim)
        qk = torch.rms_norm(qkv[:, : -s.kv_heads], (s.head_dim,), None, s.eps) * layer.qk_norm
        qk = rotate(qk, (self.cos[positions], self.signed_sin[positions]))
        plan.append(0, qk[:, s.heads :], qkv[:, -s.kv_heads :])
        x = hidden + plan.attend(0, qk[:, : s.heads]) @ layer.out
        gate, up = (self._norm(x, layer.mlp_norm) @ layer.gate_up).chunk(2, -1)
        return x + (F.silu(gate) * up) @ layer.down

    def _joined(self, tokens: Tensor, hidden: Tensor) -> Tensor:  # [N], [N, d] -> [N, 2d]
        embedded = self._norm(F.embedding(tokens, self.embedding), self.layer.input_norm)
        return torch.cat([embedded, self._norm(hidden, self.hidden_norm)], -1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.rms_norm(x, (self.shape.hidden,), weight, self.shape.eps)
