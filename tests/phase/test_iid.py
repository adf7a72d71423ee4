"""The rate solved from tau: known cases, the closed form, and why the note's rate is another number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase.traces import steps, two_phase_steps

from companion.accepted_length import solve_acceptance, tau
from companion.phase.estimate import ratio
from companion.phase.iid import solved_rate
from companion.phase.ledger import Step


def weighted(listed):
    return [(step, 1.0) for step in listed]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=30))
def test_equal_proposals_give_the_closed_form(lengths):
    found = solved_rate(weighted(steps(" ".join("o" * n for n in lengths))))
    assert found.value == pytest.approx(solve_acceptance(float(np.mean(lengths)), 7), abs=1e-12)


@given(st.lists(st.tuples(st.integers(1, 7), st.floats(0, 1)), min_size=1, max_size=20))
def test_the_rate_reproduces_the_total_over_drafts_of_any_length(drawn):
    listed = [Step("a", ("output",) * (round(g * share) + 1), g, round(g * share)) for g, share in drawn]
    rate = solved_rate(weighted(listed)).value
    assert sum(float(tau(rate, s.proposed)) for s in listed) == pytest.approx(sum(s.length for s in listed))


@pytest.mark.parametrize(("word", "rate"), [("o", 0.0), ("oooooooo", 1.0)])
def test_the_ends(word, rate):
    assert solved_rate(weighted(steps(f"{word} {word}"))).value == rate


def test_steps_without_drafts_and_steps_cut_short_say_nothing():
    assert solved_rate([]) is None
    assert solved_rate(weighted(steps("o o", proposed=0))) is None
    cut = Step("a", ("output",) * 2, 7, 2)
    assert solved_rate(weighted([cut])) is None
    assert solved_rate(weighted([*steps("ooo oo"), cut])) == solved_rate(weighted(steps("ooo oo")))


@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_the_notes_rate_is_not_the_planners(rate):
    """tau(a, 7) / 8 is 0.52 for a = 0.8 and 0.18 for a = 0.3; the solved rate gives a back."""
    rng = np.random.default_rng(0)
    drawn = [s for s in two_phase_steps(rng, responses=100, inside=rate, outside=rate) if s.phases[0] == "think"]
    found = solved_rate(weighted(drawn))
    assert found.interval().low < rate < found.interval().high
    notes = sum(s.length for s in drawn) / sum(s.proposed + 1 for s in drawn)
    assert notes == pytest.approx(float(tau(rate, 7)) / 8, abs=0.02)
    assert notes < found.value - 0.1


def test_its_error_is_that_of_the_mean_over_the_slope_of_tau():
    """With equal proposals the rate is a function of the mean alone, so the delta method is exact to first order."""
    drawn = two_phase_steps(np.random.default_rng(1), responses=10, inside=0.6, outside=0.6)
    found, mean = solved_rate(weighted(drawn)), ratio((s.cluster, s.length, 1.0) for s in drawn)
    slope = (float(tau(found.value + 1e-6, 7)) - float(tau(found.value - 1e-6, 7))) / 2e-6
    assert found.standard_error == pytest.approx(mean.standard_error / slope, rel=1e-6)


def test_its_interval_covers():
    rng, hits = np.random.default_rng(0), 0
    for _ in range(100):
        drawn = two_phase_steps(rng, responses=20, inside=0.6, outside=0.6, per_phase=8)
        interval = solved_rate(weighted(drawn)).interval()
        hits += interval.low <= 0.6 <= interval.high
    assert hits >= 89
