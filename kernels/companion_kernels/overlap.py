r"""overlap: how often a token drawn from the drafter's row is accepted (paper Eq. 8).

    c* = sum_v min(p_d(v), p_t(v)) = 1 - TV(p_d, p_t),   p = softmax(x / T)
    L_t = ln sum_v exp(x_t(v) / T),   L_d likewise

The minimum needs both normalisers first, so each row is read twice: `rows` leaves its sums, and the second pass joins
them and adds up the minima, part by part. Two rows of V entries of b bytes move 4 V b bytes; where the rows of one call
fit the GPU's cache together, the second reading does not come from memory.

At temperature 0 both laws are one-hot: c* is 1 where the largest logits are in one place and 0 elsewhere, and L is the
largest logit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from companion.kernels.launch import FLOATS, Kernel, Tile, require, runs_here
from companion.kernels.rows import inverse, joined, joined_best, row_parts, temperatures, tempered

if TYPE_CHECKING:
    import triton.language as tl


class Overlap(NamedTuple):
    overlap: Tensor  # [N]
    log_sum_target: Tensor  # [N]
    log_sum_draft: Tensor  # [N]


def overlap_reference(
    target: Tensor,  # [N, V] logits, -inf allowed
    draft: Tensor,  # [N, V]
    temperature: Tensor | None = None,  # [N], >= 0; None: 1 throughout
) -> Overlap:
    """In PyTorch, in the dtype of ``target``."""
    warm = torch.ones_like(target[:, 0]) if temperature is None else temperature.to(target[:, 0])
    least = torch.finfo(target.dtype).tiny
    laws, log_sums = [], []
    for logits in (target, draft.to(target.dtype)):
        served, peak = tempered(logits, warm), logits.amax(-1)
        laws.append(served.softmax(-1))
        log_sums.append(served.logsumexp(-1) + torch.where(warm == 0, peak, peak / warm.clamp_min(least)))
    return Overlap(torch.minimum(*laws).sum(-1), *log_sums)


def overlap(
    target: Tensor,  # [N, V] fp32, bf16 or fp16 logits; rows may be apart
    draft: Tensor,  # [N, V] of one of these dtypes
    temperature: Tensor | None = None,  # [N] fp32, >= 0; None: 1 throughout
    *,
    tile: Tile | None = None,
) -> Overlap:
    """All three of each pair of rows, in fp32. ValueError on tensors that do not fit.

    NaN or +inf in either row makes the numbers NaN, and so does a row without any finite logit.
    """
    require("target", target, dtypes=FLOATS, shape=(None, None))
    rows, width = target.shape
    if width == 0:
        raise ValueError("logits have no columns; a row holds one logit for each token of the vocabulary")
    require("draft", draft, dtypes=FLOATS, shape=(rows, width), device=target.device)
    temperature = temperatures(temperature, rows, target.device)
    if not runs_here(target):
        return overlap_reference(target.float(), draft.float(), temperature)
    one, other = row_parts(target, temperature, tile), row_parts(draft, temperature, tile)
    shared = torch.empty_like(one.peak)
    log_sums = torch.empty(2, rows, device=target.device)
    _overlap[(rows, one.per_row)](
        target,
        target.stride(0),
        draft,
        draft.stride(0),
        width,
        temperature,
        *one[:2],
        one.best,
        *other[:2],
        other.best,
        shared,
        log_sums[0],
        log_sums[1],
        PARTS=one.padded,
        BLOCK=one.tile.block,
        num_warps=one.tile.warps,
        num_stages=one.tile.stages,
    )
    return Overlap(shared.sum(-1), *log_sums)


@Kernel
def _overlap(  # type: ignore[no-untyped-def]
    target,
    target_stride,
    draft,
    draft_stride,
    width,
    temperature,
    target_peak,
    target_total,
    target_best,
    draft_peak,
    draft_total,
    draft_best,
    shared,
    log_sum_target,
    log_sum_draft,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, part, count = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    warm = tl.load(temperature + row)
    scale = inverse(warm)
    m_t, s_t = joined(target_peak, target_total, row, count, scale, PARTS)
    m_d, s_d = joined(draft_peak, draft_total, row, count, scale, PARTS)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x_t = tl.load(target + row * target_stride + column, column < width, -float("inf")).to(tl.float32)
    x_d = tl.load(draft + row * draft_stride + column, column < width, -float("inf")).to(tl.float32)
    p_t = tl.exp((x_t - m_t) * scale) * (1.0 / s_t)
    p_d = tl.exp((x_d - m_d) * scale) * (1.0 / s_d)
    minima = tl.sum(tl.minimum(p_t, p_d, tl.PropagateNan.ALL), 0)
    agree = joined_best(target_peak, target_best, row, count, PARTS) == joined_best(
        draft_peak, draft_best, row, count, PARTS
    )
    whole = tl.where(agree & (part == 0), 1.0, 0.0) + (s_t + s_d) * 0.0
    tl.store(shared + row * count + part, tl.where(warm == 0.0, whole, minima))
    if part == 0:
        tl.store(log_sum_target + row, tl.where(warm == 0.0, m_t + s_t * 0.0, m_t * scale + tl.log(s_t)))
        tl.store(log_sum_draft + row, tl.where(warm == 0.0, m_d + s_d * 0.0, m_d * scale + tl.log(s_d)))


def _example(dtype: torch.dtype) -> Overlap:
    target, draft = (torch.empty(64, 151_936, dtype=dtype, device="meta") for _ in range(2))
    return overlap(target, draft)


EXAMPLES = {"overlap fp32": lambda: _example(torch.float32), "overlap bf16": lambda: _example(torch.bfloat16)}
