"""What a ledger says of the two phases, in the note's definitions and beside them what they lack.

A report is a view of its ledger, so that no number can be parted from the origin of its steps: `Report[Measured]` and
`Report[Synthetic]` compute the same things, and only the first can become a claim or rates to plan with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Literal, final

from companion.phase.estimate import Estimate, ratio
from companion.phase.iid import solved_rate
from companion.phase.ledger import Ledger, Step
from companion.phase.origin import O_co
from companion.phase.positions import Position, conditional_curve
from companion.phase.straddle import StraddleCount, StraddlePolicy, shares
from companion.phase.verdict import Verdict, verdict
from companion.phase.welch import Moments, Welch, welch
from companion.protocols import Phase
from companion.resampling import Interval

Unit = Literal["steps", "responses"]


@dataclass(frozen=True)
class Arm:
    """One phase: its steps with their weights. Every figure is None where there is nothing to divide by."""

    phase: Phase
    weighted: tuple[tuple[Step, float], ...]

    @property
    def steps(self) -> float:
        """How many; a fraction where straddling steps count by token."""
        return sum(weight for _, weight in self.weighted)

    @property
    def responses(self) -> int:
        return len({step.cluster for step, _ in self.weighted})

    @cached_property
    def moments(self) -> Moments | None:
        return Moments.of([s.length for s, _ in self.weighted], [w for _, w in self.weighted])

    @cached_property
    def mean_length(self) -> Estimate | None:
        """Mean accepted length: committed tokens / steps."""
        return ratio((s.cluster, w * s.length, w) for s, w in self.weighted)

    @cached_property
    def token_acceptance(self) -> Estimate | None:
        """The note's token acceptance rate, DeepSpec's verify_rate: committed / (proposed + steps)."""
        return ratio((s.cluster, w * s.length, w * (s.proposed + 1)) for s, w in self.weighted)

    @cached_property
    def accepted_per_judged(self) -> Estimate | None:
        """Accepted / (accepted + rejected): the rate of single slots, all positions pooled."""
        return ratio((s.cluster, w * s.accepted, w * s.judged) for s, w in self.weighted)

    @cached_property
    def solved_rate(self) -> Estimate | None:
        """The a with tau(a, gamma) = mean accepted length: the planner's a."""
        return solved_rate(self.weighted)

    @property
    def standard_deviation(self) -> float | None:
        """Of accepted length over steps, n - 1."""
        return self.moments.variance**0.5 if self.moments and self.moments.n > 1 else None


@final
@dataclass(frozen=True)
class Report(Generic[O_co]):
    ledger: Ledger[O_co]

    @property
    def origin(self) -> O_co:
        return self.ledger.origin

    @cached_property
    def think(self) -> Arm:
        return self._arm("think")

    @cached_property
    def output(self) -> Arm:
        return self._arm("output")

    def arm(self, phase: Phase) -> Arm:
        return self.think if phase == "think" else self.output

    def curve(self, phase: Phase) -> list[Position]:
        """Conditional acceptance by draft position."""
        return conditional_curve(self.ledger.steps, phase, self.ledger.straddle)

    @cached_property
    def straddles(self) -> StraddleCount:
        return StraddleCount.of(step.phases for step in self.ledger.steps)

    @cached_property
    def test(self) -> Welch | None:
        """The note's test, step by step."""
        return welch(self.think.moments, self.output.moments)

    @cached_property
    def gap(self) -> Estimate | None:
        """Mean accepted length inside the span minus outside, uncertain by response; None where an arm is empty."""
        inside, outside = self.think.mean_length, self.output.mean_length
        return None if inside is None or outside is None else inside - outside

    def interval(self, unit: Unit = "steps") -> Interval | None:
        """95 % interval of the gap, with steps as independent draws (the note) or responses; None without a test."""
        if self.test is None:
            return None
        if unit == "steps":
            return Interval(self.test.difference, self.test.low, self.test.high)
        return self.gap.interval() if self.gap else None

    def verdict(self, between_domain_gap: float, unit: Unit = "steps") -> Verdict:
        """The note's verdict; ``unit`` says whose interval it looks at."""
        return verdict(self.interval(unit), between_domain_gap, over_the_line=self.straddles.over_the_line)

    def _arm(self, phase: Phase) -> Arm:
        policy: StraddlePolicy = self.ledger.straddle
        weighted = ((step, shares(step.phases, policy)[phase == "output"]) for step in self.ledger.steps)
        return Arm(phase, tuple((step, weight) for step, weight in weighted if weight))

    def __str__(self) -> str:
        count = self.straddles
        lines = [
            self.origin.banner,
            f"straddling: {count.straddling} of {count.steps} steps ({_percent(count.rate)}), "
            f"{_percent(count.token_rate)} of tokens; policy {self.ledger.straddle}; "
            f"{self.ledger.discarded} steps outside decoding discarded",
        ]
        lines += [_line(arm) for arm in (self.think, self.output)]
        if self.test is None:
            return "\n".join(
                [*lines, "think - output: no test (an arm with fewer than two steps, or no spread at all)"]
            )
        by_response = self.interval("responses")
        lines.append(
            f"think - output: {self.test.difference:+.3f} tokens; 95 % interval by steps "
            f"{brackets(self.interval())}, by responses {brackets(by_response)}; "
            f"t = {self.test.t:.2f}, df = {self.test.df:.1f}, p = {self.test.p:.2g}, d = {self.test.cohens_d:.2f}"
        )
        return "\n".join(lines)


def between_domain_gap(ledger: Ledger[O_co], phase: Phase | None = None) -> float:
    """How far domains differ by themselves: the spread of their mean accepted lengths in the same runs.

    Over all steps, as the protocol has it, or over those wholly in one phase. ValueError with fewer than two domains.
    """
    parts = [(s.domain, s.length, 1.0) for s in ledger.steps if phase is None or set(s.phases) == {phase}]
    means = [
        mean.value
        for name in ledger.domains
        if (mean := ratio((name, length, one) for domain, length, one in parts if domain == name)) is not None
    ]
    if len(means) < 2:
        raise ValueError(
            f"a spread over domains needs steps of at least two, got {', '.join(ledger.domains) or 'none'}"
        )
    return max(means) - min(means)


def brackets(interval: Interval | None) -> str:
    return "none (one response only)" if interval is None else f"[{interval.low:.3f}, {interval.high:.3f}]"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"


def _line(arm: Arm) -> str:
    if arm.mean_length is None or arm.token_acceptance is None:
        return f"{arm.phase}: no steps"
    sd, solved = arm.standard_deviation, arm.solved_rate
    return (
        f"{arm.phase}: {arm.steps:g} steps of {arm.responses} responses, mean accepted length "
        f"{arm.mean_length.value:.3f} (sd {'none' if sd is None else f'{sd:.3f}'}), token acceptance rate "
        f"{arm.token_acceptance.value:.3f}, solved rate {'none' if solved is None else f'{solved.value:.3f}'}"
    )
