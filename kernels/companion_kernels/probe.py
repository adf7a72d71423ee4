r"""probe: what one logits row says about the target.

    p     = softmax(x / T)
    H     = -sum_v p(v) ln p(v)            entropy, nats
    max_p = max_v p(v)
    e     = sum_{v in E} p(v)              mass on a token set (the note's EAT when E is the think-end token)
    L     = ln sum_v exp(x(v) / T)         log-sum-exp
    best  = min argmax_v x(v)

One read of the row: `rows` leaves four numbers for each part of it, and a second kernel joins those few and looks up
the members of E. A row of V entries of b bytes moves V b bytes, and 16 more for each of its parts.

At temperature 0 p is one-hot at ``best``: H = 0, max_p = 1, e = 1 where E holds it, and L is the largest logit, the
limit of T L.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from companion.kernels.launch import FLOATS, WHOLE, Kernel, Tile, power_of_two, require, require_ids, runs_here
from companion.kernels.rows import inverse, joined, joined_best, row_parts, temperatures, tempered

if TYPE_CHECKING:
    import triton.language as tl

MOST_TOKENS = 1024  # in a token set: one program looks them all up


class Probe(NamedTuple):
    entropy: Tensor  # [N] nats
    max_p: Tensor  # [N]
    mass: Tensor  # [N]
    log_sum: Tensor  # [N]
    best: Tensor  # [N] int64


class Moments(NamedTuple):
    entropy: Tensor  # [N] nats
    max_p: Tensor  # [N]
    mass: Tensor  # [N]


def moments(logits: Tensor, token_set: Sequence[int] = ()) -> Moments:  # [N, V], -inf allowed
    """Entropy, largest probability and mass of each row at temperature 1: what the engine reads of every row on a CPU.

    -inf entries add to none of them.
    """
    log_p = torch.log_softmax(logits, -1)
    p = log_p.exp()
    entropy = -(p * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)
    # column by column: a handful of ids, for which an index tensor takes longer than the sums
    mass = sum((p[:, token] for token in token_set), torch.zeros_like(entropy))
    return Moments(entropy, p.amax(-1), mass)


def probe_reference(
    logits: Tensor,  # [N, V], -inf allowed
    token_set: Sequence[int] = (),
    temperature: Tensor | None = None,  # [N], >= 0; None: 1 throughout
) -> Probe:
    """In PyTorch, in the dtype of ``logits``."""
    peak, best = logits.max(-1)
    warm = torch.ones_like(peak) if temperature is None else temperature.to(peak)
    served = tempered(logits, warm)
    shift = torch.where(warm == 0, peak, peak / warm.clamp_min(torch.finfo(peak.dtype).tiny))
    return Probe(*moments(served, token_set), served.logsumexp(-1) + shift, best)


def probe(
    logits: Tensor,  # [N, V] fp32, bf16 or fp16; rows may be apart
    token_set: Tensor | None = None,  # [E] int64 or int32, no id twice; None: empty
    temperature: Tensor | None = None,  # [N] fp32, >= 0; None: 1 throughout
    *,
    tile: Tile | None = None,
) -> Probe:
    """All five of each row, in fp32. ValueError on tensors that do not fit, or too large a set.

    A row that is no distribution, with NaN, +inf or no finite logit at all, has NaN in place of its numbers (but of
    ``best``): check ``log_sum`` where the result is read.
    """
    require("logits", logits, dtypes=FLOATS, shape=(None, None))
    rows, width = logits.shape
    device = logits.device
    if width == 0:
        raise ValueError("logits have no columns; a row holds one logit for each token of the vocabulary")
    if token_set is None:
        token_set = torch.empty(0, dtype=torch.int64, device=device)
    require("token_set", token_set, dtypes=WHOLE, shape=(None,), device=device)
    if len(token_set) > MOST_TOKENS:
        raise ValueError(f"token_set has {len(token_set)} ids, the kernel holds {MOST_TOKENS}; probe it in pieces")
    require_ids("token_set", token_set, width)
    temperature = temperatures(temperature, rows, device)
    if not runs_here(logits):
        return probe_reference(logits.float(), token_set.tolist(), temperature)
    parts = row_parts(logits, temperature, tile)
    columns = torch.empty(4, rows, device=device)
    best = torch.empty(rows, dtype=torch.int64, device=device)
    out = Probe(columns[0], columns[1], columns[2], columns[3], best)
    _probe[(rows,)](
        logits,
        logits.stride(0),
        width,
        token_set,
        len(token_set),
        temperature,
        *parts[:4],
        parts.per_row,
        *out,
        PARTS=parts.padded,
        SET=power_of_two(len(token_set)),
        num_warps=1,
    )
    return out


@Kernel
def _probe(  # type: ignore[no-untyped-def]
    logits,
    stride,
    width,
    token_set,
    members,
    temperature,
    peak,
    total,
    slope,
    best,
    count,
    entropy,
    max_p,
    mass,
    log_sum,
    argmax,
    PARTS: tl.constexpr,
    SET: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    warm = tl.load(temperature + row)
    scale = inverse(warm)
    m, s = joined(peak, total, row, count, scale, PARTS)
    first = joined_best(peak, best, row, count, PARTS)
    i = tl.arange(0, PARTS)
    s_i = tl.load(total + row * count + i, i < count, 0.0)
    lower = (tl.load(peak + row * count + i, i < count, -float("inf")) - m) * scale
    t_i = tl.load(slope + row * count + i, i < count, 0.0)
    w_i = tl.exp(lower)
    t = tl.sum(w_i * (t_i + s_i * tl.where(w_i == 0.0, 0.0, lower)), 0)
    j = tl.arange(0, SET)
    ids = tl.load(token_set + j, j < members, -1).to(tl.int64)
    inside = (ids >= 0) & (ids < width)
    x = tl.load(logits + row * stride + ids, inside, -float("inf")).to(tl.float32)
    greedy = warm == 0.0
    held = tl.sum(tl.where(inside, tl.exp((x - m) * scale), 0.0), 0) / s
    chosen = tl.sum(tl.where(inside & (ids == first), 1.0, 0.0), 0)
    tl.store(entropy + row, tl.where(greedy, s * 0.0, tl.log(s) - t / s))
    tl.store(max_p + row, tl.where(greedy, s * 0.0 + 1.0, 1.0 / s))
    tl.store(mass + row, tl.where(greedy, chosen, held))
    tl.store(log_sum + row, tl.where(greedy, m + s * 0.0, m * scale + tl.log(s)))
    tl.store(argmax + row, first.to(tl.int64))


def _example(dtype: torch.dtype) -> Probe:
    logits = torch.empty(64, 151_936, dtype=dtype, device="meta")
    return probe(logits, torch.empty(1, dtype=torch.int64, device="meta"))


EXAMPLES = {"probe fp32": lambda: _example(torch.float32), "probe bf16": lambda: _example(torch.bfloat16)}
