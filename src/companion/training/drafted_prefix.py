"""Labels of the confidence head along the drafter's own prefixes instead of the text's.

Teacher forcing shows the confidence head the true token before each slot; at work it sees a drafted one. Here the
drafter draws a whole block from every anchor at temperature 1, the target itself says what it thinks after each drafted
token (one block-diagonal forward a text), and slot k learns

    c*_k = sum_v min(p_d, p_t)(v | text up to the anchor, drafted x_1 .. x_{k-1})

Slots behind a drafted stop token are never judged and are left out. The target runs in the training loop, which stored
features were made to avoid: one pass over the texts and one over the drafts for each batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from companion.engine.blocks import block_logits
from companion.engine.target import Qwen3Target, ragged

from .anchors import PackedBlocks
from .drafter_loss import SlotModel, confidence_sum


def drafted_confidence(
    model: SlotModel,
    target: Qwen3Target,
    stops: frozenset[int],
    texts: Sequence[Sequence[int]],  # B texts, whole
    anchors: Tensor,  # [B, A] positions; a block with no supervised slot is not real
    blocks: PackedBlocks,
    hidden: Tensor,  # [B, A, gamma, d] h_k, with gradients
    position_weight: Tensor,  # [gamma]
    generator: torch.Generator,
    outcomes: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of the confidence head's cross-entropy over these slots, and the sum of their weights."""
    assert model.confidence_head is not None
    real = blocks.supervised.any(-1)  # [B, A]
    states = hidden[real]  # [R, gamma, d]
    with torch.no_grad():
        first = blocks.tokens.view(*real.shape, -1)[real][:, 0]  # [R] the anchors' tokens
        drafted, p_draft = sample_blocks(model, states, first, generator)  # [R, gamma], [R, gamma, V]
        fed = torch.cat([first[:, None], drafted[:, :-1]], 1)  # [R, gamma] what slot k comes after
        rows = _target_rows(target, texts, anchors, real, fed)  # [R, gamma, V]
        acceptance = torch.minimum(p_draft, rows.to(p_draft)).sum(-1).clamp(0.0, 1.0)
        ended = torch.isin(fed[:, 1:], torch.tensor(sorted(stops), device=fed.device)).cumsum(1) > 0
        judged = blocks.supervised[real]  # text and mask bound the labels, as in teacher forcing
        judged[:, 1:] &= ~ended
    embedded = None if model.markov_head is None else model.markov_head.embed(fed)
    logits = model.confidence_head(states, embedded)[judged]
    weight = position_weight.to(states.device).expand_as(judged)[judged]
    return confidence_sum(logits, acceptance[judged], weight, outcomes), weight.sum()


def sample_blocks(
    model: SlotModel,
    hidden: Tensor,  # [R, gamma, d]
    first: Tensor,  # [R] anchor tokens
    generator: torch.Generator,  # on the CPU
) -> tuple[Tensor, Tensor]:
    """Blocks [R, gamma] drawn from the drafter at temperature 1, and the laws [R, gamma, V] they were drawn from."""
    uniforms = torch.rand(hidden.shape[:2], generator=generator).to(hidden.device)
    tokens, laws = [], []
    previous, state = first, None
    for k, h in enumerate(hidden.unbind(1)):
        logits = model.lm_head(h)
        if model.markov_head is not None:
            latent, state = model.markov_head.latent(model.markov_head.embed(previous), h, state)
            logits = logits + model.markov_head.bias(latent)
        laws.append(logits.float().softmax(-1))
        sums = laws[-1].cumsum(-1)
        drawn = torch.searchsorted(sums, (uniforms[:, k, None] * sums[:, -1:]).contiguous())
        previous = drawn[:, 0].clamp_max(sums.shape[-1] - 1)
        tokens.append(previous)
    return torch.stack(tokens, 1), torch.stack(laws, 1)


def _target_rows(
    target: Qwen3Target,
    texts: Sequence[Sequence[int]],
    anchors: Tensor,  # [B, A]
    real: Tensor,  # [B, A] bool
    fed: Tensor,  # [R, gamma]
) -> Tensor:  # [R, gamma, V]
    """The target's laws after each token fed, its own text before the anchor."""
    cache = target.new_cache(len(texts), max(map(len, texts)))
    read = ragged([(i, 0, text) for i, text in enumerate(texts)], target.device)
    read.logit_rows = torch.zeros(1, dtype=torch.long, device=target.device)  # the head's work is not needed
    target.forward(read, cache)
    counts = real.sum(1).tolist()
    rows = []
    for i, block in enumerate(fed.to(target.device).split(counts)):
        if counts[i]:
            rows.append(block_logits(target, cache, i, anchors[i][real[i]].tolist(), block).softmax(-1))
    return torch.cat(rows).clone()  # no inference tensor
