"""The verdicts, in the note's order."""

import math

import pytest

from companion.phase.verdict import verdict
from companion.resampling import Interval

CLEAR, UNCLEAR, POSITIVE = Interval(-2.0, -2.5, -1.5), Interval(-0.2, -0.5, 0.1), Interval(1.0, 0.5, 1.5)


@pytest.mark.parametrize(
    ("gap", "between", "over", "expected"),
    [
        (None, 0.0, False, "insufficient_data"),
        (None, 9.0, True, "insufficient_data"),  # no test comes first
        (UNCLEAR, 0.0, True, "straddle_stop_line"),  # and above the line none of the four is taken
        (POSITIVE, 0.0, True, "straddle_stop_line"),
        (CLEAR, 9.0, True, "straddle_stop_line"),
        (CLEAR, 0.0, True, "straddle_stop_line"),
        (UNCLEAR, 9.0, False, "no_resolvable_gap"),
        (Interval(-1.0, -2.0, 0.0), 0.0, False, "no_resolvable_gap"),  # 0 at the very end is inside
        (Interval(1.0, 0.0, 2.0), 0.0, False, "no_resolvable_gap"),
        (POSITIVE, 9.0, False, "opposite_direction"),  # before the domains are asked
        (CLEAR, 2.0, False, "within_domain_variation"),  # equal is within
        (CLEAR, -3.0, False, "within_domain_variation"),  # a spread has no sign
        (CLEAR, 1.999, False, "supported"),
        (CLEAR, 0.0, False, "supported"),
    ],
)
def test_order(gap, between, over, expected):
    assert verdict(gap, between, over_the_line=over) == expected


@pytest.mark.parametrize("between", [math.nan, math.inf, -math.inf])
def test_a_spread_that_is_no_number_supports_nothing(between):
    with pytest.raises(ValueError, match="finite"):
        verdict(CLEAR, between)
