"""Which steps are worth timing: those behind enough others of their kind.

What a step needs is in a processor's caches if the step before needed the same. Plain decoding of one request takes
longer behind a step that drafted, and some steps until it is itself again. So what is served for a while, one phase of
an answer at one depth, is timed behind others of its kind. The price is that kinds are timed some moments apart; where
that price is too high, `companion.experiments.capacity_profile` lets them alternate.
"""

from __future__ import annotations

SETTLING = 0.01  # seconds


class Settling:
    """Told of every step, it says which to keep."""

    def __init__(self) -> None:
        self._kind: object = None
        self._spent = 0.0

    def settled(self, kind: object, seconds: float) -> bool:
        """Whether the step that has just taken ``seconds`` began when its kind had run for `SETTLING` and for one step
        at least."""
        before = self._spent if kind == self._kind else 0.0
        self._kind, self._spent = kind, before + seconds
        return before >= SETTLING
