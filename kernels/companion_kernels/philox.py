r"""philox: random numbers that are a function of where they are used, equal in NumPy and on the device.

Philox 4x64 with 10 rounds (Salmon et al. 2011) maps a key and a counter to four words of 64 bits. One round is

    hi_0, lo_0 = M_0 c_0,   hi_1, lo_1 = M_1 c_2          products of 128 bits
    c <- (hi_1 ^ c_1 ^ k_0,  lo_1,  hi_0 ^ c_3 ^ k_1,  lo_0),   k <- k + W

A request's key is 128 bits (from the run's seed and the prompt), and the number used at ``position`` for a purpose is

    u = (word >> 11) 2^-53
    word = Philox(key, [1 + (position mod 256) div 4, position div 256, purpose, 0])[position mod 4]

which is what `numpy.random.Philox` gives when it is asked for 256 numbers at a time: the engine's draws are these, so
a device that computes them picks the engine's tokens. Nothing is stored, and no draw depends on another.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from companion.kernels.launch import Kernel

if TYPE_CHECKING:
    import triton.language as tl

CHUNK = 256  # numbers that NumPy makes at a time; any value gives other numbers, so it is part of the definition


@lru_cache(maxsize=4096)
def purpose_word(purpose: str) -> int:
    """64 bits that stand for a purpose's name in the counter."""
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


def chunk(key: np.ndarray, purpose: str, index: int) -> np.ndarray:  # key: [2] uint64
    """The numbers [CHUNK] of positions CHUNK * index and on."""
    bits = np.random.Philox(key=key, counter=np.array([0, index, purpose_word(purpose), 0], dtype=np.uint64))
    return np.random.Generator(bits).random(CHUNK)


def words(*values: int) -> Tensor:
    """Unsigned 64-bit words as int64 [n] with the same bits: how keys and purposes are handed to a kernel."""
    return torch.from_numpy(np.array(values, dtype=np.uint64).view(np.int64))


@Kernel
def uniform(key_0, key_1, purpose, position):  # type: ignore[no-untyped-def]  # int64, all of one shape
    """The fp64 number in [0, 1) of a key (two words), a purpose (one word) and a position >= 0."""
    k0 = key_0.to(tl.uint64, bitcast=True)
    k1 = key_1.to(tl.uint64, bitcast=True)
    position = position.to(tl.int64)
    c0 = (1 + (position % 256) // 4).to(tl.uint64)
    c1 = (position // 256).to(tl.uint64)
    c2 = purpose.to(tl.uint64, bitcast=True)
    c3 = c0 * 0
    for _ in tl.static_range(10):
        high_0 = tl.umulhi(c0, tl.full(c0.shape, 0xD2E7470EE14C6C93, tl.uint64))
        low_0 = c0 * tl.full(c0.shape, 0xD2E7470EE14C6C93, tl.uint64)
        high_1 = tl.umulhi(c2, tl.full(c0.shape, 0xCA5A826395121157, tl.uint64))
        low_1 = c2 * tl.full(c0.shape, 0xCA5A826395121157, tl.uint64)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0 += tl.full(c0.shape, 0x9E3779B97F4A7C15, tl.uint64)
        k1 += tl.full(c0.shape, 0xBB67AE8584CAA73B, tl.uint64)
    place = position % 4
    word = tl.where(place == 0, c0, tl.where(place == 1, c1, tl.where(place == 2, c2, c3)))
    return (word >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)


@Kernel
def _fill(out, keys, purposes, positions, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = i < count
    u = uniform(
        tl.load(keys + 2 * i, held, 0),
        tl.load(keys + 2 * i + 1, held, 0),
        tl.load(purposes + i, held, 0),
        tl.load(positions + i, held, 0),
    )
    tl.store(out + i, u, held)
