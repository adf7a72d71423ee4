"""The counterexamples: policies that look at drafted tokens before they decide whether to verify them.

They are not lossless (paper, appendix A: 0.85 where the target says 0.7) and exist so that the tests and the book can
catch them. The engine runs them only when asked for by name with ``allow_lossy``. A policy that is written against a
`companion.protocols.Frontier` cannot do what these do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from companion.protocols import Draft, Outcome, RequestView
from companion.scheduling.capacity import Capacity
from companion.scheduling.prefix import searched_lengths
from companion.scheduling.ranking import survival


class Retrospective:
    """Verifies ``choose(draft)`` tokens of each draft, with the whole draft in view. Changes the output's law."""

    def __init__(self, depth: int, choose: Callable[[Draft], int]) -> None:
        self.name, self.depth, self.choose = "retrospective", depth, choose

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        return [self.depth] * len(requests)

    def lengths(self, drafts: Sequence[Draft]) -> list[int]:
        """Verification length of each draft, chosen with hindsight."""
        return [self.choose(draft) for draft in drafts]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing of the past decides."""


class RetrospectiveSearch(Retrospective):
    """Algorithm 1 without its early stop: the best point of the whole path, by the confidences of this very step.

    c_{k+1} was computed from x_k, so that x_k helps to decide whether x_k is verified.
    """

    def __init__(self, capacity: Capacity, depth: int) -> None:
        self.name, self.depth, self.capacity = "retrospective-search", depth, capacity

    def lengths(self, drafts: Sequence[Draft]) -> list[int]:
        """Verification length of each draft."""
        return searched_lengths(confidence_table(drafts, self.depth), self.capacity).tolist()


class DeeperSlotFirst(Retrospective):
    """The best ``slots`` by survival with ties broken the wrong way: of equals the deeper slot, then the later request.

    A confidence of exactly 1 ties a slot with its predecessor. If the deeper one is ranked first, a request can win the
    last place through what it drafted there. Lengths are counts of the chosen slots, so no hole is ever verified; that
    does not help.
    """

    def __init__(self, slots: int, depth: int) -> None:
        self.name, self.depth, self.slots = "deeper-slot-first", depth, slots

    def lengths(self, drafts: Sequence[Draft]) -> list[int]:
        """Verification length of each draft."""
        rows = [row for row, _ in deeper_first(drafts, self.depth)[: self.slots]]
        return np.bincount(rows, minlength=len(drafts)).tolist()


class DeeperSlotFirstPrefix(Retrospective):
    """Algorithm 1 with its early stop and with that wrong order."""

    def __init__(self, capacity: Capacity, depth: int) -> None:
        self.name, self.depth, self.capacity = "deeper-slot-first-prefix", depth, capacity

    def lengths(self, drafts: Sequence[Draft]) -> list[int]:
        """Verification length of each draft."""
        requests, taken = len(drafts), [0] * len(drafts)
        tau = float(requests)
        best = tau / float(self.capacity.seconds(requests, requests))
        for tokens, (row, a) in enumerate(deeper_first(drafts, self.depth), start=requests + 1):
            tau += a
            theta = tau / float(self.capacity.seconds(tokens, requests))
            if theta <= best:
                break
            best, taken[row] = theta, taken[row] + 1
        return taken


def deeper_first(drafts: Sequence[Draft], depth: int) -> list[tuple[int, float]]:
    """Request and survival of every slot that can survive, best first, and of equals the deeper one."""
    a = survival(confidence_table(drafts, depth))
    cells = [(r, j) for r, j in np.ndindex(*a.shape) if a[r, j] > 0]
    return [(r, float(a[r, j])) for r, j in sorted(cells, key=lambda cell: (-a[cell], -cell[1], -cell[0]))]


def confidence_table(drafts: Sequence[Draft], depth: int) -> np.ndarray:  # -> [R, depth]
    """Confidences of all drafts, 0 beyond their ends. ValueError for a draft without any."""
    table = np.zeros((len(drafts), depth))
    for row, draft in enumerate(drafts):
        if len(draft) and draft.confidence is None:
            raise ValueError("this policy schedules by confidence and the drafter gives none")
        table[row, : len(draft)] = draft.confidence or []
    return table
