"""Whole responses labelled at once, and what to do with a step whose tokens lie in both phases.

A step straddles if tokens of both phases are in it: `</think>` as its last token is wholly inside the span. Each policy
is a pair of weights with which a step counts in the two arms; all that a report computes is computed with them.

    exclude     neither arm (the note's default)
    to_think    the span's arm
    to_output   the arm outside
    by_token    both, each with its share of the committed tokens
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from companion.phase.tracker import PhaseTracker, ThinkTokens, straddles
from companion.protocols import Phase

StraddlePolicy = Literal["exclude", "to_think", "to_output", "by_token"]
POLICIES: tuple[StraddlePolicy, ...] = get_args(StraddlePolicy)
STOP_LINE = 0.05  # above it the protocol takes no verdict: the steps are too coarse for the spans


@dataclass(frozen=True, slots=True)
class Span:
    """Response tokens ``start`` to ``end`` - 1; the tags belong to it. Not closed: cut off inside."""

    start: int
    end: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Labelled:
    phases: tuple[Phase, ...]  # of each response token
    spans: tuple[Span, ...]
    opened_in_prompt: bool

    @property
    def truncated(self) -> bool:
        """Ended inside a span."""
        return bool(self.spans) and not self.spans[-1].closed

    def require_span(self) -> Labelled:
        """Itself; ValueError when there is no think span at all."""
        if not self.spans:
            raise ValueError("the response has no think span; was thinking on, and are these the tokenizer's tags?")
        return self


def label(tokens: Iterable[int], tags: ThinkTokens, prompt: Sequence[int] = ()) -> Labelled:
    """Phases and spans of one whole response, as the streaming tracker sees them token by token."""
    tracker = PhaseTracker(tags, prompt)
    opened = tracker.phase == "think"
    start = 0 if opened else None
    phases: list[Phase] = []
    spans: list[Span] = []
    for index, token in enumerate(tokens):
        before = tracker.spans_closed
        phases.append(tracker.push(token))
        if start is None and tracker.phase == "think":
            start = index
        if start is not None and tracker.spans_closed > before:
            spans.append(Span(start, index + 1, closed=True))
            start = None
    if start is not None:
        spans.append(Span(start, len(phases), closed=False))
    return Labelled(tuple(phases), tuple(spans), opened)


def shares(phases: Sequence[Phase], policy: StraddlePolicy) -> tuple[float, float]:
    """Weights of a step in the arms (think, output)."""
    if not straddles(phases):
        return (1.0, 0.0) if phases[0] == "think" else (0.0, 1.0)
    if policy == "by_token":
        inside = sum(phase == "think" for phase in phases) / len(phases)
        return inside, 1.0 - inside
    return {"exclude": (0.0, 0.0), "to_think": (1.0, 0.0), "to_output": (0.0, 1.0)}[policy]


@dataclass(frozen=True, slots=True)
class StraddleCount:
    """How much of what was recorded lies across a boundary; rates are None where nothing was recorded."""

    steps: int
    straddling: int
    tokens: int
    straddling_tokens: int

    @classmethod
    def of(cls, steps: Iterable[Sequence[Phase]]) -> StraddleCount:
        listed = list(steps)
        across = [phases for phases in listed if straddles(phases)]
        return cls(len(listed), len(across), sum(map(len, listed)), sum(map(len, across)))

    @property
    def rate(self) -> float | None:
        """Straddling steps / all recorded: the protocol's rate, high where spans are short."""
        return self.straddling / self.steps if self.steps else None

    @property
    def token_rate(self) -> float | None:
        """Committed tokens in straddling steps / all committed tokens."""
        return self.straddling_tokens / self.tokens if self.tokens else None

    @property
    def over_the_line(self) -> bool:
        return self.rate is not None and self.rate > STOP_LINE
