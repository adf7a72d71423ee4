"""What the loss of DSpark says of single slots, before it is averaged: for the eye, and for means by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from companion.engine.load import TextTarget

from .anchors import PackedBlocks, pack_blocks
from .drafter_loss import PositionWeight, SlotModel, SupervisedSlots, position_weights, supervised_slots
from .features import features


@dataclass(frozen=True, slots=True)
class SlotTerms:
    """One supervised slot of a block; the loss is the mean over slots, weighted by w_k, of each of the three terms."""

    anchor: int  # position in the text
    k: int  # slot, from 1
    previous: int  # the true token before, which feeds the sequential head
    label: int  # x*_k
    draft: float  # p_d(x*_k)
    target: float  # p_t(x*_k)
    cross_entropy: float  # Eq. 9: -log p_d(x*_k)
    distance: float  # Eq. 10: |p_d - p_t|_1
    acceptance: float  # c*_k = 1 - |p_d - p_t|_1 / 2 (Eq. 8)
    confidence: float | None  # c_k (Eq. 7); None: the drafter has no confidence head
    forecast: float | None  # Eq. 11: binary cross-entropy of c_k with c*_k
    weight: float  # w_k


@torch.no_grad()
def block_terms(
    model: SlotModel,
    layers: Sequence[int],  # of the target, that the drafter reads
    target: TextTarget,
    tokens: Sequence[int],
    prompt: int,  # so many tokens of the text are not learnt
    anchors: Sequence[int],
    weight: PositionWeight = "code",
) -> list[SlotTerms]:
    """The terms of the blocks that begin at ``anchors``, packed into one forward, slot by slot.

    ValueError for an anchor whose block has nothing to predict: each needs itself and its next token behind the prompt.
    """
    wrong = [a for a in anchors if not prompt <= a < len(tokens) - 1]
    if wrong or not anchors:
        raise ValueError(
            f"anchors must lie between the prompt's end, {prompt}, and the text's last token but one, "
            f"{len(tokens) - 2}, got {wrong or 'none'}"
        )
    taps, last = features(target, tokens, layers)
    blocks = blocks_of(model, tokens, prompt, anchors, target.device)
    dtype = next(model.lm_head.parameters()).dtype
    slots = supervised_slots(model, blocks, taps[None].to(dtype), last[None].to(dtype))
    weights = position_weights(weight, model.config.proposal_length)
    chosen = blocks.supervised
    places = torch.tensor(anchors)[:, None].expand(chosen.shape[1:])[chosen[0].cpu()]
    return _terms(slots, blocks.previous[chosen], places.tolist(), weights)


def blocks_of(
    model: SlotModel, tokens: Sequence[int], prompt: int, anchors: Sequence[int], device: torch.device | str = "cpu"
) -> PackedBlocks:
    """The packed blocks of one text at chosen anchors."""
    ids = torch.tensor([list(tokens)], device=device)
    mask = (torch.arange(len(tokens), device=device) >= prompt).long()[None]
    at = torch.tensor([list(anchors)], device=device)
    return pack_blocks(ids, mask, at, torch.ones_like(at, dtype=torch.bool), model.config)


def _terms(
    slots: SupervisedSlots, previous: torch.Tensor, anchors: list[int], weights: torch.Tensor
) -> list[SlotTerms]:
    p_d, p_t = (logits.float().softmax(-1) for logits in (slots.draft_logits, slots.target_logits))
    rows = torch.arange(len(slots.labels), device=p_d.device)
    distance = (p_d - p_t).abs().sum(-1)
    found = []
    for i in rows.tolist():
        acceptance = 1 - float(distance[i]) / 2
        confidence = forecast = None
        if slots.confidence_logits is not None:
            logit = slots.confidence_logits[i].float()
            confidence = float(logit.sigmoid())
            forecast = float(F.binary_cross_entropy_with_logits(logit, logit.new_tensor(acceptance)))
        label, k = int(slots.labels[i]), int(slots.k[i])
        row = SlotTerms(
            anchor=anchors[i],
            k=k + 1,
            previous=int(previous[i]),
            label=label,
            draft=float(p_d[i, label]),
            target=float(p_t[i, label]),
            cross_entropy=-float(slots.draft_logits[i].float().log_softmax(-1)[label]),
            distance=float(distance[i]),
            acceptance=acceptance,
            confidence=confidence,
            forecast=forecast,
            weight=float(weights[k]),
        )
        found.append(row)
    return found
