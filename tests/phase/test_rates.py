"""Rates are used where they were measured, and nowhere else."""

import pytest
from phase.origins import FIXTURE, measured

from companion.accepted_length import tau
from companion.phase.rates import MeasuredRates, PhaseRate
from companion.protocols import Sampling
from companion.resampling import Interval

THINK = PhaseRate(Interval(0.3, 0.25, 0.35))
OUTPUT = PhaseRate(Interval(0.8, 0.75, 0.85))
USE = {"target": "tiny-qwen3", "drafter": "dspark", "sampling": Sampling(1.0), "depth": 7}


def test_rates_serve_the_use_they_were_measured_in():
    rates = MeasuredRates(measured(), THINK, OUTPUT)
    rates.check(**USE)
    rates.check(**USE, target_revision="t" * 40, drafter_revision="d" * 40)
    assert rates.of("think") is THINK
    assert rates.of("output") is OUTPUT


@pytest.mark.parametrize(
    "other",
    [
        {"target": "Qwen/Qwen3-4B"},
        {"drafter": "dflash"},
        {"sampling": Sampling(0.0)},
        {"sampling": Sampling(1.0, top_k=20)},
        {"depth": 5},
        {"target_revision": "x"},
        {"drafter_revision": "x"},
    ],
)
def test_rates_measured_elsewhere_are_refused(other):
    with pytest.raises(ValueError, match=f"measured with {next(iter(other))}"):
        MeasuredRates(measured(), THINK, OUTPUT).check(**(USE | other))


def test_without_a_measured_run_there_are_no_rates():
    with pytest.raises(TypeError, match="only a measured run"):
        MeasuredRates(FIXTURE, THINK, OUTPUT)
    with pytest.raises(TypeError):
        MeasuredRates(think=THINK, output=OUTPUT)
    with pytest.raises(ValueError, match="censored"):
        MeasuredRates(measured(untrimmed=False), THINK, OUTPUT)
    with pytest.raises(ValueError, match="definition"):
        MeasuredRates(measured(), THINK, OUTPUT, "guessed")


@pytest.mark.parametrize("one", [(0.3, 0.4, 0.5), (0.6, 0.4, 0.5), (0.5, -0.1, 1.0), (0.5, 0.4, 1.1)])
def test_a_rate_lies_inside_its_interval(one):
    with pytest.raises(ValueError, match="inside its interval"):
        PhaseRate(Interval(*one))
    with pytest.raises(ValueError, match="inside its interval"):
        PhaseRate(Interval(0.5, 0.4, 0.6), (Interval(*one),))


def test_expected_tokens_come_from_the_curve_where_there_is_one():
    assert OUTPUT.tokens_per_round(4) == pytest.approx(tau(0.8, 4))
    assert OUTPUT.tokens_per_round(4, "low") == pytest.approx(tau(0.75, 4))
    assert OUTPUT.tokens_per_round(0) == 1.0
    curve = PhaseRate(Interval(0.8, 0.7, 0.9), (Interval(0.5, 0.4, 0.6), Interval(0.25, 0.1, 0.3)))
    assert curve.tokens_per_round(0) == 1.0
    assert curve.tokens_per_round(2) == pytest.approx(1 + 0.5 + 0.125)
    assert curve.tokens_per_round(2, "low") == pytest.approx(1 + 0.4 + 0.04)
    with pytest.raises(ValueError, match="known to depth 2"):
        curve.tokens_per_round(3)
    with pytest.raises(ValueError, match="3 positions, but the run drafted 2"):
        MeasuredRates(measured(depth=2), PhaseRate(THINK.rate, (THINK.rate,) * 3), OUTPUT)
