"""The note's test: Welch's unequal-variance t on accepted length, inside the span minus outside.

It takes every step for an independent draw, which steps of one response are not; `companion.phase.estimate` has the
interval that does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moments:
    """Size, mean and variance (n - 1) of one arm; weights count as fractions of a step."""

    n: float
    mean: float
    variance: float

    @classmethod
    def of(cls, values: Sequence[float] | F64, weights: Sequence[float] | F64 | None = None) -> Moments | None:
        """None for an empty arm; the variance is nan with one step or less."""
        x = np.asarray(values, dtype=np.float64)
        w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
        n = float(w.sum())
        if n == 0:
            return None
        mean = float((w * x).sum() / n)
        return cls(n, mean, float((w * (x - mean) ** 2).sum() / (n - 1)) if n > 1 else math.nan)


@dataclass(frozen=True, slots=True)
class Welch:
    difference: float
    standard_error: float
    t: float
    df: float  # Welch-Satterthwaite
    p: float  # two-sided
    cohens_d: float  # pooled standard deviation
    low: float  # 95 % interval
    high: float


def welch(one: Moments | None, other: Moments | None, level: float = 0.95) -> Welch | None:
    """None where an arm has fewer than two steps, or both variances are 0."""
    from scipy.stats import t as student

    if one is None or other is None or one.n < 2 or other.n < 2 or one.variance == other.variance == 0.0:
        return None
    a, b = one.variance / one.n, other.variance / other.n
    difference, error = one.mean - other.mean, math.sqrt(a + b)
    df = (a + b) ** 2 / (a * a / (one.n - 1) + b * b / (other.n - 1))
    t = difference / error
    pooled = ((one.n - 1) * one.variance + (other.n - 1) * other.variance) / (one.n + other.n - 2)
    half = float(student.ppf((1 + level) / 2, df)) * error
    return Welch(
        difference=difference,
        standard_error=error,
        t=t,
        df=df,
        p=2.0 * float(student.sf(abs(t), df)),
        cohens_d=difference / math.sqrt(pooled),
        low=difference - half,
        high=difference + half,
    )
