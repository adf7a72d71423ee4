"""A fixed depth for each phase: what a calibrated hook comes down to while load and context stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from companion.protocols import Frontier, Outcome, RequestView
from companion.scheduling.fixed import admit_all


class DepthByPhase:
    """``think`` tokens inside the span and ``output`` outside, drafted and verified. Depth 0 is plain decoding."""

    def __init__(self, think: int, output: int) -> None:
        for name, depth in (("think", think), ("output", output)):
            if not hasattr(depth, "__index__") or depth < 0:
                raise ValueError(f"{name} must be an integer >= 0, got {depth!r}; 0 is plain decoding in that phase")
        self.depths = {"think": int(think), "output": int(output)}
        self.name = f"by-phase-{think}-{output}"

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        return [self.depths[view.phase] for view in requests]

    def admit(self, frontier: Frontier) -> None:
        admit_all(frontier)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing of the past decides but the phase."""
