"""Bootstrap over prompts and training seeds at once, for ratios of sums over responses.

Every drafter answers the same P prompts with each of its S seeds, so responses are crossed: those of one prompt share
its difficulty, those of one seed its weights. Both are resampled (Owen's pigeonhole bootstrap, 2007), prompts inside
their stratum, since the number of prompts of each domain was fixed and not drawn. Of S seeds S - 1 are drawn, which
makes the variance of their mean unbiased (Rao and Wu, 1988); of one seed nothing can be said about others, and its
interval is over prompts alone. Few seeds still make a percentile interval too short in its tails: show the seeds too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its interval; nan where there was nothing to divide by."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: F64, level: float = 0.95) -> Interval:  # [B]
        """Percentile interval; draws without a value are left out."""
        finite = draws[np.isfinite(draws)]
        if not len(finite) or not np.isfinite(value):
            return cls(value, np.nan, np.nan)
        low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
        return cls(float(value), min(float(low), value), max(float(high), value))


def prompt_weights(strata: NDArray[np.int64], resamples: int, generator: np.random.Generator) -> F64:  # [P] -> [B, P]
    """How often each prompt is drawn in each resample, the size of every stratum kept. ValueError below two."""
    _check(resamples)
    weights = np.zeros((resamples, len(strata)))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        weights[:, members] = generator.multinomial(len(members), np.full(len(members), 1 / len(members)), resamples)
    return weights


def seed_weights(seeds: int, resamples: int, generator: np.random.Generator) -> F64:  # -> [B, S]
    """How often each of S seeds is drawn, S - 1 in all; a single seed stays. ValueError below two."""
    _check(resamples)
    return generator.multinomial(max(1, seeds - 1), np.full(seeds, 1 / seeds), resamples).astype(float)


def pooled(parts: F64) -> float:  # [S, P, 2]
    """Sum of numerators over sum of denominators, nan without any."""
    numerator, denominator = parts.sum((0, 1))
    return float(numerator / denominator) if denominator else float("nan")


def pooled_draws(parts: F64, prompts: F64, seeds: F64) -> F64:  # [S, P, 2], [B, P], [B, S] -> [B]
    """The pooled ratio of each resample; nan where nothing is left to divide by."""
    sums = np.stack([((seeds @ parts[..., i]) * prompts).sum(1) for i in (0, 1)])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sums[1] > 0, sums[0] / sums[1], np.nan)


def per_response(parts: F64) -> F64:  # [..., 2] -> [..., 2]
    """Ratios of single responses as parts of their mean: responses without a value count as none."""
    there = parts[..., 1] > 0
    ratios = np.divide(parts[..., 0], parts[..., 1], out=np.zeros_like(parts[..., 0]), where=there)
    return np.stack([ratios, there.astype(float)], -1)


def _check(resamples: int) -> None:
    if resamples < 2:
        raise ValueError(f"resamples must be at least 2 for an interval, got {resamples}")
