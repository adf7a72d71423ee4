"""Intervals from responses: against the plain formulas, a bootstrap's coverage, and a control that fails."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase.origins import FIXTURE
from phase.traces import two_phase_steps
from scipy.stats import t, ttest_1samp

from companion.phase.estimate import Estimate, combination, dose_response, equivalence, from_residuals, ratio
from companion.phase.ledger import Ledger
from companion.phase.report import Report

PARTS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.integers(0, 4)), max_size=30)


def of(values):
    """The mean of one number a cluster, each cluster by its index."""
    return ratio((f"{i}", value, 1.0) for i, value in enumerate(values))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20).filter(lambda v: np.ptp(v) > 1e-3))
def test_one_number_a_cluster_is_the_ordinary_t_interval(values):
    """With equal denominators the linearised ratio is a mean, and the correction makes its variance s^2 / G."""
    found, theirs = of(values), ttest_1samp(values, 0.0)
    interval = theirs.confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(values))
    assert found.standard_error == pytest.approx(np.std(values, ddof=1) / math.sqrt(len(values)))
    assert (found.interval().low, found.interval().high) == pytest.approx((interval.low, interval.high))
    assert found.p_value() == pytest.approx(theirs.pvalue, abs=1e-12)


@given(PARTS)
def test_a_ratio_pools_and_its_terms_sum_to_zero(parts):
    found = ratio(parts)
    there = {cluster for cluster in "abcdef" if sum(d for c, _, d in parts if c == cluster)}
    if not there:
        assert found is None
        return
    kept = [part for part in parts if part[0] in there]
    assert found.value == pytest.approx(sum(n for _, n, _ in kept) / sum(d for _, _, d in kept))
    assert found.clusters == len(there)
    assert sum(found.influence.values()) == pytest.approx(0, abs=1e-9)
    assert (found.interval() is None) == (found.p_value() is None and found.standard_error is None)
    assert (found.standard_error is None) == (len(there) == 1)


@given(PARTS)
def test_how_a_cluster_is_cut_into_parts_is_all_the_same(parts):
    whole = {c: (sum(n for k, n, _ in parts if k == c), sum(d for k, _, d in parts if k == c)) for c in "abcdef"}
    one, other = ratio(parts), ratio((c, n, d) for c, (n, d) in whole.items())
    assert (one is None) == (other is None)
    if one and other and one.df:
        assert one.interval().low == pytest.approx(other.interval().low)


def test_what_two_estimates_share_is_paired():
    """Two measurements that move together differ by a constant: the difference has no spread, unpaired it has much."""
    values = [1.0, 5.0, 2.0, 8.0]
    paired = of(values) - of([v - 1 for v in values])
    assert paired.value == pytest.approx(1.0)
    assert paired.standard_error == pytest.approx(0.0, abs=1e-12)
    elsewhere = ratio((f"other {i}", v - 1, 1.0) for i, v in enumerate(values))
    apart = of(values) - elsewhere
    assert apart.standard_error == pytest.approx(math.sqrt(2) * of(values).standard_error)


def test_a_difference_of_paired_means_is_the_paired_t_test():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=12), rng.normal(1, 2, size=12)
    theirs = ttest_1samp(one - other, 0.0)
    assert (of(one) - of(other)).p_value() == pytest.approx(theirs.pvalue)


def test_combinations_and_slopes():
    one, two = of([1.0, 3.0]), of([4.0, 8.0])
    both = combination([(0.5, one), (2.0, two)])
    assert both.value == pytest.approx(0.5 * 2 + 2 * 6)
    assert both.influence["0"] == pytest.approx(0.5 * one.influence["0"] + 2 * two.influence["0"])
    with pytest.raises(ValueError, match="no estimate"):
        combination([])
    line = {dose: of([2 + 3 * dose - 1, 2 + 3 * dose + 1]) for dose in (0.0, 0.05, 0.5, 1.0)}
    assert dose_response(line).value == pytest.approx(3.0)
    with pytest.raises(ValueError, match="two doses"):
        dose_response({0.5: one})


def test_slope_equals_least_squares_and_a_common_shift_leaves_it_alone():
    rng = np.random.default_rng(1)
    rows = {dose: rng.normal(dose, 1, size=8) for dose in (0.0, 5.0, 50.0, 100.0)}
    slope = dose_response({dose: of(row) for dose, row in rows.items()})
    assert slope.value == pytest.approx(np.polyfit(list(rows), [row.mean() for row in rows.values()], 1)[0])
    shift = rng.normal(0, 50, size=8)  # prompts of very different ease, the same for every drafter
    shifted = dose_response({dose: of(row + shift) for dose, row in rows.items()})
    assert shifted.standard_error == pytest.approx(slope.standard_error)


@pytest.mark.parametrize("margin", [0.0, -1.0, math.inf, math.nan])
def test_a_margin_is_a_positive_number(margin):
    with pytest.raises(ValueError, match="margin"):
        equivalence(of([1.0, 2.0]), margin)


def test_equivalence_is_two_one_sided_tests():
    near = of([0.1, -0.1, 0.05, -0.05, 0.0, 0.02])
    shown = equivalence(near, 0.25)
    assert shown.equivalent
    above = ttest_1samp([0.1, -0.1, 0.05, -0.05, 0.0, 0.02], -0.25, alternative="greater").pvalue
    below = ttest_1samp([0.1, -0.1, 0.05, -0.05, 0.0, 0.02], 0.25, alternative="less").pvalue
    assert shown.p == pytest.approx(max(above, below))
    assert not equivalence(near, 0.05).equivalent
    far = of([1.0, 1.1, 0.9, 1.0])
    for side in (far, far * -1.0):
        assert not equivalence(side, 0.25).equivalent
    noisy = of([5.0, -5.0, 4.0, -4.0])  # no difference found, and yet no equality shown
    assert noisy.p_value() > 0.05
    assert not equivalence(noisy, 0.25).equivalent
    assert equivalence(ratio([("a", 1.0, 1.0)]), 0.25) is None


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12).filter(lambda v: np.ptp(v) > 1e-3), st.floats(0.05, 2))
def test_equivalent_iff_the_interval_lies_inside_the_margin(values, margin):
    found = equivalence(of(values), margin)
    inside = -margin < found.interval.low and found.interval.high < margin
    assert found.equivalent == inside or found.p == pytest.approx(0.05, abs=1e-6)


def coverage(runs, *, spread, unit):
    """How often the interval holds a true gap of 0, when responses differ in ease by ``spread`` in one phase only."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(runs):
        both = two_phase_steps(rng, responses=15, inside=0.5, outside=0.5, per_phase=15, spread=spread, name="x")
        other = two_phase_steps(rng, responses=15, inside=0.5, outside=0.5, per_phase=15, spread=spread, name="y")
        mixed = [s for s in both if s.phases[0] == "think"] + [s for s in other if s.phases[0] == "output"]
        interval = Report(Ledger(FIXTURE, mixed)).interval(unit)
        hits += interval.low <= 0.0 <= interval.high
    return hits / runs


def test_the_interval_by_response_covers_and_the_one_by_step_does_not():
    """The control: the same data, with steps taken for independent draws, misses the truth far more than 5 %."""
    assert coverage(150, spread=0.2, unit="responses") >= 0.89
    assert coverage(150, spread=0.2, unit="steps") <= 0.75


def test_without_dependence_the_two_agree():
    rng = np.random.default_rng(3)
    report = Report(Ledger(FIXTURE, two_phase_steps(rng, responses=60, inside=0.4, outside=0.7)))
    steps, responses = report.interval("steps"), report.interval("responses")
    assert responses.value == pytest.approx(steps.value)
    assert (responses.high - responses.low) / (steps.high - steps.low) == pytest.approx(1.0, abs=0.25)


def test_degrees_of_freedom_are_those_of_the_smallest_part():
    few, many = of([1.0, 2.0, 4.0]), of(range(10))
    both = few - many
    assert both.df == 2
    half = both.interval().high - both.value
    assert half == pytest.approx(t.ppf(0.975, 2) * both.standard_error)
    assert Estimate(1.0, {"a": 0.0}, 0).interval() is None
    assert from_residuals(1.0, {"a": 0.3}).standard_error is None
