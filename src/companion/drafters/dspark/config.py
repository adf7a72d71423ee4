"""The numbers of a DSpark or DFlash drafter, as DeepSpec and z-lab write them into config.json.

The two count a block differently. DeepSpec feeds block_size tokens, the anchor first, and each predicts the next one:
gamma = block_size. z-lab (and the DFlash paper) feeds the anchor and block_size - 1 masks, and only the masks predict,
each its own token: gamma = block_size - 1. DFlash in DeepSpec's layout is DSpark of rank 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from companion.drafters.checkpoint import layer_ids
from companion.engine.numbers import whole
from companion.engine.shape import Qwen3Shape

DEEPSPEC = "Qwen3DSparkModel"
Z_LAB = "DFlashDraftModel"
ARCHITECTURES = (DEEPSPEC, Z_LAB)

HeadType = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True)
class DSparkConfig:
    """A backbone of ``shape`` that reads target layers ``target_layer_ids`` (-1: the embedding), and its heads.

    ``markov_rank`` 0 is DFlash. ``anchor_predicts`` False feeds one mask more and takes no prediction at the anchor.
    ValueError where the numbers contradict each other.
    """

    shape: Qwen3Shape  # hidden size and vocabulary are the target's
    mlp_width: int
    block_size: int  # tokens fed per block: the anchor and the masks
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    num_target_layers: int | None = None  # None: not stated
    markov_rank: int = 0
    markov_head_type: HeadType = "vanilla"
    confidence_head: bool = False
    confidence_reads_markov: bool = True  # the confidence head also sees W_1[x_{k-1}] (Eq. 7)
    anchor_predicts: bool = True
    own_embeddings: bool = True  # embedding and head are in the checkpoint; z-lab's takes the target's

    def __post_init__(self) -> None:
        if self.proposal_length < 1:
            raise ValueError(
                f"block_size is {self.block_size}, which leaves nothing to predict: it must be at least "
                f"{1 if self.anchor_predicts else 2}"
            )
        if self.block_size > self.shape.max_context:
            raise ValueError(
                f"block_size is {self.block_size}, more than the {self.shape.max_context} positions the drafter knows"
            )
        if not self.target_layer_ids:
            raise ValueError("target_layer_ids is empty: a drafter reads the outputs of at least one target layer")
        if not 0 <= self.mask_token_id < self.shape.vocab_size:
            raise ValueError(
                f"the mask token {self.mask_token_id} is outside the vocabulary of {self.shape.vocab_size} tokens, so "
                "it has no embedding"
            )
        if self.markov_rank < 0:
            raise ValueError(f"markov_rank must be >= 0, got {self.markov_rank}; 0 is DFlash, without a Markov head")
        if self.markov_head_type not in get_args(HeadType):
            raise ValueError(f"markov_head_type must be vanilla, gated or rnn, got {self.markov_head_type!r}")
        if self.confidence_head and self.confidence_reads_markov and not self.markov_rank:
            raise ValueError("the confidence head is to read the Markov embedding, but markov_rank is 0: there is none")
        if not self.own_embeddings and (self.markov_rank or self.confidence_head or self.anchor_predicts):
            raise ValueError(
                "z-lab's layout holds plain DFlash: no Markov head, no confidence head, no prediction at the anchor"
            )

    @classmethod
    def for_target(cls, target: Qwen3Shape, *, layers: int, **numbers: Any) -> DSparkConfig:
        """A drafter of ``layers`` layers for a target of this shape, with its hidden size, heads and vocabulary.

        ``numbers`` are the other fields; the embedding and the head are stored apart even where the target ties them.
        """
        shape = replace(target, layers=layers, tied=False)
        return cls(shape, num_target_layers=target.layers, **numbers)

    @property
    def proposal_length(self) -> int:
        """gamma: tokens drafted by one block."""
        return self.block_size if self.anchor_predicts else self.block_size - 1

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> DSparkConfig:
        """Read config.json of either layout; ValueError names what is missing or not computed here."""
        z_lab = Z_LAB in (config.get("architectures") or ())
        inner = config.get("dflash_config") or {}
        if not isinstance(inner, Mapping):
            raise ValueError(f"dflash_config of the configuration must be an object, found {inner!r}")
        own = {**config, **inner} if z_lab else config
        if own.get("is_causal") or own.get("causal"):
            raise ValueError("the drafter is causal inside its block, and this backbone sees the whole block at once")
        beyond = next((key for key in ("conv_kernel_size", "selector_rank", "projector_type") if own.get(key)), None)
        if beyond is not None:
            raise ValueError(f"the drafter's configuration asks for {beyond!r}, which plain DFlash does not have")
        rank = whole(own, "markov_rank", least=None, default=0)
        return cls(
            shape=Qwen3Shape.from_config(config),
            mlp_width=whole(own, "intermediate_size"),
            block_size=whole(own, "block_size", least=None),
            target_layer_ids=layer_ids(own),
            mask_token_id=whole(own, "mask_token_id", least=None),
            num_target_layers=None if own.get("num_target_layers") is None else whole(own, "num_target_layers"),
            markov_rank=rank,
            markov_head_type=own.get("markov_head_type") or "vanilla",
            confidence_head=bool(own.get("enable_confidence_head", False)),
            confidence_reads_markov=bool(own.get("confidence_head_with_markov", rank > 0)),
            anchor_predicts=own.get("anchor_predicts", not z_lab),
            own_embeddings=not z_lab,
        )

    def to_dict(self) -> dict[str, Any]:
        """What config.json holds, in the layout it came from; `from_dict` reads it back."""
        common = self.shape.to_config() | {
            "intermediate_size": self.mlp_width,
            "layer_types": ["full_attention"] * self.shape.layers,
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
        }
        block = {"mask_token_id": self.mask_token_id, "target_layer_ids": list(self.target_layer_ids)}
        if not self.own_embeddings:
            return common | {"architectures": [Z_LAB], "dflash_config": block}
        heads: dict[str, Any] = {"markov_rank": self.markov_rank, "enable_confidence_head": self.confidence_head}
        if self.markov_rank:
            heads["markov_head_type"] = self.markov_head_type
        if self.confidence_head:
            heads["confidence_head_with_markov"] = self.confidence_reads_markov
        if not self.anchor_predicts:
            heads["anchor_predicts"] = False  # ours: DeepSpec's drafters always predict at the anchor
        return common | block | heads | {"architectures": [DEEPSPEC]}


def spread_layers(layers: int, count: int = 5) -> tuple[int, ...]:
    """``count`` layers of a target of L to read, evenly from 1 to L - 3, as the authors choose them for Qwen3.

    Of a target with too few for that, the last ones that it offers: outputs of the layers up to L - 2, or the embedding
    (-1) where there is one layer only.
    """
    if layers - 3 < count:
        return tuple(range(layers - 1))[-count:] or (-1,)
    return tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))


def published_config(target: Qwen3Shape, mlp_width: int, *, dflash: bool = False) -> DSparkConfig:
    """The shapes of `deepseek-ai/dspark_qwen3_*_block7` around a target, from the configurations in its authors' code:
    5 layers as wide as the target's, blocks of 7, a Markov head of rank 256 and a confidence head (DFlash: neither)."""
    return DSparkConfig.for_target(
        target,
        layers=5,
        mlp_width=mlp_width,
        block_size=7,
        target_layer_ids=spread_layers(target.layers),
        mask_token_id=min(151_669, target.vocab_size - 1),  # the first id behind Qwen3's tokenizer
        markov_rank=0 if dflash else min(256, target.vocab_size),
        confidence_head=not dflash,
        confidence_reads_markov=not dflash,
    )
