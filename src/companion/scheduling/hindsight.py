r"""What confidences have been worth lately: a calibration that follows the traffic.

A fitted temperature belongs to the text it was fitted on, and it cannot move a confidence across one half. But a
scheduler hears what became of its drafts. Of every slot k let F_k be the sum of the confidences of those drafts that
were judged, and A_k how many were accepted, both forgetting slowly. Then

    c_k -> min(1, c_k (A_k + w) / (F_k + w))

is right on average for what was verified, whatever the drafter believes; w judgements' worth of trust in the drafter
keep it quiet at first. Only what is past enters, so that a policy may use it before anything is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

from companion.protocols import Outcome
from companion.scheduling.ranking import Calibrate, as_drafted


class Hindsight:
    """``calibrate``, and on top of it the record of the last ``memory`` judgements of a slot, about."""

    def __init__(self, calibrate: Calibrate = as_drafted, memory: int = 256, trust: float = 16.0) -> None:
        if not hasattr(memory, "__index__") or memory < 1:
            raise ValueError(f"memory must be an integer of at least 1 judgement, got {memory!r}")
        if not 0.0 < trust < float("inf"):
            raise ValueError(f"trust must be a positive number of judgements, got {trust!r}")
        self.calibrate, self.keep, self.trust = calibrate, 1.0 - 1.0 / memory, float(trust)
        self._sums: list[tuple[float, float]] = []  # accepted and forecast, of each slot

    @property
    def factors(self) -> list[float]:
        """What the confidences of each slot that was ever judged are multiplied by."""
        return [self._factor(slot) for slot in range(1, len(self._sums) + 1)]

    def _factor(self, slot: int) -> float:
        accepted, forecast = self._sums[slot - 1]
        return (accepted + self.trust) / (forecast + self.trust)

    def __call__(self, slot: int, confidence: float) -> float:
        c = self.calibrate(slot, confidence)
        return min(1.0, c * self._factor(slot)) if slot <= len(self._sums) and 0.0 <= c <= 1.0 else c

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """What became of rounds that are over. A slot is judged if all before it were accepted, and it was verified."""
        for o in outcomes:
            for slot, confidence in enumerate((o.confidence or ())[: o.accepted + o.rejected], start=1):
                if slot > len(self._sums):
                    self._sums.append((0.0, 0.0))
                accepted, forecast = self._sums[slot - 1]
                self._sums[slot - 1] = (
                    self.keep * accepted + (slot <= o.accepted),
                    self.keep * forecast + self.calibrate(slot, confidence),
                )
