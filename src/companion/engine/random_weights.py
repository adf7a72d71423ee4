"""True shapes without weights: neither time nor memory depends on what a weight is, so both can be had without any.

Nothing that such a model says means anything, and everything it is part of says so: its name ends in RANDOM, its
provenance holds the seed in place of a revision and of hashes, and no measured run can be made of it
(`companion.phase.origin.revision`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from companion.engine.numbers import whole
from companion.engine.shape import Qwen3Shape

RANDOM = "(random weights)"


class RandomWeights(Mapping[str, Tensor]):
    """Tensors of these shapes, each drawn on the device when it is asked for, and not kept.

    Matrices [out, in] are normal with variance 1 / in, so that rows keep their size through the layers; vectors, which
    are norms, are 1, and biases 0. The same seed and name give the same tensor on one kind of device.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.shapes, self.seed, self.device, self.dtype = dict(shapes), seed, device, dtype

    def __getitem__(self, key: str) -> Tensor:
        shape = self.shapes[key]
        if len(shape) == 1:
            fill = 0.0 if key.endswith("bias") else 1.0
            return torch.full(tuple(shape), fill, device=self.device, dtype=self.dtype)
        word = hashlib.blake2b(f"{self.seed}/{key}".encode(), digest_size=7).digest()
        generator = torch.Generator(self.device).manual_seed(int.from_bytes(word, "little"))
        weight = torch.empty(tuple(shape), device=self.device, dtype=self.dtype)
        return weight.normal_(0.0, 1 / math.sqrt(shape[-1]), generator=generator)

    def __contains__(self, key: object) -> bool:  # Mapping's own would draw the tensor
        return key in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def qwen3_weight_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a Qwen3 checkpoint, as transformers writes them."""
    s, width = Qwen3Shape.from_config(config), whole(config, "intermediate_size")
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    layer = {
        "input_layernorm": (s.hidden,),
        "post_attention_layernorm": (s.hidden,),
        "self_attn.q_proj": (q, s.hidden),
        "self_attn.k_proj": (kv, s.hidden),
        "self_attn.v_proj": (kv, s.hidden),
        "self_attn.o_proj": (s.hidden, q),
        "self_attn.q_norm": (s.head_dim,),
        "self_attn.k_norm": (s.head_dim,),
        "mlp.gate_proj": (width, s.hidden),
        "mlp.up_proj": (width, s.hidden),
        "mlp.down_proj": (s.hidden, width),
    }
    shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(s.layers) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (s.vocab_size, s.hidden), "model.norm.weight": (s.hidden,)}
    return shapes if s.tied else shapes | {"lm_head.weight": (s.vocab_size, s.hidden)}


def random_source(name: str, seed: int) -> dict[str, Any]:
    """In place of `ModelFolder.describe`: what there is to say of weights that were drawn."""
    return {"name": name, "revision": None, "weights_sha256": {}, "random_weights": {"seed": seed}}
