"""The numbers of an Eagle3 drafter, as DeepSpec's config.json writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from companion.drafters.checkpoint import layer_ids
from companion.engine.numbers import positive, whole
from companion.engine.target import Qwen3Shape

ARCHITECTURE = "Qwen3Eagle3Model"


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """One decoder layer of ``shape`` behind the outputs of ``target_layer_ids`` (-1: the embedding)."""

    shape: Qwen3Shape  # hidden size and vocabulary are the target's
    mlp_width: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    ttt_length: int = 7  # steps of training-time test, and the depth drafted by default
    step_loss_decay: float = 0.8

    def __post_init__(self) -> None:
        if self.shape.layers != 1:
            raise ValueError(f"an Eagle3 drafter has one layer, its configuration says {self.shape.layers}")
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids is empty: a drafter reads the outputs of at least one target layer")
        if self.ttt_length < 1:
            raise ValueError(f"ttt_length must be at least 1, got {self.ttt_length}")

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Eagle3Config:
        """Read config.json; ValueError names what is missing or not supported."""
        shape = Qwen3Shape.from_config(config)
        if config.get("draft_vocab_size", shape.vocab_size) != shape.vocab_size:
            raise ValueError(
                f"the drafter has a reduced vocabulary of {config['draft_vocab_size']} tokens, and this project reads "
                f"drafters over the target's whole vocabulary ({shape.vocab_size} tokens) only"
            )
        return cls(
            shape=shape,
            mlp_width=whole(config, "intermediate_size"),
            target_layer_ids=layer_ids(config),
            num_target_layers=whole(config, "num_target_layers"),
            ttt_length=whole(config, "ttt_length", least=None, default=7),
            step_loss_decay=positive(config, "step_loss_decay", 0.8),
        )

    def to_dict(self) -> dict[str, Any]:
        """What config.json holds; `from_dict` reads it back."""
        return self.shape.to_config() | {
            "architectures": [ARCHITECTURE],
            "intermediate_size": self.mlp_width,
            "draft_num_hidden_layers": 1,
            "tie_word_embeddings": False,
            "num_target_layers": self.num_target_layers,
            "target_layer_ids": list(self.target_layer_ids),
            "ttt_length": self.ttt_length,
            "step_loss_decay": self.step_loss_decay,
        }
