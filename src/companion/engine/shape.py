"""The numbers of a Qwen3 model: what its config.json must say, the five dense sizes, and the bytes that they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from companion.engine.numbers import positive, rope_theta, whole


@dataclass(frozen=True, slots=True)
class Qwen3Shape:
    """The numbers of a Qwen3 configuration that the forward needs."""

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    max_context: int
    tied: bool = False  # the head may be the embedding

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Qwen3Shape:
        """Read a transformers config; refuses what this forward does not compute (ValueError)."""
        kind = config.get("model_type")
        if kind != "qwen3":
            raise ValueError(
                f"the model is of type {kind!r}, and this engine computes 'qwen3' only: models with sliding windows or "
                "recurrent state cannot be rolled back by a length"
            )
        needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
        vocab_size, hidden, layers, heads, max_context = (whole(config, key) for key in needed)
        kv_heads = whole(config, "num_key_value_heads", default=heads)
        head_dim = whole(config, "head_dim", default=hidden // heads)
        if heads % kv_heads:
            raise ValueError(f"{heads} attention heads cannot share {kv_heads} key/value heads evenly")
        if head_dim % 2:
            raise ValueError(f"head_dim is {head_dim}, and the rotary embedding turns pairs: it must be even")
        if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
            raise ValueError("the model uses sliding-window attention, whose cache cannot be rolled back by a length")
        if config.get("attention_bias"):
            raise ValueError("the model has biases in its attention projections; Qwen3 has none")
        if config.get("quantization_config"):
            raise ValueError("the weights are quantized, and this engine reads plain bf16, fp16 or fp32 weights only")
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(f"the model's activation is {config['hidden_act']!r}; Qwen3 has 'silu'")
        return cls(
            vocab_size,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            eps=positive(config, "rms_norm_eps", 1e-6),
            rope_theta=rope_theta(config),
            max_context=max_context,
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    def to_config(self) -> dict[str, Any]:
        """What `from_config` reads back, under transformers' names."""
        return {
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "rms_norm_eps": self.eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_context,
            "tie_word_embeddings": self.tied,
        }


# hidden size, layers, attention heads, width of the MLP, tied: from the config.json of each on the Hugging Face hub
SIZES = {
    "Qwen/Qwen3-0.6B": (1024, 28, 16, 3072, True),
    "Qwen/Qwen3-1.7B": (2048, 28, 16, 6144, True),
    "Qwen/Qwen3-4B": (2560, 36, 32, 9728, True),
    "Qwen/Qwen3-8B": (4096, 36, 32, 12288, False),
    "Qwen/Qwen3-14B": (5120, 40, 40, 17408, False),
}


def qwen3_config(name: str) -> dict[str, Any]:
    """What decides the shapes in config.json of a dense Qwen3 of the hub. ValueError for another name."""
    if name not in SIZES:
        raise ValueError(f"the shapes of {name!r} are not known without its config.json; known are {', '.join(SIZES)}")
    hidden, layers, heads, width, tied = SIZES[name]
    shape = Qwen3Shape(151_936, hidden, layers, heads, 8, 128, 1e-6, 1e6, 40_960, tied)
    return shape.to_config() | {"intermediate_size": width, "eos_token_id": 151_645}


def weight_count(config: Mapping[str, Any]) -> int:
    """Weights of the model that ``config`` describes, a tied head counted once."""
    s, width = Qwen3Shape.from_config(config), whole(config, "intermediate_size")
    attention = s.hidden * s.head_dim * (2 * s.heads + 2 * s.kv_heads) + 2 * s.head_dim
    layer = attention + 3 * s.hidden * width + 2 * s.hidden
    return s.layers * layer + s.hidden + s.vocab_size * s.hidden * (1 if s.tied else 2)


def cache_bytes(shape: Qwen3Shape, tokens: int, itemsize: int) -> int:
    """Bytes of keys and values that so many tokens take."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens * itemsize
