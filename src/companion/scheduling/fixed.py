"""Fixed depth: draft and verify the same number of tokens in every round."""

from __future__ import annotations

from collections.abc import Sequence

from companion.protocols import Frontier, Outcome, RequestView


class FixedDepth:
    """Draft ``depth`` tokens and verify all of them. Depth 0 is plain decoding."""

    def __init__(self, depth: int) -> None:
        if not hasattr(depth, "__index__") or depth < 0:
            raise ValueError(f"depth must be an integer >= 0, got {depth}; 0 is plain decoding")
        self.depth = depth
        self.name = f"fixed-{depth}"

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        return [self.depth] * len(requests)

    def admit(self, frontier: Frontier) -> None:
        admit_all(frontier)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing of the past decides."""


def admit_all(frontier: Frontier) -> None:
    """Every drafted slot of every request."""
    for row in range(len(frontier.requests)):
        while frontier.admitted(row) < frontier.drafted(row):
            frontier.admit(row)
