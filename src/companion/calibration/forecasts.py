"""How well a confidence head forecasts: the product c_1 .. c_k against whether the draft lived to slot k.

c_k of Eq. 7 is conditional, so that the forecast of prefix survival is its product. The outcome is what one round did:
1 where slot k was accepted, 0 where it or a slot before it was rejected; a slot that a stop token or the cap cut off is
no evidence. An outcome may also be the chance of survival, given what was drafted (analytic): the same mean with less
noise. With n forecasts f_i of outcomes y_i at a position,

    Brier  1/n sum_i (f_i - y_i)^2
    ECE    1/n sum_bins |sum_{i in bin} (f_i - y_i)|,  bin = floor(20 f), as DeepSpec's code has it

and over positions both are means weighted by n. Counts in bins add up over rounds, so that one count a prompt gives
scores and curves of any resample of the prompts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from companion.rounds import Round

F64 = NDArray[np.float64]
BINS = 20
SCORES = 4  # count, sum of forecasts, sum of outcomes, sum of squared errors


def probabilities(values: ArrayLike, what: str = "confidences") -> F64:
    """``values`` in fp64; ValueError for one that is NaN or lies outside [0, 1]."""
    found = np.asarray(values, dtype=np.float64)
    if np.isnan(found).any():
        raise ValueError(
            f"{what} are probabilities, and {np.isnan(found).sum()} of these are NaN; look where they arise"
        )
    if found.size and (found.min() < 0 or found.max() > 1):
        raise ValueError(f"{what} are probabilities; these run from {found.min():g} to {found.max():g}")
    return found


def survival(confidence: ArrayLike) -> F64:  # [..., K] -> [..., K]
    """Forecasts of prefix survival: c_1, c_1 c_2, ... ValueError for what is no probability."""
    return np.asarray(probabilities(confidence).cumprod(-1))


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
    if len(k) and not 1 <= k.min() <= k.max() <= positions:
        raise ValueError(f"positions run from {k.min():g} to {k.max():g}, and there are {positions}")
    return _binned(k.astype(int) - 1, positions, forecast, outcome)


def group_counts(
    forecast: F64,  # [n, K]
    outcome: F64,  # [n, K] 0, 1, or a chance
    judged: NDArray[np.bool_],  # [n, K]
    group: NDArray[np.int64],  # [n] of each row, a prompt say
    groups: int,
) -> F64:  # -> [G, K, BINS, 4]
    """`bin_counts` of every group of rows, for scores of resampled groups."""
    same_shape(forecast=forecast, outcome=outcome, judged=judged)
    if group.shape != forecast.shape[:1]:
        raise ValueError(f"every row has one group: got {group.shape} for {len(forecast)} rows")
    positions = forecast.shape[1]
    cell = group[:, None] * positions + np.arange(positions)
    counts = _binned(cell[judged], groups * positions, forecast[judged], outcome[judged])
    return counts.reshape(groups, positions, BINS, SCORES)


def _binned(cell: NDArray[np.int64], cells: int, forecast: F64, outcome: F64) -> F64:  # [n] -> [cells, BINS, 4]
    probabilities(forecast, "forecasts")
    place = cell * BINS + np.minimum((forecast * BINS).astype(int), BINS - 1)
    columns = (np.ones_like(forecast), forecast, outcome, (forecast - outcome) ** 2)
    counts = [np.bincount(place, column, cells * BINS) for column in columns]
    return np.stack(counts, -1).astype(np.float64).reshape(cells, BINS, SCORES)


def brier(counts: F64) -> F64:  # [..., K, BINS, 4] -> [...]
    """Mean squared error; nan without forecasts."""
    return _over(counts[..., 3].sum((-1, -2)), counts)


def ece(counts: F64) -> F64:  # [..., K, BINS, 4] -> [...]
    """Expected calibration error of each position, averaged over positions by their counts; nan without forecasts."""
    return _over(np.abs(counts[..., 1] - counts[..., 2]).sum((-1, -2)), counts)


def each_position(counts: F64) -> F64:  # [..., K, BINS, 4] -> [..., K, 1, BINS, 4]
    """Counts of which `brier` and `ece` give one value a position."""
    return np.expand_dims(counts, -3)


def _over(total: F64, counts: F64) -> F64:
    n = counts[..., 0].sum((-1, -2))
    return np.divide(total, n, out=np.full_like(n, np.nan), where=n > 0)


def reliability(counts: F64) -> tuple[F64, F64, F64]:  # [..., BINS, 4] -> [..., BINS] each
    """Mean forecast, mean outcome and count of each bin; nan where a bin is empty. The diagonal is calibration."""
    n, forecasts, outcomes = (counts[..., i] for i in range(3))
    mean = [np.divide(total, n, out=np.full_like(n, np.nan), where=n > 0) for total in (forecasts, outcomes)]
    return mean[0], mean[1], n


def same_shape(**arrays: NDArray[np.generic]) -> None:
    """ValueError unless all are [n, K] with the same n and K, and n, K > 0."""
    shapes = {name: array.shape for name, array in arrays.items()}
    first = next(iter(shapes.values()))
    if len(first) != 2 or 0 in first:
        raise ValueError(f"expected a row a block and a column a position, at least one of each; got shape {first}")
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"blocks must agree in number and in positions; got {listed}")
