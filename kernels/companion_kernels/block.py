"""block: what both forms of the Markov block share: its arguments, their checks, and the second launch of a step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from companion.kernels.fp8 import Fp8Rows
from companion.kernels.launch import FLOATS, WHOLE, power_of_two, require, require_ids
from companion.kernels.pick import Picked, RowDraws, check_temperatures, pick

MAX_RANK = 1024


class Confidence(NamedTuple):
    """The confidence head, split: what h_k adds is known before the block is drawn."""

    bases: Tensor  # [R, K] fp32: w_h . h_k + b
    weights: Tensor  # [r]: w over the embedding of the token before


def confidence_of(confidence: Confidence | None, embedded: Tensor, k: int) -> Tensor:  # [R, r] -> [R]
    """c of a step; NaN without a confidence head."""
    if confidence is None:
        return torch.full((len(embedded),), float("nan"), device=embedded.device)
    return torch.sigmoid(confidence.bases[:, k].float() + embedded.float() @ confidence.weights.float())


class Block:
    """What the two kernels of a step hand on, allocated once a block."""

    def __init__(
        self,
        out: Tensor,  # [R, K, width]
        anchors: Tensor,
        temperatures: Tensor,
        draws: RowDraws,
        confidence: Confidence | None,
        w1: Tensor,
        tiles: int,
        block: int,
        ids: Tensor | None = None,  # [R, K, width]: the tokens that entries stand for; None: themselves
    ) -> None:
        requests, steps, _ = out.shape
        device = out.device
        self.tokens = torch.empty((requests, steps + 1), dtype=torch.int64, device=device)
        self.tokens[:, 0] = anchors
        self.q, self.lse = (torch.empty((requests, steps), device=device) for _ in range(2))
        self.confidence = torch.full((requests, steps), float("nan"), device=device)
        peaks, sums = (torch.empty((requests, tiles), device=device) for _ in range(2))
        self.sums = (peaks, sums, torch.empty((requests, tiles), dtype=torch.int32, device=device))
        self.out, self.temperatures, self.draws, self.head = out, temperatures, draws, confidence
        self.w1, self.tiles, self.block, self.ids = w1, tiles, block, ids

    def pick(self, k: int) -> None:
        """Draw the tokens of step k, whose rows and sums are there."""
        ids = self.tokens if self.ids is None else self.ids[:, k]
        bases, weights = self.head or (self.q, self.w1)
        pick[len(self.out),](
            self.out[:, k],
            self.out.stride(0),
            *self.sums,
            ids,
            ids.stride(0),
            self.temperatures,
            *self.draws,
            self.tokens,
            self.q,
            self.lse,
            self.confidence,
            bases,
            weights,
            self.w1,
            k,
            self.out.shape[1],
            self.out.shape[2],
            TILES=self.tiles,
            TILES_PADDED=power_of_two(self.tiles),
            BLOCK=self.block,
            RANK=self.w1.shape[1],
            RANK_PADDED=power_of_two(self.w1.shape[1]),
            CANDIDATES=self.ids is not None,
            CONFIDENCE=self.head is not None,
            num_warps=8 if self.tiles > 512 else 4,
        )

    def picked(self) -> Picked:
        return Picked(self.tokens[:, 1:], self.q, self.lse, self.confidence, self.out)


def check_block(
    logits: Tensor,
    w1: Tensor,
    w2: Tensor | Fp8Rows,
    anchors: Tensor,
    temperatures: Tensor,
    draws: RowDraws,
    confidence: Confidence | None,
) -> None:
    """ValueError for what a block cannot be drafted from."""
    require("logits", logits, dtypes=FLOATS, shape=(None, None, None))
    requests, steps, width = logits.shape
    device = logits.device
    require("w1", w1, dtypes=FLOATS, shape=(width, None), device=device, contiguous=True)
    rank = w1.shape[1]
    if not 1 <= rank <= MAX_RANK or not steps or not width:
        raise ValueError(f"a block needs a step and a token, and a rank from 1 to {MAX_RANK}; got rank {rank}")
    if isinstance(w2, Fp8Rows):
        require("w2.bits", w2.bits, dtypes=(torch.uint8,), shape=(width, rank), device=device, contiguous=True)
        require("w2.scales", w2.scales, dtypes=(torch.float32,), shape=(width,), device=device)
    else:
        require("w2", w2, dtypes=(w1.dtype,), shape=(width, rank), device=device, contiguous=True)
    require("anchors", anchors, dtypes=WHOLE, shape=(requests,), device=device)
    require_ids("anchors", anchors, width)
    check_temperatures(temperatures, requests, device)
    draws.check(requests, device)
    if confidence is not None:
        require("bases", confidence.bases, dtypes=(torch.float32,), shape=(requests, steps), device=device)
        require("weights", confidence.weights, dtypes=FLOATS, shape=(rank,), device=device)
        if not confidence.bases.is_contiguous():
            raise ValueError("bases have gaps between their rows; call .contiguous() on them")


def example_block(
    requests: int, *, fp8: bool = False, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor | Fp8Rows, Tensor, Tensor, RowDraws, Confidence]:
    """Arguments of a block at the sizes of Qwen3, V = 151,936, r = 256, K = 7, without values."""
    logits = torch.empty(requests, 7, 151_936, device="meta")
    w1, w2 = (torch.empty(151_936, 256, dtype=dtype, device="meta") for _ in range(2))
    rounded = Fp8Rows(torch.empty_like(w2, dtype=torch.uint8), torch.empty(len(w2), device="meta"))
    ids = torch.empty(requests, dtype=torch.int64, device="meta")
    draws = RowDraws(torch.empty(requests, 2, dtype=torch.int64, device="meta"), ids, ids)
    head = Confidence(torch.empty(requests, 7, device="meta"), torch.empty_like(w1[0]))
    return logits, w1, rounded if fp8 else w2, ids, torch.empty(requests, device="meta"), draws, head
