"""Confidence: how good its forecasts of prefix survival are, and temperatures that mend them."""

from .fits import GRID, METHODS, PULL, fit, product_errors
from .forecasts import (
    BINS,
    F64,
    bin_counts,
    brier,
    each_position,
    ece,
    group_counts,
    probabilities,
    reliability,
    survival,
    survival_forecasts,
)
from .ranking import FINE_BINS, binned_auc, rank_auc
from .temperatures import Temperatures

__all__ = [
    "BINS",
    "F64",
    "FINE_BINS",
    "GRID",
    "METHODS",
    "PULL",
    "Temperatures",
    "bin_counts",
    "binned_auc",
    "brier",
    "each_position",
    "ece",
    "fit",
    "group_counts",
    "probabilities",
    "product_errors",
    "rank_auc",
    "reliability",
    "survival",
    "survival_forecasts",
]
