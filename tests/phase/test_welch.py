"""Welch's test against SciPy's, and where it has nothing to say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from companion.phase.welch import Moments, welch

LENGTHS = st.lists(st.integers(1, 8), min_size=2, max_size=40)


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")  # one arm without spread, in SciPy
@given(LENGTHS, LENGTHS)
def test_equals_scipy(one, other):
    found = welch(Moments.of(one), Moments.of(other))
    if len(set(one)) == len(set(other)) == 1:
        assert found is None
        return
    theirs = ttest_ind(one, other, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert found.t == pytest.approx(theirs.statistic)
    assert found.df == pytest.approx(theirs.df)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.difference == pytest.approx(np.mean(one) - np.mean(other))
    pooled = ((len(one) - 1) * np.var(one, ddof=1) + (len(other) - 1) * np.var(other, ddof=1)) / (
        len(one) + len(other) - 2
    )
    assert found.cohens_d == pytest.approx(found.difference / math.sqrt(pooled))


def test_known_numbers():
    """Means 2 and 5, variances 1 and 4, three steps each: se = sqrt(5/3), df = (5/3)^2 / (1/18 + 16/18) = 50/17."""
    found = welch(Moments.of([1, 2, 3]), Moments.of([3, 5, 7]))
    assert found.difference == pytest.approx(-3)
    assert found.standard_error == pytest.approx(math.sqrt(5 / 3))
    assert found.df == pytest.approx(50 / 17)
    assert found.cohens_d == pytest.approx(-3 / math.sqrt(2.5))


@pytest.mark.parametrize(("one", "other"), [([], [1, 2]), ([1], [1, 2]), ([2, 2], [3, 3, 3])])
def test_nothing_to_test(one, other):
    assert welch(Moments.of(one), Moments.of(other)) is None
    assert welch(Moments.of(other), Moments.of(one)) is None


def test_one_arm_without_spread_is_still_a_test():
    for one, other in (([2, 2, 2], [3, 5, 7]), ([3, 5, 7], [2, 2, 2])):
        found = welch(Moments.of(one), Moments.of(other))
        assert (found.standard_error, found.df) == pytest.approx((math.sqrt(4 / 3), 2))


def test_an_empty_arm_has_no_moments_and_one_step_no_variance():
    assert Moments.of([]) is None
    assert Moments.of([1, 2], [0, 0]) is None
    assert math.isnan(Moments.of([4]).variance)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=2, max_size=10))
def test_whole_weights_repeat_a_step(weighted):
    repeated = [x for x, n in weighted for _ in range(n)]
    one, other = Moments.of(repeated), Moments.of([x for x, _ in weighted], [n for _, n in weighted])
    assert (one.n, one.mean) == pytest.approx((other.n, other.mean))
    assert one.variance == pytest.approx(other.variance)
