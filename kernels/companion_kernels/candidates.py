r"""candidates: the Markov block on a few tokens of each position, with q exact on them.

    l_k(v) = U_k(v) + W_2[v] . W_1[x_{k-1}]    for v in S_k,    -inf elsewhere;    x_k ~ softmax(l_k / T)

so q_k is a distribution over S_k, zero elsewhere, and the token is drawn from it: nothing is approximated, the drafter
is another one. `candidate_set` takes the C largest entries of U_k, which are known before any token of the block is
drawn. What the set leaves out costs acceptance, at most the target's mass outside it, and never the output: a rejected
token is replaced from max(p - q, 0), which has all of the target's mass outside S_k.

Bytes: R K C r times 2, which is 3.7 MB a request for K = 7, C = 1,024, r = 256, against 545 MB for the whole of W_2 in
any batch: with more than some 150 requests (V / C) the whole matrix is fewer bytes, though never with the
rows of logits, which the full block reads and writes whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from companion.kernels.block import Block, Confidence, check_block, confidence_of, example_block
from companion.kernels.fp8 import Fp8Rows, decode
from companion.kernels.launch import WHOLE, Kernel, interpreting, power_of_two, require, runs_here, values_known
from companion.kernels.pick import Picked, RowDraws, pick_reference, temperature_of

if TYPE_CHECKING:
    import triton.language as tl

MAX_CANDIDATES = 16_384


def candidate_set(logits: Tensor, count: int) -> Tensor:  # [R, K, V] -> [R, K, count] int64
    """The ids of the ``count`` largest entries of each row, in the order of ids. ValueError for more than V."""
    if not 1 <= count <= min(logits.shape[-1], MAX_CANDIDATES):
        raise ValueError(
            f"candidates must number 1 to {min(logits.shape[-1], MAX_CANDIDATES)}, what a row and the kernel hold; "
            f"got {count}"
        )
    return logits.topk(count, sorted=False).indices.sort().values


def full_rows(picked: Picked, candidates: Tensor, width: int) -> Tensor:  # -> [R, K, V]
    """The rows over the whole vocabulary, -inf outside the candidates: what verification reads."""
    empty = torch.full((*candidates.shape[:2], width), float("-inf"), device=candidates.device)
    return empty.scatter_(-1, candidates.long(), picked.logits.to(empty.dtype))


def markov_candidates_reference(
    logits: Tensor,  # [R, K, V]
    w1: Tensor,  # [V, r]
    w2: Tensor | Fp8Rows,  # [V, r]
    candidates: Tensor,  # [R, K, C]
    anchors: Tensor,  # [R]
    temperatures: Tensor,  # [R]
    draws: RowDraws,
    confidence: Confidence | None = None,
) -> Picked:
    """The same in PyTorch; ``logits`` of the result are [R, K, C]."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    matrix = w2.matrix() if isinstance(w2, Fp8Rows) else w2
    tokens, rows, picked, scores = anchors.long(), [], [], []
    for k, ids in enumerate(candidates.long().unbind(1)):
        embedded = w1[tokens]
        bias = torch.einsum("rcj,rj->rc", matrix[ids].to(wide), embedded.to(wide))
        rows.append(logits[:, k].gather(1, ids).to(wide) + bias)
        scores.append(confidence_of(confidence, embedded, k))
        places, q, lse = pick_reference(rows[-1], temperatures, draws.uniforms(k))
        tokens = ids.gather(1, places[:, None])[:, 0]
        picked.append((tokens, q, lse))
    drawn, q, lse = (torch.stack(column, 1) for column in zip(*picked, strict=True))
    return Picked(drawn, q, lse, torch.stack(scores, 1), torch.stack(rows, 1))


@Kernel
def _correct_candidates(  # type: ignore[no-untyped-def]
    logits,  # U_k [R, V]
    logits_row,
    w1,  # [V, r]
    w2,  # [V, r], or its bits
    scales,  # [V], with FP8
    ids,  # [R, C]
    ids_row,
    tokens,  # [R]: x_{k-1}
    tokens_row,
    temperatures,
    out,  # [R, C] fp32
    out_row,
    peaks,  # [R, TILES]
    sums,
    bests,
    width,  # C
    RANK: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP8: tl.constexpr,
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tile * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, BLOCK_K)
    inside = i < width
    v = tl.load(ids + row * ids_row + i, inside, 0).to(tl.int64)
    token = tl.load(tokens + row * tokens_row)
    acc = tl.zeros((BLOCK_C,), tl.float32)
    for first in range(0, RANK, BLOCK_K):
        j = first + k
        e = tl.load(w1 + token * RANK + j, j < RANK, 0).to(tl.float32)
        w = tl.load(w2 + v[:, None] * RANK + j[None, :], inside[:, None] & (j < RANK)[None, :], 0)
        if FP8:
            w = decode(w)
        acc += tl.sum(w.to(tl.float32) * e[None, :], 1)
    if FP8:
        acc = acc * (tl.load(scales + v, inside, 0) * 256.0)
    entries = tl.load(logits + row * logits_row + v, inside, float("-inf")).to(tl.float32) + acc
    tl.store(out + row * out_row + i, entries, inside)
    peak, best = tl.max(entries, 0, return_indices=True)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    place = row * tl.num_programs(1) + tile
    tl.store(peaks + place, peak)
    tl.store(sums + place, tl.sum(tl.exp((entries - shift) / temperature_of(temperatures, row)), 0))
    tl.store(bests + place, tile * BLOCK_C + best)


def markov_candidates(
    logits: Tensor,  # [R, K, V] U: fp32, bf16 or fp16
    w1: Tensor,  # [V, r]
    w2: Tensor | Fp8Rows,  # [V, r]
    candidates: Tensor,  # [R, K, C] int64 or int32, rising along C: `candidate_set`
    anchors: Tensor,  # [R] x_0
    temperatures: Tensor,  # [R] fp32
    draws: RowDraws,
    confidence: Confidence | None = None,
) -> Picked:
    """Draft K tokens for each request, each from its own candidates; ``logits`` of the result are [R, K, C].

    ValueError as `companion.kernels.markov.markov`, for more candidates than the kernel holds, and on a CPU for
    candidates that do not rise or are no token ids; on a GPU those are not read first.
    """
    check_block(logits, w1, w2, anchors, temperatures, draws, confidence)
    _check_candidates(candidates, logits)
    if not runs_here(logits):
        return markov_candidates_reference(logits, w1, w2, candidates, anchors, temperatures, draws, confidence)
    requests, steps, count = candidates.shape
    block_c = min(power_of_two(count), 4096 if interpreting() else 64)
    tiles = -(-count // block_c)
    out = torch.empty(candidates.shape, dtype=torch.float32, device=logits.device)
    block = Block(out, anchors, temperatures, draws, confidence, w1, tiles, block_c, candidates)
    bits, scales = w2 if isinstance(w2, Fp8Rows) else (w2, w2)
    for k in range(steps):
        _correct_candidates[requests, tiles](
            logits[:, k],
            logits.stride(0),
            w1,
            bits,
            scales,
            candidates[:, k],
            candidates.stride(0),
            block.tokens[:, k],
            steps + 1,
            temperatures,
            out[:, k],
            out.stride(0),
            *block.sums,
            count,
            RANK=w1.shape[1],
            BLOCK_C=block_c,
            BLOCK_K=min(128, power_of_two(w1.shape[1])),
            FP8=isinstance(w2, Fp8Rows),
            num_warps=4,
        )
        block.pick(k)
    return block.picked()


def _check_candidates(candidates: Tensor, logits: Tensor) -> None:
    require("candidates", candidates, dtypes=WHOLE, shape=(*logits.shape[:2], None), device=logits.device)
    count, width = candidates.shape[2], logits.shape[2]
    if not 1 <= count <= min(width, MAX_CANDIDATES):
        raise ValueError(
            f"there are {count} candidates, and a row of {width} tokens and the kernel hold 1 to "
            f"{min(width, MAX_CANDIDATES)}"
        )
    if values_known(candidates) and candidates.numel():
        least, most = int(candidates.min()), int(candidates.max())
        if least < 0 or most >= width or bool((candidates.diff() <= 0).any()):
            raise ValueError(
                f"candidates must be ids from 0 to {width - 1} that rise along each row, as candidate_set gives them; "
                f"got some from {least} to {most}, or in another order"
            )


def _example(requests: int, *, fp8: bool = False) -> Picked:
    logits, w1, w2, *rest = example_block(requests, fp8=fp8)
    candidates = torch.empty(requests, 7, 1024, dtype=torch.int64, device="meta")
    return markov_candidates(logits, w1, w2, candidates, *rest)


EXAMPLES = {
    "markov, 1,024 candidates": lambda: _example(1),
    "markov, 1,024 candidates, W_2 in fp8": lambda: _example(1, fp8=True),
}
