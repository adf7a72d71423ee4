"""Which steps are worth timing: those behind enough others of their kind.

What a step needs is in a processor's caches if the step before needed the same. Plain decoding of one request takes a
quarter longer behind a step that drafted, and is itself again after four or five steps, some ten milliseconds; steps of
many requests are longer than that, and the first behind a change is all that differs. So a kind that is timed for what
it takes where it is served has to run for a while first, and kinds may not alternate step by step.
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
