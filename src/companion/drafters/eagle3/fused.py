"""The same layer for drafting: fused weights over one flat stream, and a cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.drafters.blocks import fuse_layer, rotate
from companion.drafters.eagle3.model import Eagle3
from companion.engine.attention import Plan
from companion.engine.norm import RMSNorm


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
        self.fc = own(model.fc.weight).t().contiguous()
        self.layer = layer = fuse_layer(model.layer, self.shape, device, dtype)
        weights = (own(model.norm.weight), own(model.layer.hidden_norm.weight), layer.input_norm, layer.mlp_norm)
        self.norm, self.hidden_norm, self.input_norm, self.mlp_norm = (RMSNorm(w, self.shape.eps) for w in weights)
        self.qk_norm = RMSNorm(layer.qk_norm, self.shape.eps)
        self.k_norm = RMSNorm(layer.qk_norm[self.shape.heads :], self.shape.eps)
        self.cos, self.signed_sin = own(model.rotary.cos), own(model.rotary.signed_sin)  # [P, 1, head_dim]

    def fuse(self, features: Tensor) -> Tensor:  # [n, m, d] -> [n, d]
        return features.to(self.device, self.dtype).flatten(1) @ self.fc

    def logits(self, hidden: Tensor) -> Tensor:  # [R, d] -> [R, V], at least fp32
        logits = F.linear(self.norm(hidden), self.head)
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
        return rotate(self.k_norm(k), (self.cos[positions], self.signed_sin[positions])), v

    def step(
        self,
        tokens: Tensor,  # [N]
        hidden: Tensor,  # [N, d]
        positions: Tensor,  # [N]
        plan: Plan,
    ) -> Tensor:
        """The layer's raw output [N, d]; keys and values go into the plan's cache."""
        s, layer = self.shape, self.layer
        qkv = (self._joined(tokens, hidden) @ layer.qkv).view(-1, s.heads + 2 * s.kv_heads, s.head_dim)
        qk = rotate(self.qk_norm(qkv[:, : -s.kv_heads]), (self.cos[positions], self.signed_sin[positions]))
        plan.append(0, qk[:, s.heads :], qkv[:, -s.kv_heads :])
        x = torch.addmm(hidden, plan.attend(0, qk[:, : s.heads]), layer.out)
        gate, up = (self.mlp_norm(x) @ layer.gate_up).chunk(2, -1)
        return torch.addmm(x, F.silu(gate) * up, layer.down)

    def _joined(self, tokens: Tensor, hidden: Tensor) -> Tensor:  # [N], [N, d] -> [N, 2d]
        embedded = self.input_norm(F.embedding(tokens, self.embedding))
        return torch.cat([embedded, self.hidden_norm(hidden)], -1)
