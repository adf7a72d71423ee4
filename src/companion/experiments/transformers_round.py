"""DSpark's greedy round as one writes it with transformers: the yardstick of our own.

The same weights and the same steps, batch 1, in Qwen3's own modules: a `nn.Linear` for each projection, a
`DynamicCache` for the target and one for the drafter, rejected rows cropped away. Nothing is fused and nothing is laid
out for few rows; nothing is done twice either, so that the comparison is with code that a careful reader would write.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3Config
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from companion.drafters.dspark.model import DSparkModel


@dataclass(frozen=True, slots=True)
class TransformersRound:
    tokens: list[int]  # drafted
    confidence: list[float]  # of each of them; empty without a confidence head
    accepted: int
    draft_seconds: float
    verify_seconds: float  # the target's forward, acceptance, and cropping the cache


class TransformersDSpark(nn.Module):
    """The drafter of ``model`` in transformers' modules, with a copy of its weights."""

    def __init__(self, model: DSparkModel) -> None:
        super().__init__()
        c = model.config
        if not c.anchor_predicts:
            raise ValueError("this round is written for DeepSpec's layout, where the anchor predicts too")
        sizes: dict[str, Any] = c.shape.to_config() | {"intermediate_size": c.mlp_width}
        config = Qwen3Config(**sizes)
        d, v = c.shape.hidden, c.shape.vocab_size
        self.block_size, self.mask_token_id, self.head_dim = c.block_size, c.mask_token_id, c.shape.head_dim
        self.embed_tokens, self.lm_head = nn.Embedding(v, d), nn.Linear(d, v, bias=False)
        self.fc = nn.Linear(len(c.target_layer_ids) * d, d, bias=False)
        self.hidden_norm, self.norm = Qwen3RMSNorm(d, c.shape.eps), Qwen3RMSNorm(d, c.shape.eps)
        self.layers = nn.ModuleList([Qwen3DecoderLayer(config, index) for index in range(c.shape.layers)])
        self.rotary = Qwen3RotaryEmbedding(config)
        self.markov_head, self.confidence_head = copy.deepcopy(model.markov_head), copy.deepcopy(model.confidence_head)
        self.load_state_dict(model.state_dict())
        self.device = model.fc.weight.device
        self.to(self.device, model.fc.weight.dtype).eval().requires_grad_(False)

    def parallel(self, anchor: int, features: Tensor, cache: DynamicCache) -> tuple[Tensor, Tensor]:
        """h_k [1, gamma, d] and U_k [1, gamma, V] of a block behind ``features`` [1, n, m d], which the cache lacks."""
        masks = [self.mask_token_id] * (self.block_size - 1)
        x = self.embed_tokens(torch.tensor([[anchor, *masks]], device=self.device))
        context = self.hidden_norm(self.fc(features))
        start, rows = cache.get_seq_length(), features.shape[1] + self.block_size
        cos, sin = self.rotary(x, torch.arange(start, start + rows, device=self.device)[None])
        for index, layer in enumerate(self.layers):
            x = self._layer(index, layer, x, context, cos[:, None], sin[:, None], cache)
        cache.crop(-self.block_size)  # the context stays
        hidden = self.norm(x)
        return hidden, self.lm_head(hidden)

    def _layer(
        self,
        index: int,
        layer: Any,
        x: Tensor,  # [1, block, d]
        context: Tensor,  # [1, n, d]
        cos: Tensor,  # [1, 1, n + block, head_dim]
        sin: Tensor,
        cache: DynamicCache,
    ) -> Tensor:
        attention, normed = layer.self_attn, layer.input_layernorm(x)
        both = torch.cat([context, normed], 1)
        q = attention.q_norm(attention.q_proj(normed).unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        k = attention.k_norm(attention.k_proj(both).unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        v = attention.v_proj(both).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        own_cos, own_sin = cos[:, :, -self.block_size :], sin[:, :, -self.block_size :]
        q = q * own_cos + rotate_half(q) * own_sin
        k = k * cos + rotate_half(k) * sin
        k, v = cache.update(k, v, index)
        attended, _ = sdpa_attention_forward(attention, q, k, v, None, scaling=attention.scaling, is_causal=False)
        x = x + attention.o_proj(attended.flatten(2))
        out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return out

    def draft(
        self, anchor: int, features: Tensor, cache: DynamicCache, depth: int, usable_vocab: int
    ) -> tuple[list[int], list[float]]:
        """The block's first ``depth`` tokens, each the argmax, and their confidences."""
        hidden, logits = self.parallel(anchor, features, cache)
        tokens, confidence = [torch.tensor([anchor], device=self.device)], []
        state = None
        for k in range(depth):
            row = logits[:, k]
            embedded = None
            if self.markov_head is not None:
                embedded = self.markov_head.embed(tokens[-1])
                latent, state = self.markov_head.latent(embedded, hidden[:, k], state)
                row = row + self.markov_head.bias(latent)
            if self.confidence_head is not None:
                confidence.append(torch.sigmoid(self.confidence_head(hidden[:, k], embedded)))
            tokens.append(row[:, :usable_vocab].argmax(-1))
        return torch.cat(tokens[1:]).tolist(), torch.cat(confidence).tolist() if confidence else []


@torch.inference_mode()
def decode(
    target: Any,  # a Qwen3ForCausalLM
    drafter: TransformersDSpark,
    layer_ids: tuple[int, ...],
    prompt: list[int],
    *,
    max_new_tokens: int,
    eos: Collection[int],
    usable_vocab: int,
) -> tuple[list[int], list[TransformersRound]]:
    """Greedy speculative decoding of one prompt: new tokens, and the rounds."""
    cache, own = DynamicCache(config=target.config), DynamicCache()
    new: list[int] = []
    rounds: list[TransformersRound] = []
    block, depth = list(prompt), 0
    drafted: list[int] = []
    confidence: list[float] = []
    started = drafting = time.perf_counter()
    while True:
        output = target(
            torch.tensor([block], device=drafter.device), None, None, cache, output_hidden_states=True, use_cache=True
        )
        best = output.logits[0, -depth - 1 :, :usable_vocab].argmax(-1).tolist()
        accepted = next((k for k, token in enumerate(drafted) if token != best[k]), depth)
        if accepted < depth:
            cache.crop(accepted - depth)
        features = torch.cat([output.hidden_states[i + 1] for i in layer_ids], -1)
        features = features[:, : features.shape[1] - depth + accepted]
        committed = [*drafted[:accepted], best[accepted]]
        if drafted:
            now = time.perf_counter()
            rounds.append(TransformersRound(drafted, confidence, accepted, drafting - started, now - drafting))
        for token in committed:
            new.append(token)
            if token in eos or len(new) == max_new_tokens:
                return new, rounds
        started = time.perf_counter()
        depth = min(drafter.block_size, max_new_tokens - len(new) - 1)
        drafted, confidence = drafter.draft(new[-1], features, own, depth, usable_vocab) if depth else ([], [])
        drafting = time.perf_counter()
        block = [new[-1], *drafted]
