"""Rules that end a think span early, and the control that asks them. Pure bookkeeping: nothing here runs a model.

A forced `</think>` changes the output's distribution, on purpose. No rule is a Policy, and no engine takes one:
`companion.forced_exit` is the only thing that acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from companion.phase.probe import ProbeSettings, Sample, SpanClock, SpanProbe, check_tokens
from companion.phase.tracker import ThinkTokens

Reason = Literal["converged", "overthinking", "hard_cap", "fixed_length", "answer_settled", "answer_certain"]
NOTE_REASONS: tuple[Reason, ...] = ("converged", "overthinking")


class SpanJudge(Protocol):
    """A rule at work on one span."""

    def decide(self, think_tokens: int, sample: Sample | None) -> Reason | None:
        """Asked before each token of the span is drawn, once; ``sample`` where the row was probed."""
        ...


class ExitRule(Protocol):
    """When to end a span. It wants a sample every ``probe_every`` think tokens (None: never), with the answer entropies
    behind ``cues``."""

    @property
    def name(self) -> str: ...
    @property
    def probe_every(self) -> int | None: ...
    @property
    def cues(self) -> tuple[str, ...]: ...
    def begin(self) -> SpanJudge:
        """For a span that has just been entered."""
        ...


@dataclass(frozen=True, slots=True)
class Watch:
    """Probe and never exit: the one rule that changes nothing."""

    probe_every: int | None = 32
    cues: tuple[str, ...] = ()
    name: str = "watch"

    def __post_init__(self) -> None:
        if self.probe_every is not None:
            check_tokens(probe_every=(self.probe_every, 1))

    def begin(self) -> SpanJudge:
        return self  # it has no state

    def decide(self, think_tokens: int, sample: Sample | None) -> Reason | None:
        return None


@dataclass(frozen=True, slots=True)
class NoteExit:
    """The note's decision. Past the floor of ``min_think_tokens``: converged if Var[e] is below its threshold, else
    overthinking if the global mean exceeds 0.001 and RPDI's ratio its threshold; the hard cap at any time.

    ``reasons`` leaves out one of the two, to look at the other alone. ``least_mean`` above 0 is a repair: converged
    then also needs mu of at least that much, so that a mass which never left 0 is not taken for readiness.
    """

    settings: ProbeSettings = field(default_factory=ProbeSettings)
    reasons: tuple[Reason, ...] = NOTE_REASONS
    least_mean: float = 0.0
    cues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := set(self.reasons) - set(NOTE_REASONS):
            raise ValueError(f"reasons must be among {', '.join(NOTE_REASONS)}, got {sorted(unknown)}")
        if not 0.0 <= self.least_mean <= 1.0:
            raise ValueError(f"least_mean must be a probability, got {self.least_mean}")

    @property
    def name(self) -> str:
        return " or ".join(self.reasons) or "hard cap"

    @property
    def probe_every(self) -> int:
        return self.settings.probe_every

    def begin(self) -> SpanJudge:
        return _NoteJudge(self)


class _NoteJudge:
    def __init__(self, rule: NoteExit) -> None:
        self.rule, self.probe = rule, SpanProbe(rule.settings)

    def decide(self, think_tokens: int, sample: Sample | None) -> Reason | None:
        settings, probe = self.rule.settings, self.probe
        if sample is not None:
            probe.update(sample)
            if think_tokens >= settings.min_think_tokens:
                ready = probe.variance < settings.eat_ema_variance_threshold and probe.mean >= self.rule.least_mean
                if ready and "converged" in self.rule.reasons:
                    return "converged"
                ratio = probe.rpdi_ratio
                if ratio is not None and ratio > settings.rpdi_threshold and "overthinking" in self.rule.reasons:
                    return "overthinking"
        return "hard_cap" if think_tokens >= settings.max_think_tokens else None


@dataclass(frozen=True, slots=True)
class FixedLength:
    """The foil: every span ends after ``tokens`` tokens, whatever the model says."""

    tokens: int
    name: str = "fixed length"
    probe_every: int | None = None
    cues: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_tokens(tokens=(self.tokens, 0))

    def begin(self) -> SpanJudge:
        return self  # it has no state

    def decide(self, think_tokens: int, sample: Sample | None) -> Reason | None:
        return "fixed_length" if think_tokens >= self.tokens else None


@dataclass(frozen=True, slots=True)
class AnswerSettled:
    """The rule of arXiv:2509.26522: end the span once the answer entropy x no longer moves.

        m <- (1 - alpha) m + alpha x,    v <- (1 - alpha) v + alpha (x - m)^2,    v / (1 - (1 - alpha)^k) < threshold

    after k samples, both from 0; not before ``min_think_tokens`` tokens, nor at the first sample. ``cue`` is the text
    behind the appended `</think>`.
    """

    threshold: float  # nats^2
    alpha: float = 0.2
    min_think_tokens: int = 0
    probe_every: int = 32
    cue: str = ""
    name: str = "answer settled"

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise ValueError(f"alpha must lie in (0, 1], got {self.alpha}")
        _check_answer_rule(self.threshold, self.min_think_tokens, self.probe_every)

    @property
    def cues(self) -> tuple[str, ...]:
        return (self.cue,)

    def begin(self) -> SpanJudge:
        return _SettledJudge(self)


class _SettledJudge:
    def __init__(self, rule: AnswerSettled) -> None:
        self.rule, self.samples, self.mean, self.spread = rule, 0, 0.0, 0.0

    def decide(self, think_tokens: int, sample: Sample | None) -> Reason | None:
        if sample is None:
            return None
        alpha, x = self.rule.alpha, sample.answer_entropy[self.rule.cue]
        self.samples += 1
        self.mean += alpha * (x - self.mean)
        self.spread += alpha * ((x - self.mean) ** 2 - self.spread)
        unbiased = self.spread / (1.0 - (1.0 - alpha) ** self.samples)
        late = self.samples > 1 and think_tokens >= self.rule.min_think_tokens
        return "answer_settled" if late and unbiased < self.rule.threshold else None


@dataclass(frozen=True, slots=True)
class AnswerCertain:
    """End the span at the first sample whose answer entropy is below ``threshold`` nats: level, not variance."""

    threshold: float  # nats
    min_think_tokens: int = 0
    probe_every: int = 32
    cue: str = ""
    name: str = "answer certain"

    def __post_init__(self) -> None:
        _check_answer_rule(self.threshold, self.min_think_tokens, self.probe_every)

    @property
    def cues(self) -> tuple[str, ...]:
        return (self.cue,)

    def begin(self) -> SpanJudge:
        return self  # it has no state

    def decide(self, think_tokens: int, sample: Sample | None) -> Reason | None:
        if sample is None or think_tokens < self.min_think_tokens:
            return None
        return "answer_certain" if sample.answer_entropy[self.cue] < self.threshold else None


@dataclass(frozen=True, slots=True)
class Exit:
    """A forced exit: `</think>` became the token behind ``think_tokens`` tokens of thought."""

    reason: Reason
    think_tokens: int

    @property
    def used(self) -> int:
        """Tokens of the span, its forced end included."""
        return self.think_tokens + 1


class ExitControl:
    """Follows one response, token by token, and forces at most one exit.

    `due` says whether the row of the next token is to be probed, `decide` whether that token is forced; `push` takes
    every committed token, forced ones included. After an exit the rule is never asked again, not even in a second span;
    a span that ended by itself leaves it armed, and a new one begins anew.
    """

    def __init__(self, rule: ExitRule, tags: ThinkTokens, prompt: Sequence[int] = ()) -> None:
        if tags.close is None:
            raise ValueError("the target has no single token </think>, so there is nothing that an exit could force")
        self.rule, self.clock = rule, SpanClock(tags, prompt)
        self.exit: Exit | None = None
        self._judge = rule.begin()
        self._span = self.clock.spans

    @property
    def armed(self) -> bool:
        return self.exit is None and self.clock.thinking

    @property
    def due(self) -> bool:
        n, every = self.clock.think_tokens, self.rule.probe_every
        return self.armed and n is not None and n > 0 and every is not None and n % every == 0

    def decide(self, sample: Sample | None) -> Exit | None:
        """The exit that is forced at the next token, if any."""
        n = self.clock.think_tokens
        if not self.armed or n is None:
            return None
        if self.clock.spans != self._span:
            self._judge, self._span = self.rule.begin(), self.clock.spans
        reason = self._judge.decide(n, sample)
        if reason is not None:
            self.exit = Exit(reason, n)
        return self.exit

    def push(self, token: int) -> None:
        self.clock.push(token)


def replay(rule: ExitRule, samples: Iterable[Sample], length: int) -> Exit | None:
    """The exit that ``rule`` would have forced in a span of ``length`` tokens (its end not counted), from its samples.

    What comes before an exit does not depend on the rule, so that one probed response answers for every rule that is
    sampled at the same places. ValueError when a sample that the rule wants is missing.
    """
    check_tokens(length=(length, 0))
    taken = {sample.think_tokens: sample for sample in samples}
    judge = rule.begin()
    for n in range(length + 1):
        due = n > 0 and rule.probe_every is not None and n % rule.probe_every == 0
        if due and n not in taken:
            raise ValueError(
                f"the rule is sampled every {rule.probe_every} tokens, and the recording has no sample after {n}: "
                "record with the same spacing"
            )
        if reason := judge.decide(n, taken[n] if due else None):
            return Exit(reason, n)
    return None


def _check_answer_rule(threshold: float, min_think_tokens: int, probe_every: int) -> None:
    if not threshold >= 0.0:
        raise ValueError(f"threshold must be a number >= 0, got {threshold}")
    check_tokens(min_think_tokens=(min_think_tokens, 0), probe_every=(probe_every, 1))
