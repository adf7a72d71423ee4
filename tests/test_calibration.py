"""Forecasts of prefix survival: what counts as one, their scores against definitions and against DeepSpec's numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from companion.calibration import (
    F64,
    bin_counts,
    binned_auc,
    brier,
    each_position,
    ece,
    group_counts,
    rank_auc,
    reliability,
    survival,
    survival_forecasts,
)
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


# --- against DeepSpec's numbers --------------------------------------------------------------------------------------

GOLDEN = Path(__file__).parent / "fixtures" / "golden"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((GOLDEN / "confidence.json").read_text(encoding="utf-8"))
    with np.load(GOLDEN / "confidence.npz") as stored:
        logits = stored["logits"]
        accepted = np.unpackbits(stored["accepted"], axis=1, count=5).astype(float)
        judged = np.arange(5) < stored["effective_length"][:, None]
        return numbers | {
            "logits": logits, "accepted": accepted, "judged": judged, "curves": stored["sts_ece_curves"],
        }  # fmt: skip


def product(logits: F64, temperatures: Sequence[float]) -> F64:
    """Forecasts as DeepSpec computes them: the sigmoid in fp32, its products in fp64."""
    x = torch.tensor(logits, dtype=torch.float32) / torch.tensor(temperatures, dtype=torch.float32)
    return x.sigmoid().double().cumprod(-1).clamp(1e-8, 1 - 1e-8).numpy()


@pytest.mark.parametrize("kind", ["raw", "calibrated"])
def test_scores_are_those_of_deepspec(golden: dict[str, Any], kind: str) -> None:
    forecast = product(golden["logits"], [1.0] * 5 if kind == "raw" else golden["temperatures"])
    lived, judged = golden["accepted"].cumprod(1), golden["judged"]
    counts = group_counts(forecast, lived, judged, np.zeros(400, dtype=np.int64), 1)[0]
    of = {name: [position[name] for position in golden[kind]] for name in ("ece", "brier", "auc")}
    np.testing.assert_allclose(ece(each_position(counts)), of["ece"], atol=1e-9)
    np.testing.assert_allclose(brier(each_position(counts)), of["brier"], atol=1e-9)
    assert ece(counts) == pytest.approx(golden[f"{kind}_summary"]["ece_mean"], abs=1e-9)
    assert brier(counts) == pytest.approx(golden[f"{kind}_summary"]["brier_mean"], abs=1e-9)
    rows = [(forecast[judged[:, k], k], lived[judged[:, k], k]) for k in range(5)]
    assert [binned_auc(*of_position) for of_position in rows] == pytest.approx(of["auc"], abs=1e-12)
    if kind == "raw":
        assert [float(rank_auc(*of_position)) for of_position in rows] == pytest.approx(golden["rank_auc"], abs=1e-12)
        for k, position in enumerate(golden["raw"]):
            forecasts, outcomes, n = reliability(counts[k])
            for known in position["reliability"]:
                found = forecasts[known["bin"]], outcomes[known["bin"]], n[known["bin"]]
                assert found == pytest.approx((known["avg_pred"], known["avg_target"], known["weight"]), abs=1e-7)
            assert n.sum() == sum(known["weight"] for known in position["reliability"])


# --- rank AUC, reliability, groups -----------------------------------------------------------------------------------


def test_rank_auc_counts_pairs_and_halves_ties() -> None:
    generator = np.random.default_rng(2)
    forecast = generator.integers(0, 12, 60) / 12  # many ties
    outcome = generator.integers(0, 2, 60).astype(float)
    lived, died = forecast[outcome == 1], forecast[outcome == 0]
    pairs = (lived[:, None] > died) + 0.5 * (lived[:, None] == died)
    assert rank_auc(forecast, outcome) == pytest.approx(pairs.mean())
    weights = generator.integers(0, 4, (5, 60)).astype(float)
    for each, found in zip(weights, rank_auc(forecast, outcome, weights), strict=True):
        drawn = np.repeat(np.arange(60), each.astype(int))  # a weight is a number of copies
        assert found == pytest.approx(float(rank_auc(forecast[drawn], outcome[drawn])))


def test_one_class_has_no_auc_and_what_is_no_forecast_is_refused() -> None:
    for outcome in (np.ones(4), np.zeros(4)):
        assert np.isnan(rank_auc(np.linspace(0, 1, 4), outcome))
        assert np.isnan(binned_auc(np.linspace(0, 1, 4), outcome))
    assert np.isnan(rank_auc(np.zeros(0), np.zeros(0)))
    with pytest.raises(ValueError, match="one outcome a forecast"):
        rank_auc(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError, match=r"forecasts are probabilities, and 1 of these are NaN"):
        rank_auc(np.array([0.5, np.nan]), np.ones(2))
    with pytest.raises(ValueError, match="outcomes are probabilities; these run from 0 to 2"):
        binned_auc(np.ones(2), np.array([0.0, 2.0]))
    with pytest.raises(ValueError, match=r"confidences are probabilities; these run from -0.1 to 0.5"):
        survival([0.5, -0.1])


def test_counts_of_groups_are_the_counts_of_their_rows() -> None:
    generator = np.random.default_rng(3)
    forecast, group = generator.random((200, 3)), generator.integers(0, 4, 200)
    outcome, judged = (generator.random((200, 3)) < 0.5).astype(float), generator.random((200, 3)) < 0.9
    counts = group_counts(forecast, outcome, judged, group, 4)
    for g in range(4):
        own = [
            (k + 1, forecast[i, k], outcome[i, k]) for i in np.flatnonzero(group == g) for k in range(3) if judged[i, k]
        ]
        np.testing.assert_allclose(counts[g], bin_counts(np.array(own), 3), atol=1e-12)
    mean, lived, n = reliability(counts.sum(0)[0])
    inside = judged[:, 0] & (np.floor(20 * forecast[:, 0]) == 7)
    assert (mean[7], lived[7], n[7]) == pytest.approx(
        (forecast[inside, 0].mean(), outcome[inside, 0].mean(), inside.sum())
    )
    with pytest.raises(ValueError, match=r"must agree in number and in positions; got forecast \(200, 3\), outcome"):
        group_counts(forecast, outcome[:, :2], judged, group, 4)
    with pytest.raises(ValueError, match="every row has one group"):
        group_counts(forecast, outcome, judged, group[:9], 4)
    with pytest.raises(ValueError, match="at least one of each"):
        group_counts(forecast[:0], outcome[:0], judged[:0], group[:0], 4)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40), st.randoms())
def test_ece_is_a_function_of_the_set_of_rows(rows: list[tuple[float, bool]], random: Any) -> None:
    table = np.array([(1, f, y) for f, y in rows], dtype=float)
    shuffled = table[random.sample(range(len(rows)), len(rows))]
    score = float(ece(bin_counts(table, 1)))
    assert 0 <= score <= 1
    assert ece(bin_counts(shuffled, 1)) == pytest.approx(score)
    assert ece(bin_counts(np.concatenate([table] * 3), 1)) == pytest.approx(score)  # copies weigh alike
    bias = abs(float((table[:, 1] - table[:, 2]).mean()))
    assert score >= bias - 1e-12  # bins can only take a cancellation apart
