"""The counterexample: a policy that looks at a drafted token before it decides whether to verify it.

It is not lossless (paper, appendix A: 0.85 where the target says 0.7) and exists so that the tests and the book can
catch it. The engine runs it only when asked for by name with ``allow_lossy``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from companion.protocols import Draft, RequestView


class Retrospective:
    """Verifies ``choose(draft)`` tokens of each draft, with the whole draft in view. Changes the output's law."""

    def __init__(self, depth: int, choose: Callable[[Draft], int]) -> None:
        self.name, self.depth, self.choose = "retrospective", depth, choose

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        return [self.depth] * len(requests)

    def lengths(self, drafts: Sequence[Draft]) -> list[int]:
        """Verification length of each draft, chosen with hindsight."""
        return [self.choose(draft) for draft in drafts]
