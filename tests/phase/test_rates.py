"""Rates are used where they were measured, and nowhere else."""

import numpy as np
import pytest
from phase.origins import FIXTURE, measured
from phase.traces import steps, two_phase_steps

from companion.phase.ledger import Ledger
from companion.phase.rates import AT_LEAST, MeasuredRates, PhaseRate
from companion.phase.report import Report
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
    with pytest.raises(ValueError, match=f"measured with {next(iter(other)).removesuffix('_revision')} "):
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


def test_a_curve_is_no_longer_than_the_drafts_it_was_measured_on():
    with pytest.raises(ValueError, match="3 positions, but the run drafted 2"):
        MeasuredRates(measured(depth=2), PhaseRate(THINK.rate, (THINK.rate,) * 3), OUTPUT)
    assert (
        MeasuredRates(measured(depth=3), PhaseRate(THINK.rate, [THINK.rate] * 3), OUTPUT).think.curve
        == (THINK.rate,) * 3
    )


def measured_report(rng, *, inside=0.3, outside=0.8, responses=30, **changes):
    return Report(
        Ledger(measured(**changes), two_phase_steps(rng, responses=responses, inside=inside, outside=outside))
    )


def test_rates_of_a_measured_report_hold_the_truth():
    report = measured_report(np.random.default_rng(0))
    rates = MeasuredRates.from_report(report)
    for phase, truth in ((rates.think, 0.3), (rates.output, 0.8)):
        assert phase.rate.low < truth < phase.rate.high
        assert phase.curve[0].low < truth < phase.curve[0].high
        assert phase.rate.high - phase.rate.low < 0.1
    assert len(rates.output.curve) == 7
    known = [position.judged >= AT_LEAST for position in report.curve("think")]
    assert len(rates.think.curve) == sum(known) < len(known)  # some drafts got deeper, too few to know a rate by


def test_the_notes_rate_is_there_by_its_name_and_is_smaller():
    report = measured_report(np.random.default_rng(0))
    notes, solved = MeasuredRates.from_report(report, "token_acceptance"), MeasuredRates.from_report(report)
    assert notes.definition == "token_acceptance"
    assert notes.output.rate.value == report.output.token_acceptance.value
    assert notes.output.rate.high < solved.output.rate.low


def test_a_rate_of_one_keeps_a_margin_below():
    """Everything was accepted: responses show no spread, but finitely many steps prove no certainty."""
    rates = MeasuredRates.from_report(measured_report(np.random.default_rng(0), outside=0.98, responses=3))
    for position in rates.output.curve:
        assert position.low < 0.99
        assert position.low <= position.value <= position.high <= 1.0


def test_too_little_for_a_rate():
    thin = Report(Ledger(measured(), steps("tt tt oo o")))
    with pytest.raises(ValueError, match="think phase has 2 steps of 1 responses"):
        MeasuredRates.from_report(thin)
    with pytest.raises(ValueError, match="output phase has 0 steps"):
        MeasuredRates.from_report(Report(Ledger(measured(), steps("tt t") + steps("ttt t", cluster="b"))))
    with pytest.raises(ValueError, match="censored"):
        MeasuredRates.from_report(measured_report(np.random.default_rng(0), untrimmed=False))
    with pytest.raises(TypeError, match="SYNTHETIC"):
        MeasuredRates.from_report(Report(Ledger(FIXTURE, thin.ledger.steps)))
