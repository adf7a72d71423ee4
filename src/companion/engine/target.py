"""The target's forward: Qwen3 over one flat stream of tokens.

Linear layers, norms and the head see a flat stream [N, d] of the tokens of all requests; only attention knows which
request a token belongs to and reads that request's own cache. There is no padding, and rolling back is a length.
Equal to transformers' `Qwen3ForCausalLM` on the same weights, to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.engine import captured
from companion.engine.attention import Plan
from companion.engine.cache import Cache
from companion.engine.memory import check_cache
from companion.engine.norm import RMSNorm
from companion.engine.paged import attention_plan
from companion.engine.shape import Qwen3Shape
from companion.engine.transfer import upload
from companion.protocols import KVCache, RaggedBatch, TargetOutput


class Layer(NamedTuple):
    """Matrices lie as [in, out]: on a CPU a one-token product with them takes half the time of the [out, in] layout."""

    input_norm: Tensor  # [d]
    qkv: Tensor  # [d, (heads + 2 kv_heads) head_dim]
    qk_norm: Tensor  # [heads + kv_heads, head_dim]
    out: Tensor  # [heads head_dim, d]
    mlp_norm: Tensor  # [d]
    gate_up: Tensor  # [d, 2 m]
    down: Tensor  # [m, d]


class Qwen3Target:
    """Qwen3 weights behind the `Target` protocol.

    ``weights`` are transformers' tensors under their own names (``model.layers.0.self_attn.q_proj.weight`` and so on);
    they are fused (q, k, v; gate, up) and cast to ``dtype`` on ``device``. ``usable_vocab`` is the number of ids the
    tokenizer knows: rows of a padded head beyond it get -inf and can never be sampled. Set ``graphs`` to run short
    streams as CUDA graphs (`companion.engine.captured`); it is off by itself, for no GPU has run it yet.
    """

    graphs: bool = False

    def __init__(
        self,
        shape: Qwen3Shape,
        weights: Mapping[str, Tensor],
        *,
        name: str = "target",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        usable_vocab: int | None = None,
    ) -> None:
        self.shape, self.name = shape, name
        self.device, self.dtype = torch.device(device), dtype
        self.vocab_size, self.max_context = shape.vocab_size, shape.max_context
        self.usable_vocab = shape.vocab_size if usable_vocab is None else min(usable_vocab, shape.vocab_size)

        def take(key: str, *expected: int) -> Tensor:
            if key not in weights:
                raise ValueError(f"the weights of {name} lack {key!r}: this is not a complete Qwen3 checkpoint")
            if tuple(weights[key].shape) != expected:
                raise ValueError(
                    f"{key} of {name} has shape {tuple(weights[key].shape)}, its configuration says {expected}: "
                    "weights and config.json do not belong together"
                )
            return weights[key].to(self.device, dtype)

        surplus = f"model.layers.{shape.layers}."
        if any(key.startswith(surplus) for key in weights):
            raise ValueError(f"{name} has weights beyond the {shape.layers} layers of its configuration ({surplus}*)")
        self.embedding = take("model.embed_tokens.weight", shape.vocab_size, shape.hidden)
        # as transformers: a head in the file is used, a missing one is the embedding where the configuration ties them
        separate = "lm_head.weight" in weights or not shape.tied
        self.head = take("lm_head.weight", shape.vocab_size, shape.hidden) if separate else self.embedding
        if shape.tied and separate and torch.equal(self.head, self.embedding):
            self.head = self.embedding  # Qwen3-0.6B's file holds both: one is enough in memory
        self.final_norm = RMSNorm(take("model.norm.weight", shape.hidden), shape.eps)
        width = len(weights.get("model.layers.0.mlp.gate_proj.weight", ()))
        self.layers = [self._fuse(take, f"model.layers.{i}.", width) for i in range(shape.layers)]
        self.norms = [
            tuple(RMSNorm(w, shape.eps) for w in (layer.input_norm, layer.qk_norm, layer.mlp_norm))
            for layer in self.layers
        ]
        self.cos, self.signed_sin = self._rotary_table()

    def _fuse(self, take: Any, prefix: str, width: int) -> Layer:
        s, attention, mlp = self.shape, f"{prefix}self_attn.", f"{prefix}mlp."
        q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
        q_norm = take(f"{attention}q_norm.weight", s.head_dim).expand(s.heads, -1)
        k_norm = take(f"{attention}k_norm.weight", s.head_dim).expand(s.kv_heads, -1)
        q = take(f"{attention}q_proj.weight", q_width, s.hidden)
        k, v = (take(f"{attention}{p}_proj.weight", kv_width, s.hidden) for p in "kv")
        return Layer(
            input_norm=take(f"{prefix}input_layernorm.weight", s.hidden),
            qkv=torch.cat([q, k, v]).t().contiguous(),
            qk_norm=torch.cat([q_norm, k_norm]),
            out=take(f"{attention}o_proj.weight", s.hidden, q_width).t().contiguous(),
            mlp_norm=take(f"{prefix}post_attention_layernorm.weight", s.hidden),
            gate_up=torch.cat([take(f"{mlp}{p}_proj.weight", width, s.hidden) for p in ("gate", "up")])
            .t()
            .contiguous(),
            down=take(f"{mlp}down_proj.weight", s.hidden, width).t().contiguous(),
        )

    def _rotary_table(self) -> tuple[Tensor, Tensor]:
        """cos and sin of every position, [max_context, 1, head_dim]; the sign of rotate-half is folded into sin."""
        half = self.shape.head_dim // 2
        inverse = 1.0 / self.shape.rope_theta ** (torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(self.max_context, dtype=torch.float32)[:, None] * inverse  # [P, half]
        cos, sin = angle.cos(), angle.sin()
        table = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        return tuple(t[:, None].to(self.device, self.dtype) for t in table)  # type: ignore[return-value]

    @property
    def parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        tensors = [self.embedding, self.final_norm.weight, *(w for layer in self.layers for w in layer)]
        extra = self.shape.layers * (self.shape.heads + self.shape.kv_heads - 2) * self.shape.head_dim  # expanded norms
        untied = self.head.numel() if self.head is not self.embedding else 0
        return sum(t.numel() for t in tensors) - extra + untied

    def new_cache(self, slots: int, capacity: int) -> Cache:
        """ValueError where a GPU lacks the memory for it."""
        s = self.shape
        check_cache(s, slots, capacity, self.device, self.dtype)
        return Cache(s.layers, slots, s.kv_heads, capacity, s.head_dim, self.device, self.dtype)

    @torch.inference_mode()
    def forward(self, batch: RaggedBatch, cache: KVCache, taps: Sequence[int] = ()) -> TargetOutput:
        """Run the stream, append its keys and values to ``cache``, return logits [M, V] (fp32) and tapped features.

        Tap i is the output of decoder layer i; -1 is the embedding. The cache's lengths grow by what was fed. With
        ``graphs`` the logits are good until the next forward.
        """
        assert isinstance(cache, Cache)
        unknown = [tap for tap in taps if not -1 <= tap < self.shape.layers]
        if unknown:
            raise ValueError(
                f"{self.name} has layers 0 to {self.shape.layers - 1} (-1: the embedding); layer {unknown[0]} is none"
            )
        output = captured.forward(self.stream, batch, cache, taps) if self.graphs else None
        if output is None:
            plan = attention_plan(batch, cache)
            output = self.stream(batch.tokens, batch.positions, plan, taps, batch.logit_rows)
        for slot, start, stop, length in zip(batch.slots, batch.starts, batch.starts[1:], batch.lengths, strict=False):
            cache.lengths[slot] = length + stop - start
        return output

    def stream(
        self,
        tokens: Tensor,  # [N]
        positions: Tensor,  # [N]
        plan: Plan,
        taps: Sequence[int] = (),
        logit_rows: Tensor | None = None,  # [M]; None: all
    ) -> TargetOutput:
        """The layers over one flat stream; ``plan`` says who attends to whom, and keeps keys and values."""
        cos, sin = self.cos[positions], self.signed_sin[positions]  # [N, 1, head_dim]
        x = F.embedding(tokens, self.embedding)  # [N, d]
        tapped = {-1: x} if -1 in taps else {}
        for index, layer in enumerate(self.layers):
            input_norm, qk_norm, mlp_norm = self.norms[index]
            x = x + self._attention(index, layer, input_norm(x), qk_norm, cos, sin, plan)
            x = x + self._mlp(layer, mlp_norm(x))
            if index in taps:
                tapped[index] = x
        rows = x if logit_rows is None else x[logit_rows]
        logits = F.linear(self.final_norm(rows), self.head).float()
        if self.usable_vocab < self.vocab_size:
            logits[:, self.usable_vocab :] = float("-inf")
        features = torch.stack([tapped[i] for i in taps], dim=1) if taps else None
        return TargetOutput(logits, features)

    def _attention(
        self,
        index: int,
        layer: Layer,
        x: Tensor,  # [N, d], normed
        qk_norm: RMSNorm,
        cos: Tensor,  # [N, 1, head_dim]
        sin: Tensor,
        plan: Plan,
    ) -> Tensor:
        s = self.shape
        qkv = (x @ layer.qkv).view(-1, s.heads + 2 * s.kv_heads, s.head_dim)
        qk, v = qkv[:, : s.heads + s.kv_heads], qkv[:, s.heads + s.kv_heads :]
        qk = qk_norm(qk)
        qk = torch.addcmul(qk * cos, torch.roll(qk, s.head_dim // 2, -1), sin)
        plan.append(index, qk[:, s.heads :], v)
        return plan.attend(index, qk[:, : s.heads]) @ layer.out

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:  # [N, d], normed
        gate, up = (x @ layer.gate_up).chunk(2, -1)
        return (F.silu(gate) * up) @ layer.down

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits [T, V] of every position of one sequence, from an empty cache."""
        batch = single(list(tokens), slot=0, cached=0, device=self.device)
        return self.forward(batch, self.new_cache(1, len(batch.tokens))).logits


def single(tokens: list[int], *, slot: int, cached: int, device: torch.device) -> RaggedBatch:
    """A stream of one request whose first ``cached`` tokens are already in the cache."""
    if not tokens:
        raise ValueError("the token list is empty; a forward needs at least one token")
    n = len(tokens)
    return RaggedBatch(
        tokens=torch.tensor(tokens, device=device),
        positions=torch.arange(cached, cached + n, device=device),
        slots=[slot],
        starts=[0, n],
        lengths=[cached],
    )


def ragged(rows: Sequence[tuple[int, int, Sequence[int]]], device: torch.device) -> RaggedBatch:
    """One flat stream of ``(slot, cached, tokens)`` rows, each continuing its own request."""
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    for _, cached, row in rows:
        tokens.extend(row)
        positions.extend(range(cached, cached + len(row)))
        starts.append(len(tokens))
    numbers = upload([tokens, positions], device)
    return RaggedBatch(
        tokens=numbers[0],
        positions=numbers[1],
        slots=[slot for slot, _, _ in rows],
        starts=starts,
        lengths=[cached for _, cached, _ in rows],
    )
