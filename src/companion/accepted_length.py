r"""Accepted length tau: how many tokens one round yields, the bonus token included (paper, footnote 3).

A round drafts gamma tokens and keeps a prefix of them. With conditional acceptances c_1..c_gamma (c_k: position k
survives given that all earlier ones did) the prefix survivals are S_k = c_1 ... c_k, and

    tau = 1 + S_1 + ... + S_gamma,        1 <= tau <= gamma + 1.

If all c_k equal one a, this is tau(a, gamma) = (1 - a^(gamma+1)) / (1 - a) (Leviathan et al. 2023). Real drafters decay
along the block, so the i.i.d. form plans; it does not describe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from companion.arrays import Array, is_floating, like, namespace, to_numpy

_BISECTIONS = 60  # an interval of length 1 shrinks below the spacing of fp64 numbers near 1: 1 itself is reached


def _rate(a: NDArray[np.float64]) -> None:
    if not bool(((a >= 0) & (a <= 1)).all()):
        raise ValueError("the acceptance rate a must lie in [0, 1]; it is a probability, not a percentage")


def _depth(gamma: NDArray[np.float64], least: int) -> None:
    if not bool(((gamma >= least) & (gamma == np.floor(gamma)) & np.isfinite(gamma)).all()):
        raise ValueError(f"gamma must be a whole number of drafted tokens, at least {least}")


def _tau(a: NDArray[np.float64], gamma: NDArray[np.float64]) -> NDArray[np.float64]:
    # -expm1((gamma+1) ln a) / (1 - a): no cancellation for a near 1, where 1 - a is exact in floating point.
    miss = 1.0 - a
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = -np.expm1((gamma + 1.0) * np.log1p(-miss)) / miss
    return np.asarray(np.where(miss == 0.0, gamma + 1.0, ratio))


def tau(a: Any, gamma: Any) -> Any:
    """Expected tokens per round when each of ``gamma`` drafted tokens is accepted with chance ``a``, independently.

    tau(a, gamma) = 1 + a + ... + a^gamma = (1 - a^(gamma+1)) / (1 - a), and gamma + 1 at a = 1. Numbers, arrays and
    tensors, broadcast against one another; computed in fp64, returned in the dtype of ``a`` (a float for numbers).
    Raises ValueError unless 0 <= a <= 1 and gamma is a whole number >= 0.
    """
    rate, depth = to_numpy(a), to_numpy(gamma)
    _rate(rate)
    _depth(depth, 0)
    return like(_tau(rate, depth), a, gamma)


def solve_acceptance(tokens_per_round: Any, gamma: Any) -> Any:
    """The a in [0, 1] with tau(a, gamma) = ``tokens_per_round``: an i.i.d. rate that reproduces a measured mean.

    tau rises in a with slope at least 1, so the root is unique and as well determined as the mean itself. Accurate to a
    few units of 1e-16 times tau. Raises ValueError unless gamma >= 1 and 1 <= tokens_per_round <= gamma + 1 (tau
    includes the bonus token; a mean below 1 has probably left it out).
    """
    mean, depth = np.broadcast_arrays(to_numpy(tokens_per_round), to_numpy(gamma))
    _depth(depth, 1)
    if not bool(((mean >= 1.0) & (mean <= depth + 1.0)).all()):
        raise ValueError("tokens per round lie in [1, gamma + 1], as tau includes the bonus token; check the mean")
    low, high = np.zeros(mean.shape), np.ones(mean.shape)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        above = _tau(middle, depth) > mean
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return like(0.5 * (low + high), tokens_per_round, gamma)


def _curve(x: NDArray[Any] | Tensor, name: str) -> None:
    namespace(x)
    if not is_floating(x) or x.ndim == 0:
        raise ValueError(f"{name} must be floating-point, over positions; got {x.dtype}, shape {tuple(x.shape)}")


def survival_from_conditional(conditional: Array) -> Array:  # [..., gamma] -> [..., gamma]
    """S_k = c_1 ... c_k. NaN behind a c_k of 0 marks a position that no round reaches; its survival is 0."""
    _curve(conditional, "conditional acceptance")
    xp = namespace(conditional)
    reached = xp.cumsum(conditional == 0, -1) == 0
    filled = xp.where(reached, conditional, 0)
    if not bool(((filled >= 0) & (filled <= 1)).all()):
        raise ValueError("conditional acceptances must lie in [0, 1], and NaN may stand only behind a 0")
    return xp.cumprod(filled, -1)


def conditional_from_survival(survival: Array) -> Array:  # [..., gamma] -> [..., gamma]
    """c_k = S_k / S_{k-1} with S_0 = 1; NaN where S_{k-1} = 0: no round got there, so no rate exists."""
    _validate_survival(survival)
    xp = namespace(survival)
    before = xp.concatenate([xp.ones_like(survival[..., :1]), survival[..., :-1]], -1)
    return xp.where(before > 0, survival / xp.where(before > 0, before, 1), float("nan"))


def tau_from_survival(survival: Array) -> Array:  # [..., gamma] -> [...]
    """tau = 1 + sum_k S_k."""
    _validate_survival(survival)
    return 1 + survival.sum(-1)


def tau_from_conditional(conditional: Array) -> Array:  # [..., gamma] -> [...]
    """tau = 1 + c_1 + c_1 c_2 + ... + c_1 ... c_gamma."""
    return 1 + survival_from_conditional(conditional).sum(-1)


def _validate_survival(survival: NDArray[Any] | Tensor) -> None:
    _curve(survival, "prefix survival")
    if not bool(((survival >= 0) & (survival <= 1)).all()):
        raise ValueError("prefix survivals must lie in [0, 1] and not be NaN")
    if bool((survival[..., 1:] > survival[..., :-1]).any()):
        raise ValueError("prefix survival cannot rise along the block; these look like conditional acceptances")


def certified_tau(first: ArrayLike, gamma: ArrayLike) -> NDArray[np.float64]:
    """1 + gamma a: the most that a bound c_1 <= a on the first slot alone allows, every later slot being perfect."""
    rate, depth = to_numpy(first), to_numpy(gamma)
    _rate(rate)
    _depth(depth, 0)
    return np.asarray(1.0 + depth * rate)
