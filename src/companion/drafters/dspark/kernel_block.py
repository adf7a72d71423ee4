"""The sequential loop on the kernel: a whole block is drawn on the device, and the host waits for it once.

For the vanilla head with plain temperatures and the engine's own draws. Gated and recurrent heads, filters, fp64 and
draws of another kind take the loop of `companion.drafters.dspark.sequential`, which also gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from companion.drafters.dspark.heads import ConfidenceHead, MarkovHead
from companion.engine.draws import KeyedDraws
from companion.engine.sampling import check_finite, distribution
from companion.engine.transfer import download, upload
from companion.kernels.block import Confidence
from companion.kernels.launch import FLOATS, runs_here
from companion.kernels.markov import markov as draw_block
from companion.kernels.philox import purpose_word, words
from companion.kernels.pick import RowDraws
from companion.protocols import Context, Draft, Sampling


def holds(logits: Tensor, samplings: Sequence[Sampling], contexts: Sequence[Context], head: MarkovHead) -> bool:
    """Whether the kernel draws these blocks."""
    if not runs_here(logits) or logits.dtype not in FLOATS or type(head) is not MarkovHead:
        return False
    return all(
        s.greedy or (not s.top_k and s.top_p == 1.0 and s.min_p == 0.0 and type(c.draws) is KeyedDraws)
        for s, c in zip(samplings, contexts, strict=True)
    )


def kernel_blocks(
    hidden: Tensor,  # [R, k, d]
    logits: Tensor,  # [R, k, V]
    contexts: Sequence[Context],  # [R]
    depths: Sequence[int],  # [R]
    samplings: Sequence[Sampling],  # [R]
    head: MarkovHead,
    confidence: ConfidenceHead | None,
) -> list[Draft]:
    """What `draft_blocks` gives. ValueError on logits that are no distribution."""
    device = logits.device
    draws = RowDraws(
        upload([_words(context) for context in contexts], device),
        upload(words(*(purpose_word(f"draft/{context.round}") for context in contexts)).tolist(), device),
        upload([len(context.tokens) for context in contexts], device),
    )
    picked = draw_block(
        logits,
        head.markov_w1.weight.detach(),
        head.markov_w2.weight.detach().contiguous(),
        upload([context.tokens[-1] for context in contexts], device),
        upload([sampling.temperature for sampling in samplings], device, torch.float32),
        draws,
        None if confidence is None else _split(confidence, hidden, head.markov_w1.weight.shape[1]),
    )
    tokens, scores, broken = download(picked.tokens, picked.confidence, picked.q.isnan())
    if any(map(any, broken)):
        check_finite(picked.logits.amax(-1).flatten())
    return [
        Draft(
            tokens[i][:depth],
            None if sampling.greedy else distribution(picked.logits[i, :depth], sampling, checked=True),
            None if confidence is None else scores[i][:depth],
        )
        for i, (depth, sampling) in enumerate(zip(depths, samplings, strict=True))
    ]


def _words(context: Context) -> list[int]:
    """A request's key as signed integers; a greedy one with draws of another kind never uses its own."""
    return context.draws.words.view("int64").tolist() if isinstance(context.draws, KeyedDraws) else [0, 0]


def _split(confidence: ConfidenceHead, hidden: Tensor, rank: int) -> Confidence:
    """What h_k adds to each score, and the weights over the embedding of the token before (none of them: zeros)."""
    weight, bias = confidence.proj.weight[0].detach(), confidence.proj.bias.detach()
    d = hidden.shape[-1]
    bases = (hidden @ weight[:d] + bias).float().contiguous()
    return Confidence(bases, weight[d:] if confidence.reads_markov else weight.new_zeros(rank))
