"""The five verdicts of the note, in its order, and the stop line that none of the last four may cross."""

from __future__ import annotations

import math
from typing import Literal

from companion.resampling import Interval

Verdict = Literal[
    "insufficient_data",
    "straddle_stop_line",
    "no_resolvable_gap",
    "opposite_direction",
    "within_domain_variation",
    "supported",
]
INCONCLUSIVE: frozenset[Verdict] = frozenset({"insufficient_data", "straddle_stop_line"})


def verdict(gap: Interval | None, between_domain_gap: float, *, over_the_line: bool = False) -> Verdict:
    """What a gap (accepted length inside the span minus outside, with its interval) says about H1.

    In this order: no test, so insufficient data; too many straddles, so none of the others (the protocol's 5 %); the
    interval holds 0; the gap is positive; it is no larger than what domains differ by anyway; supported. ValueError
    unless ``between_domain_gap`` is a finite number: compared with nan, everything would be supported.
    """
    if not math.isfinite(between_domain_gap):
        raise ValueError(f"the between-domain gap must be a finite number of tokens, got {between_domain_gap}")
    if gap is None:
        return "insufficient_data"
    if over_the_line:
        return "straddle_stop_line"
    if gap.low <= 0.0 <= gap.high:
        return "no_resolvable_gap"
    if gap.value > 0.0:
        return "opposite_direction"
    if abs(gap.value) <= abs(between_domain_gap):
        return "within_domain_variation"
    return "supported"
