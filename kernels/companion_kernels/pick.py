r"""pick: one token of each row, from what a kernel that wrote the row has summed up of it, tile by tile.

With l the row, T its temperature, and for each tile t of the row its largest entry P_t and mass S_t,

    P_t = max_{v in t} l(v),   S_t = sum_{v in t} exp((l(v) - P_t) / T),
    P = max_t P_t,             Z = sum_t S_t exp((P_t - P) / T)

the token is the smallest v whose cumulative mass exceeds u Z, as in `companion.engine.draws.inverse_cdf`; u is the
request's own number for its purpose and position (`philox`). Only the tile where that happens is read again: a few
kilobytes of a row of 600. At temperature 0 it is the smallest id among the largest entries. Also

    q = exp((l(token) - P) / T) / Z,        lse = P / T + ln Z,        c = sigmoid(a + w . e)

where q is 1 at temperature 0, whose proposal is one-hot, and c is the confidence head on the embedding e of the token
before (paper Eq. 7), whose part of h_k comes as a. A row with a NaN or +inf, or with nothing finite, has q = NaN and a
token inside the row: what comes after cannot fault, and whoever reads q sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from companion.kernels.launch import WHOLE, Kernel, require, values_known
from companion.kernels.philox import CHUNK, uniform
from companion.kernels.residual import first_above

if TYPE_CHECKING:
    import triton.language as tl

SMALLEST = torch.finfo(torch.float32).tiny  # a temperature below it would turn the maximum into 0 / 0


class RowDraws(NamedTuple):
    """Where each row's random numbers come from: step k of a block uses the one at ``positions`` + k."""

    keys: Tensor  # [R, 2] int64: the two words of a request's key
    purposes: Tensor  # [R] int64: `philox.purpose_word`
    positions: Tensor  # [R] int64: absolute position of the first token to be drawn

    def check(self, rows: int, device: torch.device) -> None:
        """ValueError for what a kernel cannot read."""
        require("draws.keys", self.keys, dtypes=(torch.int64,), shape=(rows, 2), device=device, contiguous=True)
        require("draws.purposes", self.purposes, dtypes=(torch.int64,), shape=(rows,), device=device)
        require("draws.positions", self.positions, dtypes=WHOLE, shape=(rows,), device=device)
        if values_known(self.positions) and rows and int(self.positions.min()) < 0:
            raise ValueError(f"positions must be 0 or more, got {int(self.positions.min())}")

    def uniforms(self, step: int) -> Tensor:  # [R] fp64
        """The numbers of a step, made by NumPy: the same as the kernel's."""
        keys = self.keys.cpu().numpy().view(np.uint64)
        purposes = self.purposes.cpu().numpy().view(np.uint64)
        made = []
        for key, purpose, position in zip(keys, purposes, (self.positions + step).tolist(), strict=True):
            counter = np.array([0, position // CHUNK, purpose, 0], dtype=np.uint64)
            numbers = np.random.Generator(np.random.Philox(key=key, counter=counter)).random(CHUNK)
            made.append(numbers[position % CHUNK])
        return torch.tensor(made, dtype=torch.float64)


class Picked(NamedTuple):
    """What drafting a block gives; ``logits`` are the rows that the tokens were drawn from, and q is read off them."""

    tokens: Tensor  # [R, K] int64
    q: Tensor  # [R, K] fp32: probability of the token under the row
    lse: Tensor  # [R, K] fp32: ln of the row's sum at its temperature, nats
    confidence: Tensor  # [R, K] fp32; NaN without a confidence head
    logits: Tensor  # [R, K, V] or [R, K, C] fp32


def check_temperatures(temperatures: Tensor, rows: int, device: torch.device) -> None:
    """ValueError unless there is one of each row, finite and at least 0."""
    require("temperatures", temperatures, dtypes=(torch.float32,), shape=(rows,), device=device)
    if values_known(temperatures) and not bool(((temperatures >= 0) & (temperatures < float("inf"))).all()):
        raise ValueError(f"temperatures must be finite and at least 0, got {temperatures.tolist()}; 0 means greedy")


def pick_reference(
    logits: Tensor,  # [R, V] fp32 or fp64
    temperatures: Tensor,  # [R]
    uniforms: Tensor,  # [R] fp64
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, q and lse of each row, [R] each."""
    greedy = temperatures == 0
    scaled = logits.double() / torch.where(greedy, 1.0, temperatures.double().clamp_min(SMALLEST))[:, None]
    lse = torch.logsumexp(scaled, -1)
    cumulative = torch.cumsum((scaled - lse[:, None]).exp(), -1)
    drawn = torch.searchsorted(cumulative, (uniforms.to(logits.device) * cumulative[:, -1])[:, None], right=True)[:, 0]
    tokens = torch.where(greedy, logits.argmax(-1), drawn.clamp_max(logits.shape[-1] - 1))
    q = (scaled.gather(1, tokens[:, None])[:, 0] - lse).exp()
    sound = lse.isfinite()
    q = torch.where(greedy, 1.0, q).masked_fill(~sound, float("nan"))
    return tokens, q.float(), lse.masked_fill(~sound, float("nan")).float()


@Kernel
def temperature_of(temperatures, row):  # type: ignore[no-untyped-def]
    """What a row's logits are divided by: 1 for a greedy one, and never less than the smallest normal number."""
    given = tl.load(temperatures + row)
    return tl.where(given == 0, 1.0, tl.maximum(given, 1.1754943508222875e-38))


@Kernel
def pick(  # type: ignore[no-untyped-def]
    logits,  # [R, V], the step's rows
    logits_row,
    peaks,  # [R, TILES] fp32
    sums,  # [R, TILES] fp32
    bests,  # [R, TILES] int32: id of the tile's first largest entry
    ids,  # [R, V] the tokens that the entries stand for, with CANDIDATES
    ids_row,
    temperatures,
    keys,
    purposes,
    positions,
    tokens,  # [R, K + 1] int64: column ``step`` holds the token before, the next one is written
    q,  # [R, K]
    lse,
    confidence,
    bases,  # [R, K] fp32: a, with CONFIDENCE
    weights,  # [r]: w
    w1,  # [V, r]
    step,
    steps,  # K
    width,
    TILES: tl.constexpr,
    TILES_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,  # entries of a tile
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    CANDIDATES: tl.constexpr,
    CONFIDENCE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    one = tl.arange(0, 1)
    t = tl.arange(0, TILES_PADDED)
    greedy = tl.load(temperatures + row) == 0
    temperature = temperature_of(temperatures, row)
    tile_peaks = tl.load(peaks + row * TILES + t, t < TILES, float("-inf"))
    peak = tl.max(tile_peaks, 0)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    shares = tl.exp((tile_peaks - shift) / temperature).to(tl.float64)
    masses = tl.load(sums + row * TILES + t, t < TILES, 0).to(tl.float64) * shares
    total = tl.sum(masses, 0)
    draw = uniform(
        tl.load(keys + 2 * row + one),
        tl.load(keys + 2 * row + one + 1),
        tl.load(purposes + row + one),
        tl.load(positions + row + one).to(tl.int64) + step,
    )
    wanted = tl.sum(draw, 0) * total
    tile = first_above(t, tl.cumsum(masses, 0), masses, wanted, TILES_PADDED)
    missing = wanted - tl.sum(tl.where(t < tile, masses, 0.0), 0)

    i = tl.arange(0, BLOCK)
    v = tile * BLOCK + i
    entries = tl.load(logits + row * logits_row + v, v < width, float("-inf"))
    own = tl.max(tl.where(t == tile, shares, 0.0), 0)
    own_peak = tl.max(tl.where(t == tile, tile_peaks, float("-inf")), 0)
    own_peak = tl.where(own_peak == float("-inf"), 0.0, own_peak)
    p = tl.exp((entries - own_peak) / temperature).to(tl.float64) * own
    drawn = tile * BLOCK + first_above(i, tl.cumsum(p, 0), p, missing, BLOCK)

    first = tl.min(tl.where(tile_peaks == peak, t, TILES_PADDED), 0)
    best = tl.load(bests + row * TILES + tl.minimum(first, TILES - 1))
    chosen = tl.maximum(0, tl.minimum(tl.where(greedy, best, drawn), width - 1))
    mass = tl.exp((tl.load(logits + row * logits_row + chosen) - shift) / temperature) / total
    sound = (peak > float("-inf")) & (peak < float("inf")) & (total < float("inf"))
    tl.store(q + row * steps + step, tl.where(sound, tl.where(greedy, 1.0, mass), float("nan")).to(tl.float32))
    summed = shift / temperature + tl.log(tl.where(sound, total, 1.0).to(tl.float32))
    tl.store(lse + row * steps + step, tl.where(sound, summed, float("nan")))
    before = tl.load(tokens + row * (steps + 1) + step)
    token = chosen.to(tl.int64)
    if CANDIDATES:
        token = tl.load(ids + row * ids_row + chosen).to(tl.int64)
    tl.store(tokens + row * (steps + 1) + step + 1, token)
    if CONFIDENCE:
        j = tl.arange(0, RANK_PADDED)
        e = tl.load(w1 + before * RANK + j, j < RANK, 0).to(tl.float32)
        w = tl.load(weights + j, j < RANK, 0).to(tl.float32)
        score = tl.load(bases + row * steps + step) + tl.sum(w * e, 0)
        tl.store(confidence + row * steps + step, tl.sigmoid(score))
