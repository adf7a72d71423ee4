"""Forecasts of prefix survival: what counts as one, and two scores against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from companion.calibration import bin_counts, brier, ece, survival_forecasts
from companion.rounds import Round


def judged(accepted: int, confidence: list[float] | None, *, rejected: bool = True, verified: int = 3) -> Round:
    return Round(
        request=0, round=0, position=0, drafted=3, verified=verified, accepted=accepted, rejected=rejected,
        bonus=rejected, tokens=[], phases=["output"] * (accepted + rejected), confidence=confidence,
    )  # fmt: skip


def test_a_slot_counts_when_it_was_judged_or_lay_behind_a_rejection() -> None:
    half = [0.5, 0.5, 0.5]
    found = survival_forecasts([judged(1, half)])
    assert found.tolist() == [[1, 0.5, 1], [2, 0.25, 0], [3, 0.125, 0]]
    cut = survival_forecasts([judged(1, half, rejected=False)])  # ended by a stop token: no evidence about slot 2
    assert cut.tolist() == [[1, 0.5, 1]]
    assert survival_forecasts([judged(0, half, verified=2)])[:, 0].tolist() == [1, 2]
    assert survival_forecasts([judged(2, None)]).shape == (0, 3)


def test_scores_are_their_definitions_and_counts_add_up() -> None:
    generator = np.random.default_rng(0)
    k, forecast = generator.integers(1, 4, 900), generator.random(900)
    outcome = (generator.random(900) < forecast**2).astype(float)
    table = np.stack([k, forecast, outcome], 1)
    counts = bin_counts(table[:400], 3) + bin_counts(table[400:], 3)
    assert brier(counts) == pytest.approx(((forecast - outcome) ** 2).mean())
    total = 0.0
    for position in (1, 2, 3):
        for b in range(20):
            inside = (k == position) & (np.floor(20 * forecast) == b)
            if inside.any():
                total += inside.sum() * abs(forecast[inside].mean() - outcome[inside].mean())
    assert ece(counts) == pytest.approx(total / 900)


def test_an_honest_forecast_has_little_calibration_error_and_a_bold_one_much() -> None:
    generator = np.random.default_rng(1)
    truth = generator.random(20_000)
    outcome = (generator.random(20_000) < truth).astype(float)
    ones = np.ones(20_000)
    honest, bold = (bin_counts(np.stack([ones, f, outcome], 1), 1) for f in (truth, np.sqrt(truth)))
    assert ece(honest) < 0.02
    assert ece(bold) > 0.1
    assert brier(bold) > brier(honest)
    certain = bin_counts(np.array([[1, 1.0, 1.0], [1, 0.0, 0.0]]), 1)
    assert brier(certain) == ece(certain) == 0


def test_nothing_to_score_is_nan_and_what_is_no_forecast_is_refused() -> None:
    empty = bin_counts(np.zeros((0, 3)), 2)
    assert np.isnan(brier(empty))
    assert np.isnan(ece(empty))
    with pytest.raises(ValueError, match=r"probabilities; these run from 0.5 to 1.5"):
        bin_counts(np.array([[1, 0.5, 1], [1, 1.5, 1]]), 1)
    with pytest.raises(ValueError, match="positions run from 1 to 3, and there are 2"):
        bin_counts(np.array([[1, 0.5, 1], [3, 0.5, 1]]), 2)
