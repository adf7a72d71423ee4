"""Depth policies for the exact tests: what a policy may do, and what it may try."""

from __future__ import annotations

from companion.protocols import Frontier, Outcome, RequestView


class Threshold:
    """Per request: admit while the slot's confidence, known before its token, is high enough."""

    name = "threshold"

    def draft_depths(self, requests: list[RequestView]) -> list[int]:
        return [3 if view.position % 2 else 2 for view in requests]

    def admit(self, frontier: Frontier) -> None:
        for row in range(len(frontier.requests)):
            while (confidence := frontier.confidence(row)) is not None and confidence > 0.4:
                frontier.admit(row)

    def observe(self, outcomes: list[Outcome]) -> None: ...


class SharedBudget(Threshold):
    """Across requests: the most confident next slot first, until the batch's budget is used up."""

    def admit(self, frontier: Frontier) -> None:
        for _ in range(3):
            open_rows = [r for r in range(len(frontier.requests)) if frontier.admitted(r) < frontier.drafted(r)]
            if open_rows:
                frontier.admit(max(open_rows, key=lambda r: (frontier.confidence(r), -r)))


class LooksAtTheNeighbour(Threshold):
    """Slot 1 of the first request depends on the token revealed in the second: allowed, it came before."""

    def admit(self, frontier: Frontier) -> None:
        last = len(frontier.requests) - 1
        while frontier.admitted(last) < frontier.drafted(last):
            frontier.admit(last)
        for row in range(last):
            if frontier.revealed(last)[:1] == [0] and frontier.drafted(row):
                frontier.admit(row)


class DepthFromLength(Threshold):
    """Tries to learn the drafts' lengths before their tokens: what the frontier must not tell."""

    def admit(self, frontier: Frontier) -> None:
        for row in range(len(frontier.requests)):
            if frontier.drafted(row) != 1:
                while frontier.admitted(row) < frontier.drafted(row):
                    frontier.admit(row)
