"""What policies share that draft as deep as the drafter can and decide only what to verify."""

from __future__ import annotations

from collections.abc import Sequence

from companion.protocols import Outcome, RequestView

ALL = 1 << 30  # more than is ever drafted; the engine cuts a depth to what the drafter offers and the request needs


class FullDraft:
    """Drafts ``depth`` tokens in each round, by default as many as the drafter offers. Learns nothing from outcomes."""

    def __init__(self, depth: int | None = None) -> None:
        if depth is not None and (not hasattr(depth, "__index__") or depth < 0):
            raise ValueError(f"depth must be an integer >= 0, or None for all that the drafter offers, got {depth!r}")
        self.depth = ALL if depth is None else int(depth)

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        return [self.depth] * len(requests)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing of the past decides."""
