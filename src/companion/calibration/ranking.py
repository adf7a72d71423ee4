"""How well a forecast ranks: the area under the ROC curve, exactly and from a histogram.

AUC = P(f_i > f_j) + P(f_i = f_j) / 2 for i drawn from the rows that lived and j from those that did not. An outcome
may be a chance y: the row then counts as y of a survivor and 1 - y of a failure. With y = f the result is what a
forecaster with these forecasts would reach if every one of them were right, on the very same rows.
"""

from __future__ import annotations

import numpy as np

from companion.calibration.forecasts import F64, probabilities

FINE_BINS = 1000


def rank_auc(forecast: F64, outcome: F64, weights: F64 | None = None) -> F64:  # [n], [n], [..., n] -> [...]
    """Exact AUC, ties half, for each vector of row weights (default: all 1); nan where one of the classes is empty."""
    _check(forecast, outcome)
    weights = np.ones(len(forecast)) if weights is None else weights
    order = np.argsort(forecast, kind="stable")
    _, starts = np.unique(forecast[order], return_index=True)
    lived, died = ((weights * of)[..., order] for of in (outcome, 1 - outcome))
    if len(starts):
        lived, died = np.add.reduceat(lived, starts, -1), np.add.reduceat(died, starts, -1)
    return _area(lived, died)


def binned_auc(forecast: F64, outcome: F64, bins: int = FINE_BINS) -> float:  # [n], [n]
    """AUC from a histogram, half for pairs in one bin: DeepSpec's, off by what happens inside a bin."""
    _check(forecast, outcome)
    place = np.minimum((forecast * bins).astype(int), bins - 1)
    lived, died = (np.bincount(place, of, bins).astype(np.float64) for of in (outcome, 1 - outcome))
    return float(_area(lived, died))


def _area(lived: F64, died: F64) -> F64:  # [..., groups of equal forecasts, ascending] -> [...]
    below = died.cumsum(-1) - died
    pairs = lived.sum(-1) * died.sum(-1)
    won = (lived * (below + died / 2)).sum(-1)
    return np.asarray(np.divide(won, pairs, out=np.full_like(pairs, np.nan), where=pairs > 0))


def _check(forecast: F64, outcome: F64) -> None:
    if forecast.shape != outcome.shape or forecast.ndim != 1:
        raise ValueError(f"one outcome a forecast, in one row: got shapes {forecast.shape} and {outcome.shape}")
    probabilities(forecast, "forecasts")
    probabilities(outcome, "outcomes")
