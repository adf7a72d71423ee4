r"""fp8: a matrix in one byte a number, with one scale for each row.

    w(v, j) ~ s(v) f(v, j),   s(v) = max_j |w(v, j)| / 448,   f in e4m3: sign, 4 bits of exponent, 3 of mantissa

so that a row uses the whole range of the format and its largest entry is exact to rounding. For W_2 of the Markov head
that is V (r + 4) bytes instead of 2 V r: 39 MB for 78, which an H200 can keep in its cache from one drafted position to
the next. The rounding changes which distribution the drafter proposes from, not the output: q is computed from the
rounded matrix, and q is what the tokens are drawn from.

Decoded without hardware for it, so that an A100 can as well: with the sign moved to bit 15 and the other seven bits to
bits 13 to 7, the byte is an fp16 number, subnormal ones included, 2^8 times too small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from companion.kernels.launch import FLOATS, Kernel, require

if TYPE_CHECKING:
    import triton.language as tl

LARGEST = 448.0  # of e4m3


class Fp8Rows(NamedTuple):
    """A matrix of ``bits`` times ``scales``, row by row."""

    bits: Tensor  # [V, r] uint8: the bits of float8_e4m3fn
    scales: Tensor  # [V] fp32

    @classmethod
    def of(cls, matrix: Tensor) -> Fp8Rows:  # [V, r]
        """Each row scaled to the format's range and rounded to nearest even. ValueError for what is not finite."""
        require("matrix", matrix, dtypes=(*FLOATS, torch.float64), shape=(None, None))
        wide = matrix.float()
        if not bool(wide.isfinite().all()):
            raise ValueError("a matrix with NaN or infinite entries cannot be scaled to fp8")
        scales = wide.abs().amax(-1) / LARGEST
        scales = torch.where(scales > 0, scales, 1.0)
        bits = (wide / scales[:, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
        return cls(bits, scales)

    def matrix(self) -> Tensor:  # [V, r] fp32
        """What the bytes stand for."""
        return self.bits.view(torch.float8_e4m3fn).float() * self.scales[:, None]


@Kernel
def decode(bits):  # type: ignore[no-untyped-def]  # uint8
    """The fp16 numbers, 2^-8 times the values of e4m3."""
    wide = bits.to(tl.int16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
