"""How well a confidence head forecasts: the product c_1 .. c_k against whether the draft lived to slot k.

c_k of Eq. 7 is conditional, so that the forecast of prefix survival is its product. The outcome is what one round did:
1 where slot k was accepted, 0 where it or a slot before it was rejected; a slot that a stop token or the cap cut off is
no evidence. With n forecasts f_i of outcomes y_i at a position,

    Brier  1/n sum_i (f_i - y_i)^2
    ECE    1/n sum_bins |sum_{i in bin} (f_i - y_i)|,  bin = floor(20 f), as DeepSpec's code has it

and over positions both are means weighted by n.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from companion.rounds import Round

F64 = NDArray[np.float64]
BINS = 20


def survival_forecasts(rounds: Iterable[Round]) -> F64:  # -> [n, 3]
    """Position k (from 1), forecast and outcome of every judged slot of the rounds that have confidences."""
    found: list[tuple[int, float, bool]] = []
    for r in rounds:
        if r.confidence is None:
            continue
        forecast = 1.0
        for k, c in enumerate(r.confidence[: r.verified], 1):
            forecast *= c
            if r.rejected or r.accepted >= k:
                found.append((k, forecast, r.accepted >= k))
    return np.array(found, dtype=np.float64).reshape(-1, 3)


def bin_counts(forecasts: F64, positions: int) -> F64:  # [n, 3] -> [K, BINS, 4]
    """Count, sum of forecasts, sum of outcomes and sum of squared errors in each bin of each position.

    Counts of several rounds add up; `brier` and `ece` read them. ValueError for a forecast outside [0, 1] or a position
    beyond ``positions``.
    """
    k, forecast, outcome = forecasts.T
    if len(k) and (forecast.min() < 0 or forecast.max() > 1):
        raise ValueError(f"forecasts are probabilities; these run from {forecast.min():g} to {forecast.max():g}")
    if len(k) and not 1 <= k.min() <= k.max() <= positions:
        raise ValueError(f"positions run from {k.min():g} to {k.max():g}, and there are {positions}")
    place = (k.astype(int) - 1) * BINS + np.minimum((forecast * BINS).astype(int), BINS - 1)
    columns = (np.ones_like(k), forecast, outcome, (forecast - outcome) ** 2)
    counts = [np.bincount(place, column, positions * BINS) for column in columns]
    return np.stack(counts, -1).astype(np.float64).reshape(positions, BINS, 4)


def brier(counts: F64) -> F64:  # [..., K, BINS, 4] -> [...]
    """Mean squared error; nan without forecasts."""
    return _over(counts[..., 3].sum((-1, -2)), counts)


def ece(counts: F64) -> F64:  # [..., K, BINS, 4] -> [...]
    """Expected calibration error of each position, averaged over positions by their counts; nan without forecasts."""
    return _over(np.abs(counts[..., 1] - counts[..., 2]).sum((-1, -2)), counts)


def _over(total: F64, counts: F64) -> F64:
    n = counts[..., 0].sum((-1, -2))
    return np.divide(total, n, out=np.full_like(n, np.nan), where=n > 0)
