"""Eagle3's network: one decoder layer that carries its own output forward, one token at a time.

Position i joins what the target knows there with the token that came next:

    g_i = W_c [H_i^(l1); ...; H_i^(lm)]                          fused outputs of m target layers
    h_i = Layer(norm_e(E[x_{i+1}]), norm_h(g_i)), at RoPE position i
    p(x_{i+2}) = softmax(W_head norm(h_i))

Past the committed text there is no g, and the layer's own raw output h takes its place. Only q, k and v see the token
(through an input of width 2d); the residual stream is the hidden state alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from companion.drafters.blocks import MLP, Attention, RotaryTable
from companion.drafters.eagle3.config import Eagle3Config


class Eagle3Layer(nn.Module):
    """A Qwen3 layer with q, k and v over [normed embedding; normed hidden state]."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        hidden, eps = config.shape.hidden, config.shape.eps
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.self_attn = Attention(config.shape, 2 * hidden)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.mlp = MLP(hidden, config.mlp_width)

    def finish(self, attended: Tensor, hidden: Tensor) -> Tensor:  # [..., heads * head_dim], [..., d]
        """The rest of the layer after attention: raw output [..., d]."""
        hidden = hidden + self.self_attn.o_proj(attended)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Eagle3(nn.Module):
    """Weights under DeepSpec's names; embedding and head are frozen copies of the target's, the norm is its own."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        shape = config.shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.fc = nn.Linear(len(config.target_layer_ids) * shape.hidden, shape.hidden, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        self.rotary = RotaryTable(shape)
        self.embed_tokens.requires_grad_(False)
        self.lm_head.requires_grad_(False)

    @property
    def layer(self) -> Eagle3Layer:
        only = self.layers[0]
        assert isinstance(only, Eagle3Layer)
        return only

    def fuse(self, features: Tensor) -> Tensor:  # [..., m, d] outputs of the target layers -> [..., d]
        fused: Tensor = self.fc(features.flatten(-2))
        return fused

    def join(self, tokens: Tensor, hidden: Tensor) -> Tensor:  # [...] the tokens that came next, [..., d]
        """What q, k and v are projected from: [normed embedding; normed hidden state], [..., 2d]."""
        return torch.cat([self.layer.input_layernorm(self.embed_tokens(tokens)), self.layer.hidden_norm(hidden)], -1)

    def logits(self, hidden: Tensor) -> Tensor:  # [..., d] -> [..., V]
        """Of the token after the one that ``hidden`` has read."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits
