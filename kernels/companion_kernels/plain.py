"""plain: the steps of the kernels as one writes them first in PyTorch: right, on whole rows, one operation at a time.

What the kernels are measured against on a GPU, and what the book counts the bytes of. They draw with PyTorch's own
random numbers; the references beside the kernels draw with the kernels'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from companion.kernels.batch import Batch, Drafts
from companion.kernels.block import Confidence
from companion.kernels.fp8 import Fp8Rows
from companion.kernels.overlap import Overlap
from companion.kernels.pick import RowDraws
from companion.kernels.probe import Probe, moments


def plain_probe(logits: Tensor, token_set: Sequence[int] = ()) -> Probe:  # [N, V], at temperature 1
    """`companion.kernels.probe`."""
    wide = logits.float()
    return Probe(*moments(wide, token_set), wide.logsumexp(-1), wide.argmax(-1))


def plain_overlap(target: Tensor, draft: Tensor) -> Overlap:  # [N, V] each, at temperature 1
    """`companion.kernels.overlap`."""
    rows = target.float(), draft.float()
    laws = [row.softmax(-1) for row in rows]
    return Overlap(torch.minimum(*laws).sum(-1), *(row.logsumexp(-1) for row in rows))


def plain_verify(logits: Tensor, batch: Batch, drafts: Drafts, depth: int) -> tuple[Tensor, Tensor]:
    """`companion.kernels.verify` for drafts of one length, at temperature 1: drafts kept, and the token behind them."""
    p = logits.float().softmax(-1).view(len(batch.keys), depth + 1, -1)
    q = drafts.laws.float().softmax(-1).view(len(p), depth, -1)
    tokens = batch.drafted.view(len(p), depth + 1)[:, :depth, None]
    ratio = (p[:, :depth].gather(2, tokens) / q.gather(2, tokens))[..., 0]
    kept = (torch.rand_like(ratio) < ratio).long().cumprod(1).sum(1)
    rows = torch.arange(len(p), device=p.device)
    left = p[rows, kept] - torch.where((kept < depth)[:, None], q[rows, kept.clamp_max(depth - 1)], 0.0)
    cumulative = left.clamp_min(0.0).cumsum(-1)
    wanted = torch.rand_like(cumulative[:, :1]) * cumulative[:, -1:]
    return kept, torch.searchsorted(cumulative, wanted, right=True)


def plain_block(
    logits: Tensor,  # [R, K, V]
    w1: Tensor,
    w2: Tensor | Fp8Rows,
    anchors: Tensor,
    temperatures: Tensor,
    draws: RowDraws,
    head: Confidence,
    ids: Tensor | None = None,  # [R, K, C]
) -> tuple[Tensor, Tensor]:
    """`companion.kernels.markov`, and with ``ids`` `companion.kernels.candidates`: tokens and confidences.

    A matrix in fp8 is unpacked first, since PyTorch multiplies none.
    """
    matrix = w2.matrix().to(w1.dtype) if isinstance(w2, Fp8Rows) else w2
    token, tokens, confidences = anchors, [], []
    for k in range(logits.shape[1]):
        embedded = w1[token]
        if ids is None:
            row = logits[:, k] + (embedded @ matrix.t()).float()
        else:
            row = logits[:, k].gather(1, ids[:, k]) + (matrix[ids[:, k]] @ embedded[:, :, None])[..., 0].float()
        cumulative = (row / temperatures[:, None]).softmax(-1).cumsum(-1)
        place = torch.searchsorted(cumulative, torch.rand_like(cumulative[:, :1])).clamp_max(row.shape[1] - 1)
        token = place[:, 0] if ids is None else ids[:, k].gather(1, place)[:, 0]
        tokens.append(token)
        confidences.append((head.bases[:, k] + (embedded @ head.weights).float()).sigmoid())
    return torch.stack(tokens, 1), torch.stack(confidences, 1)


def plain_attention(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """`companion.kernels.ragged_attention` where all requests have as many keys: q [R, heads, n, d], keys and values
    [R, kv_heads, L, d], visible [n]. The scores are written out; a fused attention does not do that."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (t.repeat_interleave(group, 1) for t in (keys, values))
    hidden = torch.arange(keys.shape[2], device=q.device) >= visible[:, None]
    scores = (q @ keys.transpose(2, 3)) / math.sqrt(q.shape[-1])
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ values
