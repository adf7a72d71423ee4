"""Medusa-style heads: a backbone without depth, to show that any backbone takes DSpark's sequential heads.

The sequential part of DSpark needs two things of a backbone, for every slot k of a block: a hidden state h_k and base
logits U_k. Here they come from independent heads on one hidden state of the target, that of the token before the
anchor, which is the newest that the target has read:

    z = norm_in(H^(l)_{a-1}),    h_k = norm(z + silu(W_k z + b_k)),    U_k = W_head h_k

so that slot k predicts the token at a + 1 + k, blind to the anchor and to every other slot. With a Markov head each
slot also sees the token before it.

To put the heads on another backbone:

* drafting: make h_k [R, k, d] and U_k = W_head h_k [R, k, V] in whatever way, and hand them with the heads to
  `companion.drafters.dspark.sequential.draft_blocks`, as `MedusaDrafter.propose` does; it draws the block left to right
  and returns the very q of each token;
* training: give the module what `companion.training.drafter_loss.SlotModel` lists. It is called with packed blocks,
  anchors and masks side by side with their positions, the target's features and who sees whom, and returns h_k of every
  token fed. DSpark's loss, its confidence head and its ablations then apply as they are;
* a recipe of the new kind in `companion.training.drafter_task.new_drafter`, so that `companion train drafters` trains
  it: these heads are the recipes ``medusa`` and ``medusa-markov``, which differ in the rank of the Markov head alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion.drafters.checkpoint import check_target, fill, write
from companion.drafters.dspark.config import HeadType
from companion.drafters.dspark.heads import ConfidenceHead, markov_head
from companion.drafters.dspark.sequential import draft_blocks
from companion.drafters.neural import DrafterOptions, NeuralDrafter
from companion.engine.load import ModelFolder
from companion.engine.numbers import whole
from companion.engine.target import Qwen3Shape, Qwen3Target
from companion.protocols import Context, Draft

ARCHITECTURE = "MedusaHeads"


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """``heads`` slots on the output of layer ``target_layer_id`` of a target of ``shape``; ``markov_rank`` 0: none."""

    shape: Qwen3Shape  # the target's own
    heads: int
    target_layer_id: int
    markov_rank: int = 0
    markov_head_type: HeadType = "vanilla"
    confidence_head: bool = False

    mask_token_id = 0  # fills the slots of a training block, where nobody reads it

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ValueError(f"heads must be at least 1, got {self.heads}")
        if self.markov_rank < 0:
            raise ValueError(f"markov_rank must be >= 0, got {self.markov_rank}; 0 leaves the heads independent")
        if self.markov_head_type not in get_args(HeadType):
            raise ValueError(f"markov_head_type must be vanilla, gated or rnn, got {self.markov_head_type!r}")

    @property
    def block_size(self) -> int:
        return self.heads

    @property
    def proposal_length(self) -> int:
        return self.heads

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MedusaConfig:
        """Read config.json, which is the target's with a few entries more."""
        return cls(
            Qwen3Shape.from_config(config),
            whole(config, "medusa_heads", least=None),
            whole(config, "target_layer_id", least=None),
            whole(config, "markov_rank", least=None, default=0),
            config.get("markov_head_type") or "vanilla",
            bool(config.get("confidence_head", False)),
        )

    def to_dict(self) -> dict[str, Any]:
        return self.shape.to_config() | {
            "architectures": [ARCHITECTURE],
            "medusa_heads": self.heads,
            "target_layer_id": self.target_layer_id,
            "markov_rank": self.markov_rank,
            "markov_head_type": self.markov_head_type,
            "confidence_head": self.confidence_head,
        }


class MedusaModel(nn.Module):
    """The heads, and the target's output head, frozen. All new heads say the same: W_head on the state they read."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        shape, rank = config.shape, config.markov_rank
        self.input_norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.heads = nn.Linear(shape.hidden, config.heads * shape.hidden)
        self.norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        self.lm_head.requires_grad_(False)
        self.markov_head = markov_head(config.markov_head_type, shape.vocab_size, rank, shape.hidden) if rank else None
        self.confidence_head = ConfidenceHead(shape.hidden, rank) if config.confidence_head else None
        nn.init.zeros_(self.heads.weight)
        nn.init.zeros_(self.heads.bias)

    def slots(self, hidden: Tensor) -> Tensor:  # [..., d] of the target, at the token before the anchor
        """h_k, [..., k, d]."""
        z = self.input_norm(hidden)
        h: Tensor = self.norm(z[..., None, :] + F.silu(self.heads(z)).unflatten(-1, (self.config.heads, -1)))
        return h

    def forward(
        self,
        block: Tensor,  # [B, N] token ids, not read: N = blocks * heads
        positions: Tensor,  # [B, N] absolute; the first of each block is its anchor's
        features: Tensor,  # [B, T, 1, d]
        mask: Tensor | None = None,  # not needed: no slot sees another
    ) -> Tensor:
        """h_k [B, N, d] of packed blocks, as the loss of DSpark asks for them."""
        before = (positions[:, :: self.config.heads] - 1).clamp_min(0)  # [B, A]
        rows = torch.arange(len(before), device=before.device)[:, None]
        return self.slots(features[rows, before, 0]).flatten(1, 2)


class MedusaDrafter(NeuralDrafter):
    """One product for the whole block, then the sequential loop; no cache, since only the newest feature is read."""

    def __init__(self, model: MedusaModel, **options: Unpack[DrafterOptions]) -> None:
        config = model.config
        super().__init__("medusa", config.shape, (config.target_layer_id,), config.heads, **options)
        self.config = config
        self._model = copy.deepcopy(model).requires_grad_(False).to(self.device, self.dtype)
        self._newest: dict[int, tuple[int, Tensor]] = {}  # tokens before the anchor, and the state [d] of the last one

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        drafts = [Draft([]) for _ in contexts]
        drafting = [i for i, depth in enumerate(depths) if depth]
        if not drafting:
            return drafts
        self.check_depths(depths)
        model, deepest = self._model, max(depths)
        hidden = model.slots(torch.stack([self._state(contexts[i]) for i in drafting]))[:, :deepest]  # h_k
        logits = model.lm_head(hidden)  # U_k
        logits = self.mask_unusable(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        blocks = draft_blocks(
            hidden,
            logits,
            [contexts[i] for i in drafting],
            [depths[i] for i in drafting],
            markov=model.markov_head,
            confidence=model.confidence_head,
            deterministic=self.deterministic,
        )
        for i, block in zip(drafting, blocks, strict=True):
            drafts[i] = block
        return drafts

    def _state(self, context: Context) -> Tensor:
        position, state = self._newest.get(context.request, (0, None))
        self.check_seen(context, position)
        assert state is not None
        return state.to(self._model.lm_head.weight)

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        for context, rows in zip(contexts, features, strict=True):
            if rows is not None and len(rows):
                self._newest[context.request] = len(context.tokens) - 1, rows[-1, 0].clone()

    def reset(self, request: int) -> None:
        self._newest.pop(request, None)


def load_medusa(folder: ModelFolder, target: Qwen3Target) -> MedusaModel:
    """The heads in ``folder`` for ``target``, in its dtype; ValueError when they do not belong together."""
    try:
        config = MedusaConfig.from_dict(folder.config())
    except ValueError as error:
        raise ValueError(f"cannot use {folder.path} as a drafter: {error}") from error
    check_target(folder.name, config.shape, (config.target_layer_id,), config.shape.layers, target)
    model = MedusaModel(config)
    fill(
        model, folder.weights() | {"lm_head.weight": target.head}, folder.name, device=target.device, dtype=target.dtype
    )
    return model


def save_medusa(model: MedusaModel, folder: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write config.json and model.safetensors, without the target's head; ``dtype`` None keeps the weights' own."""
    write(folder, model.config.to_dict(), model, dtype=dtype, leave_out=("lm_head.weight",))
