r"""rows: the first pass over logits that probe, overlap and verify share.

A row of 151,936 logits is cut into parts, and one program reads one part, whole, into registers. It leaves

    m = max x      s = sum e^d      t = sum e^d d      d = (x - m) / T

and the smallest place of m. Parts of a row are joined without reading it again, with w_i = e^((m_i - m) / T):

    m = max m_i      s = sum w_i s_i      t = sum w_i (t_i + s_i (m_i - m) / T)

so that ln sum e^(x/T) = m/T + ln s, the largest probability is 1/s, and the entropy is ln s - t/s. An entry of -inf (a
masked id) has e^d = 0 and adds nothing; in t its product 0 * -inf is left out. The joined s of a row that is no
distribution, with NaN, +inf or no finite entry at all, is NaN, and so is all that is made of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from companion.kernels.launch import Kernel, Tile, power_of_two, require, tile_for, values_known

if TYPE_CHECKING:
    import triton.language as tl

TILES = (Tile(8192, 8, 1), Tile(4096, 4, 1), Tile(16384, 16, 1))


def temperatures(given: Tensor | None, rows: int, device: torch.device) -> Tensor:  # [N] fp32 or None
    """One temperature for each row, 1 where none is given. ValueError where it does not fit, or is below 0 or NaN.

    On a GPU the values are not read: a temperature below 0 or NaN makes its row's numbers NaN.
    """
    if given is None:
        return torch.ones(rows, device=device)
    require("temperature", given, dtypes=(torch.float32,), shape=(rows,), device=device)
    if values_known(given) and not bool((given >= 0).all()):
        raise ValueError(f"temperature must be 0 (greedy) or above, got {given.min()} in one row; give one per row")
    return given


def tempered(logits: Tensor, temperature: Tensor) -> Tensor:  # [N, V], [N] -> [N, V]
    """For the references: logits whose softmax is the row at its temperature, their largest being 0.

    Temperature 0 keeps the first of the largest and makes the others -inf.
    """
    peak, best = logits.max(-1, keepdim=True)
    warm = temperature.to(logits.dtype).clamp_min(torch.finfo(logits.dtype).tiny)[:, None]
    one_hot = torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
    return torch.where(temperature[:, None] == 0, one_hot, (logits - peak) / warm)


class Parts(NamedTuple):
    peak: Tensor  # [N, P] fp32
    total: Tensor  # [N, P] fp32, s
    slope: Tensor  # [N, P] fp32, t
    best: Tensor  # [N, P] int32, place in the row
    tile: Tile

    @property
    def per_row(self) -> int:
        return int(self.peak.shape[1])

    @property
    def padded(self) -> int:
        """A power of 2 that holds all parts of a row."""
        return power_of_two(self.per_row)


def row_parts(logits: Tensor, temperature: Tensor, tile: Tile | None = None) -> Parts:  # [N, V], [N] fp32
    """Launch the first pass; both tensors are checked by the caller."""
    rows, width = logits.shape
    tile = tile or tile_for(TILES, width)
    count = -(-width // tile.block)
    peak, total, slope = (torch.empty(rows, count, device=logits.device) for _ in range(3))
    best = torch.empty(rows, count, dtype=torch.int32, device=logits.device)
    _row_parts[(rows, count)](
        logits,
        logits.stride(0),
        width,
        temperature,
        peak,
        total,
        slope,
        best,
        BLOCK=tile.block,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return Parts(peak, total, slope, best, tile)


@Kernel
def inverse(temperature):  # type: ignore[no-untyped-def]
    """1/T, kept finite; 1 for temperature 0, where only the place of the maximum is used; NaN below 0."""
    usable = tl.where(temperature == 0.0, 1.0, tl.maximum(temperature, 1.1754943508222875e-38))
    return tl.where(temperature < 0.0, float("nan"), 1.0 / usable)


@Kernel
def _row_parts(logits, stride, width, temperature, peak, total, slope, best, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + column, column < width, -float("inf")).to(tl.float32)
    m, place = tl.max(x, 0, return_indices=True)
    d = (x - tl.where(m == -float("inf"), 0.0, m)) * inverse(tl.load(temperature + row))
    e = tl.exp(d)
    here = row * tl.num_programs(1) + part
    tl.store(peak + here, m)
    tl.store(total + here, tl.sum(e, 0))
    tl.store(slope + here, tl.sum(e * tl.where(e == 0.0, 0.0, d), 0))
    tl.store(best + here, part * BLOCK + place)


@Kernel
def joined(peak, total, row, count, scale, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Peak and sum of a whole row from its parts; the sum is NaN in a row that is no distribution."""
    i = tl.arange(0, PARTS)
    m_i = tl.load(peak + row * count + i, i < count, -float("inf"))
    s_i = tl.load(total + row * count + i, i < count, 0.0)
    m = tl.max(m_i, 0)
    m = tl.where(m == -float("inf"), 0.0, m)
    s = tl.sum(s_i * tl.exp((m_i - m) * scale), 0)
    return m, tl.where(s > 0.0, s, float("nan"))


@Kernel
def joined_best(peak, best, row, count, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The smallest place of a row's maximum."""
    i = tl.arange(0, PARTS)
    m_i = tl.load(peak + row * count + i, i < count, -float("inf"))
    place = tl.load(best + row * count + i, i < count, 2147483647)
    return tl.min(tl.where(m_i == tl.max(m_i, 0), place, 2147483647), 0)
