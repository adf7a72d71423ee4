r"""verify: the accept/reject rule for a ragged batch, without a probability row in memory (paper, section 2.1).

A request has drafted x_1 .. x_n and brings n + 1 rows of the target. With p_k the target's law at slot k, q_k what x_k
was drawn from, and the request's own random numbers u (`philox`, for "accept" and "target" at slot k's position),

    a = the first k with u_k >= p_k(x_k) / q_k(x_k), or n           drafts that are kept
    y ~ norm(max(p_a - q_a, 0)) after a rejection, ~ p_n without    the target's own token
    y = min { v : sum_{w <= v} mass(w) > u total }                  its place, summed in fp64

and x_1 .. x_a, y are committed. A one-hot q_k is 1 at x_k; at temperature 0 both laws are one-hot, so a draft is kept
while it is the target's first argmax. A residual without mass falls back to p.

Three passes: `rows` sums up every row, one small program per request finds a, and then a single row of each request is
read again, once for the mass of its parts and one part more for the place of y. N rows of V entries of b bytes, R of
them read twice, and R rows of q: (N + R) V b + R V b_q bytes, and nothing of that size is written.

A request that breaks the contract in a way only the device can see (a row that is no distribution, a draft with q = 0
or outside the row, more drafts than ``depth``) has count -1 and commits nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from companion.kernels.batch import Batch, Drafts, check
from companion.kernels.launch import Kernel, Tile, power_of_two, runs_here
from companion.kernels.philox import CHUNK, chunk, purpose_word, uniform
from companion.kernels.residual import first_above, split
from companion.kernels.rows import inverse, joined_best, row_parts, tempered

if TYPE_CHECKING:
    import triton.language as tl


ONE_HOT, LAWS, LOGITS = 0, 1, 2  # what the drafts were drawn from, as the kernels know it


class Verified(NamedTuple):
    tokens: Tensor  # [R, depth + 1] int64, committed ones first, then -1
    counts: Tensor  # [R] int64; 0 for a request without rows, -1 for a broken one


def verify_reference(
    logits: Tensor,  # [N, V]
    batch: Batch,
    drafts: Drafts | None = None,
    *,
    depth: int,
) -> Verified:
    """In PyTorch, one request after another, in the dtype of ``logits``; arguments as `verify` takes them."""
    drafted, starts, positions, keys, temperature = batch
    requests, bounds = len(positions), starts.tolist()
    tokens = torch.full((requests, depth + 1), -1, dtype=torch.int64)
    counts = torch.zeros(requests, dtype=torch.int64)
    for r in range(requests):
        span = slice(bounds[r], bounds[r + 1])
        if bounds[r] == bounds[r + 1]:
            continue
        own, warm = logits[span], temperature[r].expand(bounds[r + 1] - bounds[r])
        proposed = drafted[span][:-1].tolist()
        law = tempered(own, warm).softmax(-1)
        counts[r] = -1
        if not bool(torch.isfinite(law).all()) or len(proposed) > depth:
            continue
        accepted, last = 0, law[-1]
        for k, token in enumerate(proposed):
            q = _proposal(drafts, bounds[r] + k, token, law[k])
            if temperature[r] > 0 and not float(q[token]) > 0.0:
                accepted = -1
                break
            ratio = float(law[k, token]) / float(q[token]) if temperature[r] > 0 else float(law[k, token])
            if not _number(keys[r], "accept", int(positions[r]) + k) < ratio:
                excess = (law[k] - q).clamp_min(0)
                last = excess if temperature[r] > 0 and excess.sum() > 0 else law[k]
                break
            accepted += 1
        if accepted < 0:
            continue
        mass = np.cumsum(last.cpu().numpy(), dtype=np.float64)
        drawn = np.searchsorted(mass, _number(keys[r], "target", int(positions[r]) + accepted) * mass[-1], side="right")
        tokens[r, : accepted + 1] = torch.tensor([*proposed[:accepted], int(drawn)])
        counts[r] = accepted + 1
    return Verified(tokens.to(logits.device), counts.to(logits.device))


def _proposal(drafts: Drafts | None, row: int, token: int, like: Tensor) -> Tensor:  # [V]
    place = -1 if drafts is None else int(drafts.rows[row])
    if drafts is None or place < 0:
        return torch.zeros_like(like).index_fill_(0, torch.tensor(token, device=like.device), 1.0)
    law = drafts.laws[place].to(like.dtype)
    if drafts.temperature is None:
        return law
    return tempered(law[None], drafts.temperature[place : place + 1]).softmax(-1)[0]


def _number(key: Tensor, purpose: str, position: int) -> float:  # [2]
    words = key.cpu().numpy().view(np.uint64)
    return float(chunk(words, purpose, position // CHUNK)[position % CHUNK])


def verify(
    logits: Tensor,  # [N, V] fp32, bf16 or fp16; rows may be apart
    batch: Batch,
    drafts: Drafts | None = None,  # None: every proposal was one-hot
    *,
    depth: int,  # the most drafts that a request may bring
    tile: Tile | None = None,
) -> Verified:
    """Committed tokens and their counts. ValueError on tensors that do not fit, and on CPU tensors on wrong values."""
    check(logits, batch, drafts, depth)
    if not runs_here(logits):
        return verify_reference(logits.float(), batch, drafts, depth=depth)
    (rows, width), requests, device = logits.shape, len(batch.positions), logits.device
    tokens = torch.empty(requests, depth + 1, dtype=torch.int64, device=device)
    counts = torch.empty(requests, dtype=torch.int64, device=device)
    if requests == 0:
        return Verified(tokens, counts)
    owner = torch.searchsorted(batch.starts[1:], torch.arange(rows, device=device), right=True)
    parts = row_parts(logits, batch.temperature[owner.clamp_max(requests - 1)], tile)
    laws, law_rows, warm, of_laws = logits, batch.drafted, batch.temperature, parts
    kind = ONE_HOT
    if drafts is not None:
        kind, laws, law_rows = LAWS, drafts.laws, drafts.rows
        if drafts.temperature is not None:
            kind, warm = LOGITS, drafts.temperature
            of_laws = row_parts(laws, warm, parts.tile)
    masses = torch.empty(2, requests, parts.per_row, dtype=torch.float64, device=device)
    given = (logits, logits.stride(0), width, *batch, *parts[:2], laws, laws.stride(0), law_rows, warm, *of_laws[:2])
    sizes = {"KIND": kind, "PARTS": parts.padded, "DEPTH": depth}
    _accept[(requests,)](
        *given, len(laws), parts.best, parts.per_row, _signed("accept"), tokens, counts, **sizes,
        SLOTS=power_of_two(depth + 1), num_warps=4, num_stages=1,
    )  # fmt: skip
    _masses[(requests, parts.per_row)](
        *given, counts, masses[0], masses[1], **sizes, BLOCK=parts.tile.block, num_warps=parts.tile.warps, num_stages=1
    )
    _place[(requests,)](
        *given, masses[0], masses[1], parts.best, parts.per_row, _signed("target"), tokens, counts, **sizes,
        BLOCK=parts.tile.block, num_warps=min(16, 2 * parts.tile.warps), num_stages=1,
    )  # fmt: skip
    return Verified(tokens, counts)


def _signed(purpose: str) -> int:
    word = purpose_word(purpose)
    return word - 2**64 if word >= 2**63 else word


@Kernel
def _accept(  # type: ignore[no-untyped-def]
    logits, stride, width, drafted, starts, positions, keys, temperature, peak, total,
    laws, laws_stride, law_rows, warm, law_peak, law_total, laws_held, best, count, purpose, tokens, counts,
    KIND: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """One request: its drafts that are kept, and their number plus 1 (0 without rows, -1 where it is broken)."""
    r = tl.program_id(0).to(tl.int64)
    start = tl.load(starts + r)
    drafts = tl.load(starts + r + 1) - start - 1
    greedy = tl.load(temperature + r) == 0.0
    scale = inverse(tl.load(temperature + r))
    k = tl.arange(0, SLOTS)
    row = start + k
    judged, held = k < drafts, k <= drafts
    i = tl.arange(0, PARTS)
    place = row[:, None] * count + i[None, :]
    there = held[:, None] & (i < count)[None, :]
    m_i = tl.load(peak + place, there, -float("inf"))
    m = tl.max(m_i, 1)
    base = tl.where(m == -float("inf"), 0.0, m)
    s = tl.sum(tl.load(total + place, there, 0.0) * tl.exp((m_i - base[:, None]) * scale), 1)
    argmax = tl.min(tl.where(there & (m_i == m[:, None]), tl.load(best + place, there, 0), 2147483647), 1)
    token = tl.load(drafted + row, judged, 0)
    inside = (token >= 0) & (token < width)
    x = tl.load(logits + row * stride + token, judged & inside, -float("inf")).to(tl.float32)
    p = tl.exp((x - base) * scale) * (1.0 / tl.where(s > 0.0, s, 1.0))
    q = tl.full(p.shape, 1.0, tl.float32)
    if KIND > 0:
        law = tl.load(law_rows + row, judged, -1).to(tl.int64)
        inside &= (law >= -1) & (law < laws_held)
        drawn = judged & inside & (law >= 0)
        y = tl.load(laws + law * laws_stride + token, drawn, 1.0).to(tl.float32)
        if KIND == 2:
            law_place = law[:, None] * count + i[None, :]
            of_law = drawn[:, None] & (i < count)[None, :]
            n_i = tl.load(law_peak + law_place, of_law, -float("inf"))
            n = tl.max(n_i, 1)
            n = tl.where(n == -float("inf"), 0.0, n)
            cool = inverse(tl.load(warm + law, drawn, 1.0))
            z = tl.sum(tl.load(law_total + law_place, of_law, 0.0) * tl.exp((n_i - n[:, None]) * cool[:, None]), 1)
            y = tl.exp((y - n) * cool) * (1.0 / tl.where(z > 0.0, z, 1.0))
        q = tl.where(drawn, y, 1.0)
    first = tl.load(positions + r)
    u = uniform(
        tl.load(keys + 2 * r + k * 0), tl.load(keys + 2 * r + 1 + k * 0), purpose + (k * 0).to(tl.int64), first + k
    )
    kept = judged & tl.where(greedy, token == argmax, u < p.to(tl.float64) / q.to(tl.float64))
    accepted = tl.min(tl.where(kept, SLOTS, k), 0)
    wrong = held & ((s > 0.0) == 0)  # NaN as well
    wrong |= judged & (inside == 0)
    wrong |= judged & (k <= accepted) & (greedy == 0) & ((q > 0.0) == 0)
    broken = (tl.sum(wrong.to(tl.int32), 0) > 0) | (drafts > DEPTH)
    tl.store(tokens + r * (DEPTH + 1) + k, tl.where((k < accepted) & (broken == 0), token, -1), k <= DEPTH)
    tl.store(counts + r, tl.where(drafts < 0, 0, tl.where(broken, -1, accepted + 1)).to(tl.int64))


@Kernel
def _masses(  # type: ignore[no-untyped-def]
    logits, stride, width, drafted, starts, positions, keys, temperature, peak, total,
    laws, laws_stride, law_rows, warm, law_peak, law_total, counts, left, whole,
    KIND: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One part of the row that a request's own token comes from: the mass of its residual, and all of its mass."""
    r, part, count = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    accepted = tl.load(counts + r) - 1
    if accepted >= 0 and tl.load(temperature + r) > 0.0:
        row = tl.load(starts + r) + accepted
        p, excess = split(
            logits, stride, width, drafted, starts, temperature, peak, total, laws, laws_stride, law_rows, warm,
            law_peak, law_total, r, row, part, count, KIND, PARTS, BLOCK,
        )  # fmt: skip
        tl.store(whole + r * count + part, tl.sum(p.to(tl.float64), 0))
        tl.store(left + r * count + part, tl.sum(excess.to(tl.float64), 0))


@Kernel
def _place(  # type: ignore[no-untyped-def]
    logits, stride, width, drafted, starts, positions, keys, temperature, peak, total,
    laws, laws_stride, law_rows, warm, law_peak, law_total, left, whole, best, count, purpose, tokens, counts,
    KIND: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A request's own token: where the cumulative mass passes the request's number."""
    r = tl.program_id(0).to(tl.int64)
    accepted = tl.load(counts + r) - 1
    if accepted >= 0:
        row = tl.load(starts + r) + accepted
        token = joined_best(peak, best, row, count, PARTS)
        if tl.load(temperature + r) > 0.0:
            one, i = tl.arange(0, 1), tl.arange(0, PARTS)
            u = tl.sum(
                uniform(
                    tl.load(keys + 2 * r + one),
                    tl.load(keys + 2 * r + 1 + one),
                    purpose + one.to(tl.int64),
                    tl.load(positions + r) + accepted + one,
                ),
                0,
            )
            held = i < count
            mass = tl.load(left + r * count + i, held, 0.0)
            residual = tl.sum(mass, 0) > 0.0
            if residual == 0:
                mass = tl.load(whole + r * count + i, held, 0.0)
            wanted = u * tl.sum(mass, 0)
            part = first_above(i, tl.cumsum(mass, 0), mass, wanted, PARTS)
            p, excess = split(
                logits, stride, width, drafted, starts, temperature, peak, total, laws, laws_stride, law_rows, warm,
                law_peak, law_total, r, row, part, count, KIND, PARTS, BLOCK,
            )  # fmt: skip
            within = tl.where(residual, excess, p).to(tl.float64)
            below = tl.sum(tl.where(i < part, mass, 0.0), 0)
            j = tl.arange(0, BLOCK)
            token = part * BLOCK + first_above(j, tl.cumsum(within, 0), within, wanted - below, BLOCK)
        tl.store(tokens + r * (DEPTH + 1) + accepted, token.to(tl.int64))


def _whole(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def _example(kind: int) -> Verified:
    """64 requests with 7 drafts each."""
    requests, depth, width = 64, 7, 151_936
    rows, drawn = requests * (depth + 1), requests * depth
    logits = torch.empty(rows, width, dtype=torch.bfloat16, device="meta")
    warm = torch.empty(requests, device="meta")
    batch = Batch(_whole(rows), _whole(requests + 1), _whole(requests), _whole(requests, 2), warm)
    if kind == ONE_HOT:
        return verify(logits, batch, depth=depth)
    laws, heat = torch.empty(drawn, width, device="meta"), torch.empty(drawn, device="meta")
    return verify(logits, batch, Drafts(laws, _whole(rows), heat if kind == LOGITS else None), depth=depth)


EXAMPLES = {
    "verify, one-hot": lambda: _example(ONE_HOT),
    "verify, laws": lambda: _example(LAWS),
    "verify, logits": lambda: _example(LOGITS),
}
