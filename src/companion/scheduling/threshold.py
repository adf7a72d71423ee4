r"""Static thresholds: a request verifies its draft up to a bar, whatever the load.

slot       while c_k >= bar                    (the authors' public code; their Figure 5)
prefix     while a_k = c_1 .. c_k >= bar
rejection  until 1 - a_k > bar, slot k with it  (SpecDec++, arXiv 2405.19715: stop once the chance that some draft
           so far is rejected passes the bar; the slot at which it passes is still sent)
"""

from __future__ import annotations

from typing import Literal, get_args

from companion.protocols import Frontier
from companion.scheduling.full_draft import FullDraft
from companion.scheduling.ranking import Calibrate, as_drafted, checked

Kind = Literal["slot", "prefix", "rejection"]


class Threshold(FullDraft):
    """ValueError for a kind that is none, or a bar outside [0, 1]."""

    def __init__(
        self, bar: float, kind: Kind = "slot", calibrate: Calibrate = as_drafted, depth: int | None = None
    ) -> None:
        super().__init__(depth)
        if kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
        if not 0.0 <= bar <= 1.0:
            raise ValueError(f"a threshold is a probability between 0 and 1, got {bar}")
        self.bar, self.kind, self.calibrate = float(bar), kind, calibrate
        self.name = f"{kind}-threshold-{bar:g}"

    def admit(self, frontier: Frontier) -> None:
        for row in range(len(frontier.requests)):
            self._admit(frontier, row)

    def _admit(self, frontier: Frontier, row: int) -> None:
        a = 1.0
        while (slot := frontier.admitted(row) + 1) <= frontier.drafted(row):
            c = checked(frontier, row, slot, self.calibrate)
            a *= c
            if (c if self.kind == "slot" else a) < self.bar and self.kind != "rejection":
                return
            frontier.admit(row)
            if self.kind == "rejection" and 1.0 - a > self.bar:
                return
