r"""What the target's distribution alone says about acceptance: entropy, EAT mass, and the bracket around the mode.

For a distribution over V tokens with entropy H (nats) and largest mass M (the note, Prop. 4)

    e^-H  <=  M  <=  p*(H, V),    p* the root on [1/V, 1] of   H = H_b(p) + (1 - p) ln(V - 1),

so that no deterministic drafter is accepted more often than p* (Cor. 5). The ceiling is reached at every H, by a spike
over an even tail; the floor only where e^H is a whole number n, by n equal tokens. Four warnings belong to the formula.
The distribution is the one that verification uses, after temperature and filters; V is its number of tokens, k after
top-k; a *sampled* proposal is not bound at all; and the entropy of a row is known only once the target has run on it.

**A drafter with m tokens** (`top_m_ceiling`). Let P be the mass of the m likeliest tokens. A proposal supported on a
set S of m tokens has c* = sum_S min(p_d, p_t) <= p_t(S) <= P, so a bound on P bounds it. Grouping the tokens into those
m and the others, the chain rule gives

    H = H_b(P) + P H(inside) + (1 - P) H(outside) <= H_b(P) + P ln m + (1 - P) ln(V - m) =: h(P),

since an entropy over n tokens is at most ln n. The derivative h'(P) = ln[(1 - P) m / (P (V - m))] is negative for
P > m/V, so h falls strictly from ln V at P = m/V (and P >= m/V, as the top m hold at least the average) to ln m at
P = 1. Hence for H > ln m the inequality H <= h(P) means P <= P*_m(H, V), the one root of H = h(P); for H <= ln m it
excludes nothing and the bound is 1. Both are attained: by m equal tokens over an equal tail, and by a law on m tokens.
m = 1 is Cor. 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr, xlog1py

from companion.acceptance import validate_distribution
from companion.arrays import Array, like, namespace, to_numpy

F64 = NDArray[np.float64]


def entropy(p: Array, *, check: bool = True) -> Array:  # [..., V] -> [...]
    """H = -sum_v p(v) ln p(v) in nats, with 0 ln 0 = 0. fp64 in, fp64 out: give fp64 where a bound is to be checked."""
    if check:
        validate_distribution(p)
    elementwise = torch.special.entr if namespace(p) is torch else entr
    return elementwise(p).sum(-1)


def eat_mass(p_t: Array, token_ids: Iterable[int], *, check: bool = True) -> Array:  # [..., V] -> [...]
    """e = sum_{v in E} p_t(v): the note's EAT, the target's mass on a set E of tokens that end the think span.

    (arXiv:2509.26522 gives the name EAT to another quantity, the entropy after an appended `</think>`.)
    """
    if check:
        validate_distribution(p_t, "p_t")
    ids = sorted(set(token_ids))
    if not ids or ids[0] < 0 or ids[-1] >= p_t.shape[-1]:
        raise ValueError(f"token_ids must name tokens between 0 and {p_t.shape[-1] - 1}, at least one; got {ids}")
    return p_t[..., ids].sum(-1)


def entropy_floor(H: Any) -> Any:
    """e^-H <= M (the note, Prop. 4). 0, which bounds nothing, where H is negative or not finite."""
    h = to_numpy(H)
    usable = np.isfinite(h) & (h >= 0.0)
    return like(np.where(usable, np.exp(-np.where(usable, h, 0.0)), 0.0), H)


def entropy_ceiling(H: Any, vocab_size: Any) -> Any:
    """p*(H, V) of Cor. 5: the largest mass that one token can hold at entropy H (nats) over ``vocab_size`` tokens.

    Numbers, arrays and tensors, broadcast; computed in fp64 and right to 1e-12 for every V and H, the ends included.
    Input that carries no bound gives 1 (H not finite or <= 0, vocab_size <= 1), so that a broken signal never shrinks a
    draft; H above ln V, which rounding can produce, counts as ln V. Near ln V the ceiling moves with the square root of
    ln V - H: an H that is wrong by 1e-15 moves it by about sqrt(2e-15 / V).
    """
    return top_m_ceiling(H, vocab_size, 1)


def top_m_ceiling(H: Any, vocab_size: Any, m: Any) -> Any:
    """P*_m(H, V): the largest mass that m tokens can hold at entropy H; 1 where H <= ln m or m >= V, m/V at H = ln V.

    It bounds c* of every drafter supported on m tokens (proof above). Odd input as in `entropy_ceiling`; raises
    ValueError unless m is a whole number >= 1. At H = ln V rounded to fp64 the answer is m/V; below it H is taken at
    its exact value.
    """
    h, v, k = np.broadcast_arrays(to_numpy(H), to_numpy(vocab_size), to_numpy(m))
    if not bool(((k >= 1.0) & (k == np.floor(k)) & np.isfinite(k)).all()):
        raise ValueError(f"m must be a whole number of tokens, at least 1, got {m}")
    bound = np.ones(h.shape)
    binds = np.isfinite(h) & (h > 0.0) & np.isfinite(v) & (v > np.maximum(k, 1.0))
    binds &= h > np.log(k)
    if bool(binds.any()):
        bound[binds] = _solve(_deficit(h[binds], v[binds]), v[binds], k[binds])
    return like(bound, H, vocab_size, m)


def spike_entropy(P: Any, vocab_size: Any, m: Any = 1) -> Any:
    """h(P) = H_b(P) + P ln m + (1 - P) ln(V - m): the largest entropy when m of V tokens share mass P (nats)."""
    p, v, k = to_numpy(P), to_numpy(vocab_size), to_numpy(m)
    if not bool(((p >= 0.0) & (p <= 1.0) & (k >= 1.0) & (v > k)).all()):
        raise ValueError("expected 0 <= P <= 1 and 1 <= m < vocab_size")
    return like(entr(p) + entr(1.0 - p) + p * np.log(k) + (1.0 - p) * np.log(v - k), P, vocab_size, m)


# The solver. Near H = ln V the curve h is flat, so that the root goes as the square root of the deficit ln V - H, and
# both must be formed without cancellation: ln V with its rounding error, ln V - h(P) as a relative entropy. Let x be
# the relative excess of the top m over their uniform share, P = (m/V) (1 + x), and y = -x m / (V - m) that of the rest:
#     ln V - h(P) = (m/V) phi(x) + (1 - m/V) phi(y),      phi(z) = (1 + z) ln(1 + z) - z  >=  0,
# which rises from 0 and is convex in x: Newton's method, kept inside a shrinking bracket.


@lru_cache(maxsize=4096)
def _log_parts(v: float) -> tuple[float, float]:
    """ln v as a sum of two fp64 numbers, from 60 digits of decimal arithmetic."""
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(v).ln()
        return float(exact), float(exact - Decimal(float(exact)))


def _deficit(h: F64, v: F64) -> F64:
    sizes, where = np.unique(v, return_inverse=True)
    parts = np.array([_log_parts(float(size)) for size in sizes])[where]
    return np.where(h >= parts[:, 0], 0.0, (parts[:, 0] - h) + parts[:, 1])


def _phi(z: F64) -> F64:
    # Its rounding error, about 1e-16 z, shifts the root x by 1e-16 only, since the slope of phi near 0 is z as well.
    return np.asarray(xlog1py(1.0 + z, z) - z)


def _solve(deficit: F64, v: F64, m: F64) -> F64:
    share, rest, odds = m / v, (v - m) / v, m / (v - m)
    low, high = np.zeros_like(v), 1.0 / odds
    # Exact to first order at both ends: the curve is a parabola in x near ln V, and almost a line in P for a large V.
    x = np.maximum(np.sqrt(2.0 * deficit / odds), deficit / np.log1p(high) / share - 1.0)
    x = np.minimum(x, (1.0 - 2.0**-50) * high)  # at the end itself the slope is infinite
    for _ in range(100):
        y = np.maximum(-x * odds, -1.0)
        excess = share * _phi(x) + rest * _phi(y) - deficit
        low, high = np.where(excess < 0.0, x, low), np.where(excess > 0.0, x, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = np.where(excess == 0.0, x, x - excess / (share * (np.log1p(x) - np.log1p(y))))
        settled = np.abs(newton - x) <= 2.0**-51 * (1.0 + x)
        x = np.where(settled | ((newton > low) & (newton < high)), newton, 0.5 * (low + high))
        if bool(settled.all()):
            break
    return np.clip(share * (1.0 + x), share, 1.0)
