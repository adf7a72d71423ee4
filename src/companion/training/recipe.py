"""The recipe of a drafter: everything that decides its weights, so that a stored one says what was trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from companion.drafters.dspark.config import HeadType
from companion.drafters.dspark.config import spread_layers as spread_layers

from .drafter_loss import Alphas, PositionWeight
from .loop import Precision, Schedule
from .regenerate import Regeneration

Kind = Literal["dspark", "dflash", "eagle3", "medusa"]
ConfidenceLabel = Literal["analytic", "sampled"]
Prefixes = Literal["text", "drafted"]


@dataclass(frozen=True)
class DrafterConfig:
    """The recipe of a drafter. DFlash is DSpark without heads, trained on cross-entropy alone as its authors' code is.

    ``seed`` decides initial weights, the order of texts and their anchors; the traces have a seed of their own, so that
    drafters compared with each other learn from the same text. ValueError where the fields contradict each other.
    """

    kind: Kind = "dspark"
    seed: int = 0
    traces: Regeneration = field(default_factory=lambda: Regeneration(seed=2, samples=2400, think_share=0.0))
    target_layers: tuple[int, ...] = (1, 2, 3, 4, 5)  # spread as the authors spread them: 1 to L - 3; Medusa: the last
    layers: int = 2  # Eagle3 and Medusa have one
    mlp: int = 448
    block_size: int = 7  # Eagle3: steps of training-time test; Medusa: heads
    head: HeadType = "vanilla"
    rank: int = 32  # 0: no Markov head
    confidence: bool = True
    confidence_label: ConfidenceLabel = "analytic"  # c*, or accepted/rejected drawn with probability c*
    confidence_prefix: Prefixes = "text"  # true tokens before each slot, or the drafter's own
    anchor_predicts: bool = True
    anchors: int = 24  # per text
    position_weight: PositionWeight = "code"
    alphas: Alphas = field(default_factory=Alphas)
    texts_per_batch: int = 6
    batches_per_step: int = 2  # shared by the processes: with more processes than batches some have nothing to do
    precision: Precision = "fp32"  # bf16: autocast; parameters stay in fp32
    schedule: Schedule = field(default_factory=lambda: Schedule(steps=2400, warmup=20, constant_until=0.3))

    def __post_init__(self) -> None:
        if min(self.layers, self.block_size, self.anchors, self.texts_per_batch, self.batches_per_step) < 1:
            raise ValueError("a drafter needs at least 1 layer, 1 token a block, 1 anchor a text, 1 text and 1 batch")
        choices: dict[str, Any] = {
            "kind": Kind,
            "head": HeadType,
            "confidence_label": ConfidenceLabel,
            "confidence_prefix": Prefixes,
            "position_weight": PositionWeight,
            "precision": Precision,
        }
        for name, of in choices.items():
            if getattr(self, name) not in get_args(of):
                raise ValueError(f"{name} must be one of {', '.join(get_args(of))}, got {getattr(self, name)!r}")
        if self.kind == "dflash" and (self.rank or self.confidence):
            raise ValueError("DFlash has neither a Markov head nor a confidence head: give rank=0 and confidence=False")
        if (self.confidence_label, self.confidence_prefix) != ("analytic", "text") and not self.has_confidence:
            raise ValueError("without a confidence head there is nothing for its label and its prefixes to say")
        if self.kind in ("eagle3", "medusa") and self.layers != 1:
            raise ValueError(f"{self.kind} has one layer, got {self.layers}")
        if self.kind in ("eagle3", "medusa") and not self.anchor_predicts:
            raise ValueError(f"{self.kind} always predicts at the anchor: leave anchor_predicts True")

    @property
    def has_confidence(self) -> bool:
        return self.confidence and self.kind in ("dspark", "medusa")


def dflash_config(**changes: object) -> DrafterConfig:
    """The recipe of DFlash beside DSpark's default: the same data, steps and backbone."""
    fixed = {"kind": "dflash", "rank": 0, "confidence": False, "alphas": Alphas(ce=1.0, l1=0.0, confidence=0.0)}
    return DrafterConfig(**{**fixed, **changes})  # type: ignore[arg-type]
