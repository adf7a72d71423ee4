r"""residual: what a rejection leaves, max(p - q, 0), part by part, and the place where a number falls in a mass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from companion.kernels.launch import Kernel
from companion.kernels.rows import inverse, joined

if TYPE_CHECKING:
    import triton.language as tl


@Kernel
def first_above(place, cumulative, mass, wanted, NONE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first place whose cumulative mass exceeds ``wanted``; if by rounding there is none, the last with mass."""
    reached = tl.min(tl.where((mass > 0.0) & (cumulative > wanted), place, NONE), 0)
    return tl.minimum(reached, tl.max(tl.where(mass > 0.0, place, 0), 0))


@Kernel
def split(  # type: ignore[no-untyped-def]
    logits, stride, width, drafted, starts, temperature, peak, total, laws, laws_stride, law_rows, warm,
    law_peak, law_total, r, row, part, count, KIND: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p of one part of a row, and max(p - q, 0), which is p itself in a request's last row."""
    scale = inverse(tl.load(temperature + r))
    m, s = joined(peak, total, row, count, scale, PARTS)
    column = part * BLOCK + tl.arange(0, BLOCK)
    held = column < width
    x = tl.load(logits + row * stride + column, held, -float("inf")).to(tl.float32)
    p = tl.exp((x - m) * scale) * (1.0 / s)
    last = row + 1 == tl.load(starts + r + 1)
    q = tl.where((column == tl.load(drafted + row)) & (last == 0), 1.0, 0.0)
    if KIND > 0:
        law = tl.load(law_rows + row).to(tl.int64)
        drawn = (law >= 0) & (last == 0)
        law = tl.where(drawn, law, 0)
        y = tl.load(laws + law * laws_stride + column, held & drawn, 0.0).to(tl.float32)
        if KIND == 2:
            cool = inverse(tl.load(warm + law, drawn, 1.0))
            n, z = joined(law_peak, law_total, law, count, cool, PARTS)
            y = tl.where(held, tl.exp((y - n) * cool) * (1.0 / z), 0.0)
        q = tl.where(drawn, y, q)
    return p, tl.maximum(p - q, 0.0)
