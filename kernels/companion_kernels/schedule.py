r"""schedule: which drafted slots a batch verifies, decided on the device (paper, Algorithm 1 and section 5.2).

With confidences c, survival is a_{r,j} = c_{r,1} .. c_{r,j}. Slots are ranked by

    survival, high first;  then the slot, low first;  then the request, in the order of the batch,

and with the m best of R requests admitted a step is expected to give tau(m) = R + (sum of their survivals) tokens in
seconds(m), which is a throughput of Theta(m) = tau(m) / seconds(m). Two uses, and no third:

    schedule(now)         Algorithm 1: admit while Theta rises, stop at the first slot that does not raise it
    schedule(now, past)   m from the highest Theta on the confidences of a past step, then the m best of now

The highest Theta of the present is the paper's counterexample and cannot be asked for. Both ranks are made by counting
who comes before, all pairs at once: the order is total, so that every count is another rank, ties keep prefixes, and no
sort decides anything. Survivals and sums are fp64, in products of the same order as `companion.scheduling.ranking`;
tau is summed as a tree, so an answer can differ from there only where two Thetas agree to some 1e-15.

Cost: (R K)^2 comparisons, 13 million for R = 512 and K = 7, and four small launches (six with a past).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from companion.kernels.launch import Kernel, interpreting, power_of_two, require, runs_here, values_known

if TYPE_CHECKING:
    import triton.language as tl

MAX_SLOTS = 16_384  # R K


class Scheduled(NamedTuple):
    lengths: Tensor  # [R] int32: slots of each request to verify
    slots: Tensor  # [] int32: how many were worth it; their sum, or more where fewer can survive


def schedule_reference(
    confidence: Tensor,  # [R, K]
    seconds: Tensor,  # [R K + 1]
    past: Tensor | None = None,  # [R, K]
) -> Scheduled:
    """The same in PyTorch."""
    rank, best = _ranked(confidence)
    theta = _throughput(best if past is None else _ranked(past)[1], len(confidence), seconds)
    if past is None:
        falls = theta[1:] <= theta[:-1]
        slots = torch.where(falls.any(), falls.int().argmax(), len(best))
    else:
        slots = theta.argmax()
    return Scheduled((rank < slots).sum(1, dtype=torch.int32), slots.int())


def _ranked(confidence: Tensor) -> tuple[Tensor, Tensor]:  # [R, K] -> [R, K], [R K] survivals, best first
    """What cannot survive has a rank beyond all."""
    by_slot = torch.cumprod(_probabilities(confidence), 1).t().flatten()
    best, order = by_slot.sort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    rank = torch.where(by_slot > 0, rank, 2**31 - 1)
    return rank.view(confidence.shape[1], -1).t(), best


def _throughput(best: Tensor, requests: int, seconds: Tensor) -> Tensor:  # [n] -> [n + 1]
    tau = torch.cumsum(torch.cat([best.new_full((1,), requests), best]), 0)
    dead = torch.cat([best.new_zeros(1, dtype=torch.bool), best == 0])
    return (tau / seconds).masked_fill(dead, float("-inf"))


def _probabilities(confidence: Tensor) -> Tensor:
    return confidence.double().nan_to_num(0.0).clamp(0.0, 1.0)


@Kernel
def _survive(confidence, survivals, requests, COUNT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """[R, K] to [K, R]: slot by slot, so that a tie's order is the order of places."""
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.full((BLOCK,), 1.0, tl.float64)
    for k in tl.static_range(COUNT):
        c = tl.load(confidence + r * COUNT + k, r < requests, 0).to(tl.float64)
        a = a * tl.where(c > 0.0, tl.minimum(c, 1.0), 0.0)  # NaN is not above 0
        tl.store(survivals + k * requests + r, a, r < requests)


@Kernel
def _rank(survivals, ranks, best, slots, BLOCK: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(survivals + i, i < slots, 0)
    rank = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, slots, CHUNK):
        j = first + tl.arange(0, CHUNK)
        other = tl.load(survivals + j, j < slots, -1.0)
        before = (other[None, :] > own[:, None]) | ((other[None, :] == own[:, None]) & (j[None, :] < i[:, None]))
        rank += tl.sum(before.to(tl.int32), 1)
    tl.store(best + rank, own, i < slots)
    tl.store(ranks + i, tl.where(own > 0, rank, 2147483647), i < slots)


@Kernel
def _throughputs(best, seconds, theta, requests, slots, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Theta(m) for m = 0 .. n; -inf where the m-th best slot cannot survive."""
    m = tl.arange(0, PADDED)
    a = tl.load(best + m - 1, (m > 0) & (m <= slots), 0)
    tau = tl.cumsum(tl.where(m == 0, requests + a, a), 0)
    worth = tl.where((m == 0) | (a > 0), tau / tl.load(seconds + m, m <= slots, 1.0), float("-inf"))
    tl.store(theta + m, worth, m <= slots)


@Kernel
def _admit(  # type: ignore[no-untyped-def]
    theta,  # [n + 1]
    ranks,  # [K, R] of now
    lengths,  # [R]
    found,  # []
    requests,
    slots,  # n
    COUNT: tl.constexpr,  # K
    PADDED: tl.constexpr,  # > n
    BLOCK: tl.constexpr,
    FIRST_STALL: tl.constexpr,
):
    m = tl.arange(0, PADDED)
    worth = tl.load(theta + m, m <= slots, float("-inf"))
    if FIRST_STALL:
        stalls = (m > 0) & (m <= slots) & (worth <= tl.load(theta + m - 1, (m > 0) & (m <= slots), float("-inf")))
        chosen = tl.min(tl.where(stalls, m, slots + 1), 0) - 1
    else:
        chosen = tl.min(tl.where(worth == tl.max(worth, 0), m, PADDED), 0)
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length = tl.zeros((BLOCK,), tl.int32)
    for k in tl.static_range(COUNT):
        length += (tl.load(ranks + k * requests + r, r < requests, 2147483647) < chosen).to(tl.int32)
    tl.store(lengths + r, length, r < requests)
    tl.store(found, chosen)


def schedule(
    confidence: Tensor,  # [R, K] fp32 or fp64, 0 from where a draft ends
    seconds: Tensor,  # [n + 1] fp64: of a step with 0, 1, .. n slots beside the R anchors, n of the table searched
    past: Tensor | None = None,  # [R, any] as ``confidence``
) -> Scheduled:
    """Lengths of all requests: Algorithm 1 on ``confidence``, or with ``past`` the lagged top K.

    ``seconds`` is `companion.scheduling.capacity.step_seconds` of these R. ValueError for an empty batch, more slots
    than the kernel holds, half precision (whose ties are many), and on a CPU for what is no probability or no time; on
    a GPU those are not read first: there NaN counts as 0 and what is above 1 as 1.
    """
    searched = confidence if past is None else past
    _check(confidence, seconds, searched)
    if not runs_here(confidence):
        return schedule_reference(confidence, seconds, past)
    ranks, best = _ranks(confidence)
    if past is not None:
        _, best = _ranks(past)
    requests, count = confidence.shape
    slots = searched.numel()
    padded = power_of_two(slots + 1)
    theta = torch.empty_like(seconds)
    warps = min(32, max(4, padded // 512))
    _throughputs[1,](best, seconds, theta, requests, slots, PADDED=padded, num_warps=warps)
    lengths = torch.empty(requests, dtype=torch.int32, device=confidence.device)
    found = torch.empty((), dtype=torch.int32, device=confidence.device)
    block = 1024 if interpreting() else 128
    sizes = {"COUNT": count, "PADDED": padded, "BLOCK": block, "FIRST_STALL": past is None}
    _admit[-(-requests // block),](theta, ranks, lengths, found, requests, slots, **sizes, num_warps=warps)
    return Scheduled(lengths, found)


def _ranks(confidence: Tensor) -> tuple[Tensor, Tensor]:  # [R, K] -> [K, R] int32, [R K] fp64
    requests, count = confidence.shape
    slots, device = confidence.numel(), confidence.device
    survivals, best = (torch.empty(slots, dtype=torch.float64, device=device) for _ in range(2))
    ranks = torch.empty(slots, dtype=torch.int32, device=device)
    block, own, chunk = (1024, 256, 1024) if interpreting() else (128, 32, 128)
    _survive[-(-requests // block),](confidence, survivals, requests, COUNT=count, BLOCK=block, num_warps=4)
    _rank[-(-slots // own),](survivals, ranks, best, slots, BLOCK=own, CHUNK=chunk, num_warps=4)
    return ranks, best


def _check(confidence: Tensor, seconds: Tensor, searched: Tensor) -> None:
    kinds, device = (torch.float32, torch.float64), confidence.device
    require("confidence", confidence, dtypes=kinds, shape=(None, None), contiguous=True)
    require("past", searched, dtypes=kinds, shape=(len(confidence), None), device=device, contiguous=True)
    if not confidence.numel() or not searched.numel():
        raise ValueError("there is nothing to schedule: the batch is empty")
    most = max(confidence.numel(), searched.numel())
    if most > MAX_SLOTS:
        raise ValueError(f"{most} slots are to be ranked and the kernel holds {MAX_SLOTS}; cut the batch or the depth")
    require("seconds", seconds, dtypes=(torch.float64,), shape=(searched.numel() + 1,), device=device, contiguous=True)
    if values_known(confidence):
        for table in (confidence, searched):
            if not bool(((table >= 0) & (table <= 1)).all()):
                raise ValueError("a confidence is a probability between 0 and 1; some here are not")
        if not bool(((seconds > 0) & (seconds < float("inf"))).all()):
            raise ValueError("times of a step must be positive and finite; measure the sizes anew")


def _example(*, lagged: bool) -> Scheduled:
    table = torch.empty(512, 7, device="meta")
    seconds = torch.empty(512 * 7 + 1, dtype=torch.float64, device="meta")
    return schedule(table, seconds, table if lagged else None)


EXAMPLES = {
    "schedule, Algorithm 1": lambda: _example(lagged=False),
    "schedule, lagged top K": lambda: _example(lagged=True),
}
