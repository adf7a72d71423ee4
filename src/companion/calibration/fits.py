"""Temperatures from judged blocks, by name. Every fit looks along one grid, 0.05 to 5.00, and takes the first minimum.

    none      T = 1
    single    one T for all positions: the least mean ECE of the cumulative products (the review's foil)
    sts       position by position from the left, each with the least ECE of the product up to it, the earlier
              temperatures fixed (paper, section 3.2.1)
    nll       each position by itself: the least negative log-likelihood of its accept bits, where the slot was reached
    nll-pull  the same with (ln T)^2 / (2 s^2) nats added, as if ln T had a normal prior around 0 of deviation
              s = `PULL`: it decides where there is little data, and vanishes beside much

The paper gives neither the grid nor the bins of its ECE nor what it does about ties; these are DeepSpec's bins and a
choice. `fit` also takes chances of acceptance for the bits: the same fits with less noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit

from companion.calibration.forecasts import BINS, F64, probabilities, same_shape
from companion.calibration.temperatures import Temperatures

GRID: F64 = np.arange(1, 101) * 5 / 100
PULL = 0.25


def fit(
    method: str,
    logits: ArrayLike,  # [n, K] of the head
    accepted: ArrayLike,  # [n, K] each slot by itself: bits, or chances
    judged: ArrayLike | None = None,  # [n, K] False: no evidence, as behind a stop token; default: all
    *,
    drafter: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Temperatures:
    """Temperatures of K positions; ``drafter`` and ``provenance`` are kept with them.

    ValueError for another name than those of `METHODS`, for shapes that disagree, logits that are not finite,
    acceptance outside [0, 1], and a position without evidence (except for `none` and `nll-pull`, which then say 1).
    """
    if method not in METHODS:
        raise ValueError(f"there is no fit named {method!r}; choose one of {', '.join(METHODS)}")
    x, a = np.asarray(logits, dtype=np.float64), probabilities(accepted, "acceptances")
    seen = np.ones(a.shape, dtype=bool) if judged is None else np.asarray(judged, dtype=bool)
    same_shape(logits=x, accepted=a, judged=seen)
    if not np.isfinite(x).all():
        raise ValueError(f"{(~np.isfinite(x)).sum()} confidence logits are NaN or infinite; clip what has saturated")
    return Temperatures(method, METHODS[method](x, a, seen), drafter, provenance or {})


def product_errors(before: F64, logits: F64, outcome: F64) -> F64:  # [n], [n], [n] -> [100]
    """ECE of before * sigmoid(logits / T) at every T of the grid."""
    return np.array([_error(before * expit(logits / t), outcome) for t in GRID])


def _error(forecast: F64, outcome: F64) -> float:
    place = np.minimum((forecast * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(place, forecast - outcome, BINS)).sum() / len(forecast))


def _none(x: F64, accepted: F64, judged: F64) -> tuple[float, ...]:
    return (1.0,) * x.shape[1]


def _single(x: F64, accepted: F64, judged: F64) -> tuple[float, ...]:
    if not judged.any():
        raise ValueError("no slot of these blocks was judged, so that there is nothing to fit; record more blocks")
    lived, total = accepted.cumprod(1), np.zeros(len(GRID))
    for i, t in enumerate(GRID):
        forecast = expit(x / t).cumprod(1)
        for k in np.flatnonzero(judged.any(0)):
            rows = judged[:, k]
            total[i] += rows.sum() * _error(forecast[rows, k], lived[rows, k])
    return (float(GRID[total.argmin()]),) * x.shape[1]


def _sts(x: F64, accepted: F64, judged: F64) -> tuple[float, ...]:
    lived, forecast, found = accepted.cumprod(1), np.ones(len(x)), []
    for k in range(x.shape[1]):
        rows = judged[:, k]
        if not rows.any():
            raise ValueError(f"no slot at position {k + 1} was judged, so that it has no fit; record more blocks")
        found.append(float(GRID[product_errors(forecast[rows], x[rows, k], lived[rows, k]).argmin()]))
        forecast = forecast * expit(x[:, k] / found[-1])
    return tuple(found)


def _likeliest(pull: float) -> Callable[[F64, F64, F64], tuple[float, ...]]:
    def found(x: F64, accepted: F64, judged: F64) -> tuple[float, ...]:
        reached = judged.astype(np.float64)
        reached[:, 1:] *= accepted.cumprod(1)[:, :-1]
        return tuple(_one(k + 1, x[:, k], accepted[:, k], reached[:, k], pull) for k in range(x.shape[1]))

    return found


def _one(position: int, x: F64, accepted: F64, reached: F64, pull: float) -> float:
    if not pull and not reached.any():
        raise ValueError(f"no block reached position {position}, so that it has no fit; record more, or use nll-pull")
    scaled = x / GRID[:, None]  # [100, n]
    loss = -(reached * (accepted * log_expit(scaled) + (1 - accepted) * log_expit(-scaled))).sum(1)
    return float(GRID[(loss + pull * np.log(GRID) ** 2).argmin()])


METHODS: Mapping[str, Callable[[F64, F64, F64], tuple[float, ...]]] = {
    "none": _none,
    "single": _single,
    "sts": _sts,
    "nll": _likeliest(0.0),
    "nll-pull": _likeliest(1 / (2 * PULL**2)),
}
