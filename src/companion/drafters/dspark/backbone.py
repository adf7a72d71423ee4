"""The DFlash backbone as a module that trains.

The backbone reads a block of an anchor and masks, and what the target knows of everything before the anchor:

    H_ctx = RMSNorm(W_c [H^(l1); ...; H^(lm)])                                                   (paper Eq. 2)
    K_i = [W_K H_ctx; W_K H_d],   V_i = [W_V H_ctx; W_V H_d]     in every layer i                (Eq. 3)

The injected rows skip the layer's input norm, which the block's rows get; k_norm and RoPE apply to both, positions are
absolute. Inside the block every position sees every other. `companion.drafters.dspark.fused` computes the same with a
cache, for drafting.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion.drafters.blocks import MLP, Attention, Rotary, RotaryTable
from companion.drafters.dspark.config import DSparkConfig
from companion.engine.target import Qwen3Shape


class InjectedLayer(nn.Module):
    def __init__(self, shape: Qwen3Shape, mlp_width: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, shape.hidden)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape.hidden, mlp_width)

    def forward(
        self,
        x: Tensor,  # [B, N, d] the blocks
        context: Tensor,  # [B, T, d]
        rotary: Rotary,  # of the T context rows, then the N block rows
        mask: Tensor | None,  # [B, 1, N, T + N] bool, True: visible; None: all
    ) -> Tensor:  # [B, N, d]
        attention, normed = self.self_attn, self.input_layernorm(x)
        own = (rotary[0][:, context.shape[1] :], rotary[1][:, context.shape[1] :])
        q = attention.queries(normed, own)
        k, v = attention.keys_values(torch.cat([context, normed], 1), rotary)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + attention.o_proj(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DFlashBackbone(nn.Module):
    """Blocks of embeddings and target features to h_k. Its parameters are all that z-lab's checkpoints hold."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        shape = config.shape
        self.fc = nn.Linear(len(config.target_layer_ids) * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList([InjectedLayer(shape, config.mlp_width) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.rotary = rotary_table(config)

    def context(self, features: Tensor) -> Tensor:  # [..., m, d] outputs of the target's layers -> [..., d]
        """H_ctx of Eq. 2."""
        context: Tensor = self.hidden_norm(self.fc(features.flatten(-2)))
        return context

    def backbone(
        self,
        block: Tensor,  # [B, N, d] embeddings
        positions: Tensor,  # [B, N] absolute
        features: Tensor,  # [B, T, m, d] of positions 0 to T - 1
        mask: Tensor | None = None,  # [B, 1, N, T + N] bool, True: visible; None: all
    ) -> Tensor:
        """h_k [B, N, d], after the final norm. N may hold many blocks when ``mask`` keeps them apart."""
        context = self.context(features)
        before = torch.arange(features.shape[1], device=positions.device).expand(len(positions), -1)
        rotary = self.rotary(torch.cat([before, positions], 1))
        x = block
        for layer in self.layers:
            x = layer(x, context, rotary, mask)
        hidden: Tensor = self.norm(x)
        return hidden


def rotary_table(config: DSparkConfig) -> RotaryTable:
    """Long enough for a block that begins at the last position of the context."""
    return RotaryTable(replace(config.shape, max_context=config.shape.max_context + config.block_size))
