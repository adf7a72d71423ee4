"""The DSpark loss: cross-entropy, L1 to the target's distribution, and the confidence head (paper Eq. 8 to 12).

    L = a_ce L_ce + a_l1 L_l1 + a_conf L_conf,  each term  sum w_k value / (sum w_k + 1e-6)
    ce    -log p_d(x*)          l1    |p_d - p_t|_1, the whole 1-norm       conf  binary cross-entropy of c_k with
                                                                                  c*_k = 1 - |p_d - p_t|_1 / 2

over all supervised slots of the whole batch. What the batch is, accumulated pieces and other processes included, is the
caller's affair: sums add up, and `LossSums.total` divides once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion.drafters.dspark.heads import ConfidenceHead, MarkovHead
from companion.training.anchors import BlockLayout, PackedBlocks

EPS = 1e-6

PositionWeight = Literal["block", "code", "linear", "none"]


@dataclass(frozen=True, slots=True)
class Alphas:
    """Weights of the three terms; DFlash is trained with ``Alphas(ce=1, l1=0, confidence=0)``."""

    ce: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0


def position_weights(kind: PositionWeight, gamma: int) -> Tensor:
    """w_k of the slots of a block, [gamma], k counted from 0.

    "block": exp(-k / gamma), as the paper writes it; "code": exp(-k / 4), as its authors' code computes it whatever
    gamma is; "linear": 1 - k / gamma; "none": 1.
    """
    k = torch.arange(gamma, dtype=torch.float32)
    if kind == "block":
        return torch.exp(-k / gamma)
    if kind == "code":
        return torch.exp(-k / 4.0)
    if kind == "linear":
        return 1.0 - k / gamma
    if kind == "none":
        return torch.ones(gamma)
    raise ValueError(f"the position weight must be block, code, linear or none, got {kind!r}")


class SlotModel(Protocol):
    """A backbone that the heads can be put on, as the loss sees it: DSpark's own, Medusa heads, or another.

    Called with packed blocks it gives h_k of every fed token; ``lm_head``, the target's and frozen, makes U_k of h_k.
    """

    @property
    def config(self) -> BlockLayout: ...
    @property
    def lm_head(self) -> nn.Module: ...
    @property
    def markov_head(self) -> MarkovHead | None: ...
    @property
    def confidence_head(self) -> ConfidenceHead | None: ...
    @property
    def __call__(self) -> Callable[..., Any]:
        """(tokens [B, N], positions [B, N], features [B, T, m, d], visible [B, 1, N, T + N]) -> h_k [B, N, d]."""
        ...


class SupervisedSlots(NamedTuple):
    """The M supervised slots of a batch, in the order of ``PackedBlocks.supervised``."""

    draft_logits: Tensor  # [M, V] U_k + B_k, the head fed with the true tokens
    target_logits: Tensor  # [M, V]
    labels: Tensor  # [M]
    k: Tensor  # [M] slot within the block, from 0
    confidence_logits: Tensor | None  # [M]


def block_states(model: SlotModel, blocks: PackedBlocks, features: Tensor) -> Tensor:  # [B, T, m, d]
    """h_k of the predicted slots of all blocks, [B, A, gamma, d], by one masked forward."""
    batch, anchors, gamma = blocks.supervised.shape
    hidden: Tensor = model(blocks.tokens, blocks.positions, features, blocks.visible)
    return hidden.view(batch, anchors, model.config.block_size, -1)[:, :, model.config.block_size - gamma :]


def supervised_slots(
    model: SlotModel,
    blocks: PackedBlocks,
    features: Tensor,  # [B, T, m, d] outputs of the target's tapped layers
    last_hidden: Tensor,  # [B, T, d] of the target, after its final norm
    hidden: Tensor | None = None,  # [B, A, gamma, d] `block_states`, where they are known
) -> SupervisedSlots:
    """The heads teacher-forced along the text. The V-wide products are done for supervised slots only."""
    chosen = blocks.supervised
    batch, _, gamma = chosen.shape
    hidden = block_states(model, blocks, features) if hidden is None else hidden
    logits = model.lm_head(hidden[chosen])
    embedded = None
    if model.markov_head is not None:
        embedded = model.markov_head.embed(blocks.previous)
        logits = logits + model.markov_head.bias(model.markov_head.latents(embedded, hidden)[chosen])
    confidence = None if model.confidence_head is None else model.confidence_head(hidden, embedded)[chosen]
    text = torch.arange(batch, device=chosen.device)[:, None, None].expand_as(chosen)
    with torch.no_grad():
        target = model.lm_head(last_hidden[text[chosen], blocks.source[chosen]])
    k = torch.arange(gamma, device=chosen.device).expand_as(chosen)[chosen]
    return SupervisedSlots(logits, target, blocks.labels[chosen], k, confidence)


class LossSums(NamedTuple):
    """Weighted sums over slots; add those of several batches before `total`."""

    ce: Tensor
    l1: Tensor
    confidence: Tensor
    weight: Tensor

    def plus(self, other: LossSums) -> LossSums:
        return LossSums(*(a + b for a, b in zip(self, other, strict=True)))

    def total(self, alphas: Alphas, weight: Tensor | None = None) -> Tensor:
        """L of Eq. 12. ``weight``: the sum over all processes, when it is not this one's."""
        terms = alphas.ce * self.ce + alphas.l1 * self.l1 + alphas.confidence * self.confidence
        return terms / ((self.weight if weight is None else weight) + EPS)


def loss_sums(
    slots: SupervisedSlots,
    position_weight: Tensor,  # [gamma]
    outcomes: torch.Generator | None = None,
) -> tuple[LossSums, Tensor]:
    """The sums, and c*_k [M] of Eq. 8 (no gradient): the probability that a sampled draft is accepted.

    With ``outcomes`` the confidence head is told whether one sampled draft was accepted instead of how likely that is:
    1 with probability c*_k, else 0.
    """
    w = position_weight.to(slots.k.device)[slots.k]
    draft_logits = slots.draft_logits.float()
    ce = F.cross_entropy(draft_logits, slots.labels, reduction="none")
    distance = (draft_logits.softmax(-1) - slots.target_logits.float().softmax(-1)).abs().sum(-1)  # [M]
    acceptance = (1.0 - 0.5 * distance.detach()).clamp(0.0, 1.0)
    confidence = torch.zeros((), device=w.device)
    if slots.confidence_logits is not None:
        confidence = confidence_sum(slots.confidence_logits, acceptance, w, outcomes)
    return LossSums((w * ce).sum(), (w * distance).sum(), confidence, w.sum()), acceptance


def confidence_sum(
    logits: Tensor,  # [M] of c_k
    acceptance: Tensor,  # [M] c*_k
    weight: Tensor,  # [M]
    outcomes: torch.Generator | None = None,  # a CPU generator: equal draws on every device
) -> Tensor:
    """Weighted sum of the binary cross-entropy of c_k with c*_k, or with accept-or-reject outcomes drawn from it."""
    label = acceptance
    if outcomes is not None:
        uniform = torch.rand(acceptance.shape, generator=outcomes).to(acceptance.device)
        label = (uniform < acceptance).float()
    return (weight * F.binary_cross_entropy_with_logits(logits.float(), label, reduction="none")).sum()
