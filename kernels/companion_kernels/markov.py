r"""markov: a block of drafted tokens, one after another, without asking the device anything in between.

For each request and k = 1 .. K, from the parallel logits U_k and the token before (paper Eqs. 4, 5 and 7)

    l_k = U_k + W_2 W_1[x_{k-1}],     x_k ~ softmax(l_k / T)     (at T = 0 the argmax),
    q_k = softmax(l_k / T)(x_k),      c_k = sigmoid(a_k + w . W_1[x_{k-1}]),

where a_k is what h_k adds to the confidence. Two launches a step: the first corrects the rows and sums them up tile by
tile, the second picks (`companion.kernels.pick`), so that W_2 and each row are read once. The token stays on the
device, where the next step looks its row of W_1 up.

Bytes: W_2 in each step, K V r times 2 (0.54 GB for K = 7, V = 151,936, r = 256), and for each row U_k read and l_k
written in fp32, K V times 8 when U_k is fp32. The rows l_k are kept, since a rejected token is replaced from the
residual of the very distribution it was drawn from. `Fp8Rows` halves the first part. The candidate set of
`companion.kernels.candidates` shrinks both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from companion.kernels.block import Block, Confidence, check_block, confidence_of, example_block
from companion.kernels.fp8 import Fp8Rows, decode
from companion.kernels.launch import Kernel, interpreting, power_of_two, runs_here
from companion.kernels.pick import Picked, RowDraws, pick_reference, temperature_of

if TYPE_CHECKING:
    import triton.language as tl

# rows of W_2, columns at a time, warps
TILE = (128, 64, 4)
FP32_TILE = (128, 32, 8)
FP8_TILE = (128, 256, 8)  # whole rows: in a pipeline, bytes that are decoded are copied in pieces of 8


def markov_reference(
    logits: Tensor,  # [R, K, V]
    w1: Tensor,  # [V, r]
    w2: Tensor | Fp8Rows,  # [V, r]
    anchors: Tensor,  # [R]
    temperatures: Tensor,  # [R]
    draws: RowDraws,
    confidence: Confidence | None = None,
) -> Picked:
    """The same in PyTorch, in fp32 or the wider of the logits."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    matrix = w2.matrix() if isinstance(w2, Fp8Rows) else w2
    tokens, rows, picked, scores = anchors.long(), [], [], []
    for k in range(logits.shape[1]):
        embedded = w1[tokens]
        rows.append(logits[:, k].to(wide) + embedded.to(wide) @ matrix.to(wide).T)
        scores.append(confidence_of(confidence, embedded, k))
        picked.append(pick_reference(rows[-1], temperatures, draws.uniforms(k)))
        tokens = picked[-1][0]
    drawn, q, lse = (torch.stack(column, 1) for column in zip(*picked, strict=True))
    return Picked(drawn, q, lse, torch.stack(scores, 1), torch.stack(rows, 1))


@Kernel
def _correct(  # type: ignore[no-untyped-def]
    logits,  # U_k [R, V]
    logits_row,
    w1,  # [V, r]
    w2,  # [V, r], or its bits
    scales,  # [V], with FP8
    tokens,  # [R]: x_{k-1}
    tokens_row,
    temperatures,
    out,  # l_k [R, V] fp32
    out_row,
    peaks,  # [R, TILES]
    sums,
    bests,
    rows,  # R
    width,  # V
    RANK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FP8: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    tile = tl.program_id(1)
    v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    k = tl.arange(0, BLOCK_K)
    held, inside = row < rows, v < width
    wide_row, wide_v = row.to(tl.int64), v.to(tl.int64)
    token = tl.load(tokens + wide_row * tokens_row, held, 0)
    acc = tl.zeros((BLOCK_V, BLOCK_R), tl.float32)
    for first in range(0, RANK, BLOCK_K):
        j = first + k
        e = tl.load(w1 + token[None, :] * RANK + j[:, None], held[None, :] & (j < RANK)[:, None], 0)
        w = tl.load(w2 + wide_v[:, None] * RANK + j[None, :], inside[:, None] & (j < RANK)[None, :], 0)
        if FP8:
            w = decode(w)
        acc += tl.dot(w.to(e.dtype), e, input_precision="ieee")
    if FP8:
        acc = acc * (tl.load(scales + v, inside, 0) * 256.0)[:, None]
    there = inside[:, None] & held[None, :]
    entries = tl.load(logits + wide_row[None, :] * logits_row + v[:, None], there, float("-inf")).to(tl.float32) + acc
    tl.store(out + wide_row[None, :] * out_row + v[:, None], entries, there)
    peak, best = tl.max(entries, 0, return_indices=True)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    temperature = temperature_of(temperatures, tl.minimum(row, rows - 1))
    mass = tl.sum(tl.exp((entries - shift[None, :]) / temperature[None, :]), 0)
    place = wide_row * tl.num_programs(1) + tile
    tl.store(peaks + place, peak, held)
    tl.store(sums + place, mass, held)
    tl.store(bests + place, tile * BLOCK_V + best, held)


def markov(
    logits: Tensor,  # [R, K, V] U: fp32, bf16 or fp16
    w1: Tensor,  # [V, r]
    w2: Tensor | Fp8Rows,  # [V, r]
    anchors: Tensor,  # [R] x_0
    temperatures: Tensor,  # [R] fp32
    draws: RowDraws,
    confidence: Confidence | None = None,
) -> Picked:
    """Draft K tokens for each request.

    ValueError for dtypes, shapes, strides and devices that the kernel does not take, and on a CPU for anchors outside
    the vocabulary; on a GPU those are not read first, so they must be token ids.
    """
    check_block(logits, w1, w2, anchors, temperatures, draws, confidence)
    if not runs_here(logits):
        return markov_reference(logits, w1, w2, anchors, temperatures, draws, confidence)
    requests, steps, width = logits.shape
    fp8, rank = isinstance(w2, Fp8Rows), w1.shape[1]
    block_v, most_k, warps = FP8_TILE if fp8 else FP32_TILE if w1.dtype == torch.float32 else TILE
    block_v = 4096 if interpreting() else block_v
    block_r = max(16, min(64, power_of_two(requests)))
    tiles = -(-width // block_v)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    block = Block(out, anchors, temperatures, draws, confidence, w1, tiles, block_v)
    bits, scales = w2 if isinstance(w2, Fp8Rows) else (w2, w2)
    for k in range(steps):
        _correct[-(-requests // block_r), tiles](
            logits[:, k],
            logits.stride(0),
            w1,
            bits,
            scales,
            block.tokens[:, k],
            steps + 1,
            temperatures,
            out[:, k],
            out.stride(0),
            *block.sums,
            requests,
            width,
            RANK=rank,
            BLOCK_V=block_v,
            BLOCK_R=block_r,
            BLOCK_K=max(16, min(most_k, power_of_two(rank))),
            FP8=fp8,
            num_warps=warps,
            num_stages=3,
        )
        block.pick(k)
    return block.picked()


EXAMPLES = {
    "markov": lambda: markov(*example_block(1)),
    "markov, 64 requests": lambda: markov(*example_block(64)),
    "markov fp32, 64 requests": lambda: markov(*example_block(64, dtype=torch.float32)),
    "markov, W_2 in fp8": lambda: markov(*example_block(1, fp8=True)),
}
