"""Acceptance rates of both phases as a planner may use them: never without the run that they were measured in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from companion.metrics import wilson
from companion.phase.origin import Measured, require_measured
from companion.phase.report import Report
from companion.protocols import Phase, Sampling
from companion.resampling import Interval

Definition = Literal["solved", "token_acceptance"]
AT_LEAST = 30  # judged slots before a position counts as known


@dataclass(frozen=True, slots=True)
class PhaseRate:
    """One phase's acceptance rate a with its interval, and the position curve c_1, c_2, ... where it is known.

    The curve holds conditional acceptances of the first positions; it may end before the full depth, where no round
    got. ValueError unless 0 <= low <= value <= high <= 1 throughout.
    """

    rate: Interval
    curve: tuple[Interval, ...] | None = None

    def __post_init__(self) -> None:
        for one in (self.rate, *(self.curve or ())):
            if not 0.0 <= one.low <= one.value <= one.high <= 1.0:
                raise ValueError(
                    f"a rate must lie inside its interval, and the interval in [0, 1]; got {one.value} in "
                    f"[{one.low}, {one.high}]"
                )
        if self.curve is not None:
            object.__setattr__(self, "curve", tuple(self.curve))


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Rates inside and outside the span, and the run they come from.

    ``definition`` says what the rate is: ``solved`` is the a with tau(a, gamma) = mean accepted length, which is what a
    planner means by a; ``token_acceptance`` is the note's accepted / (proposed + steps), which is smaller and plans too
    shallow. TypeError unless ``origin`` is a measured run; ValueError if that run was trimmed, since what was never
    verified might have been accepted.
    """

    origin: Measured
    think: PhaseRate
    output: PhaseRate
    definition: Definition = "solved"

    def __post_init__(self) -> None:
        require_measured(self.origin, "rates to plan with")
        if self.definition not in get_args(Definition):
            raise ValueError(f"a rate's definition is one of {', '.join(get_args(Definition))}, not {self.definition}")
        if not self.origin.untrimmed:
            raise ValueError("the run was trimmed, so its acceptance is censored; measure with every draft verified")
        for rate in (self.think, self.output):
            if rate.curve is not None and len(rate.curve) > self.origin.depth:
                raise ValueError(
                    f"a position curve has {len(rate.curve)} positions, but the run drafted {self.origin.depth}"
                )

    @classmethod
    def from_report(cls, report: Report[Measured], definition: Definition = "solved") -> MeasuredRates:
        """Both phases' rates with 95 % intervals by response, and the position curves.

        A curve goes as far as ``AT_LEAST`` steps were judged. TypeError for a report that is not measured, checked
        before ValueError for a phase without whole steps, or with one response only.
        """
        origin = require_measured(report.origin, "rates to plan with")
        think, output = _phase_rate(report, "think", definition), _phase_rate(report, "output", definition)
        return cls(origin, think, output, definition)

    def of(self, phase: Phase) -> PhaseRate:
        return self.think if phase == "think" else self.output

    def check(
        self,
        *,
        target: str,
        drafter: str,
        sampling: Sampling,
        depth: int,
        target_revision: str | None = None,
        drafter_revision: str | None = None,
    ) -> None:
        """ValueError unless they were measured in this very use; revisions are compared where they are known."""
        run = self.origin
        for role, measured, known, name, revision in (
            ("target", run.target, run.target_revision, target, target_revision),
            ("drafter", run.drafter, run.drafter_revision, drafter, drafter_revision),
        ):
            if name != measured or revision not in (None, known):
                raise _elsewhere(role, f"{measured} (revision {known})", f"{name} (revision {revision or 'unknown'})")
        if sampling != run.sampling:
            raise _elsewhere("sampling", run.sampling, sampling)
        if depth != run.depth:
            raise _elsewhere("depth", run.depth, depth)


def _elsewhere(what: str, measured: object, asked: object) -> ValueError:
    return ValueError(
        f"the rates were measured with {what} {measured} and are asked for with {asked}; measure them there"
    )


def _phase_rate(report: Report[Measured], phase: Phase, definition: Definition) -> PhaseRate:
    arm = report.arm(phase)
    found = arm.solved_rate if definition == "solved" else arm.token_acceptance
    interval = None if found is None else found.interval()
    if interval is None:
        raise ValueError(
            f"the {phase} phase has {arm.steps:g} steps of {arm.responses} responses: too little for a rate with an "
            "interval"
        )
    return PhaseRate(_within(interval), _curve(report, phase) or None)


def _curve(report: Report[Measured], phase: Phase) -> tuple[Interval, ...]:
    """Conditional acceptance with the wider of two intervals at either end: by response, and Wilson's for the steps,
    which does not shrink to a point where everything was accepted."""
    curve = []
    for position in report.curve(phase):
        if position.judged < AT_LEAST:
            break
        low, high = wilson(position.accepted, position.judged)
        if by_response := position.rate.interval():
            low, high = min(low, by_response.low), max(high, by_response.high)
        curve.append(_within(Interval(position.rate.value, low, high)))
    return tuple(curve)


def _within(interval: Interval) -> Interval:
    """Cut to [0, 1], where a rate lies; the value stays inside, whatever rounding did to an end that equals it."""
    value = interval.value
    return Interval(value, max(0.0, min(value, interval.low)), min(1.0, max(value, interval.high)))
