r"""What is read off the target's rows inside a think span (the note, section 4), one sample every few tokens.

    e_k = sum_{v in E} p_k(v)     mass on the tokens E that end the span (the note's EAT)
    H_k = -sum_v p_k(v) ln p_k(v) entropy, nats
    mu  <- alpha e   + (1 - alpha) mu,    nu <- alpha e^2 + (1 - alpha) nu,    Var[e] = max(nu - mu^2, 0)
    RPDI local  <- alpha 1[H > theta] + (1 - alpha) local
    RPDI global <- (global (n - 1) + 1[H > theta]) / n,    ratio = local / global

with p at temperature 1. On entering the span mu = 0.5, nu = 0.25 and both RPDI are 0. Two things to know about it:

* In the global mean n counts think tokens, and there is one update for `probe_every` of them, so that it stays far
  below the share of transitions and the ratio far above 1. That is how it was specified (``running_mean`` "tokens");
  "samples" divides by what was summed.
* mu and nu start from a guess, not from data. Where e stays 0, as it does inside most of a span, Var[e] rises from 0 to
  1/16 and then falls on its own, whatever the model does: low variance is no sign of readiness. ``start`` "sample"
  begins with the first sample in the place of the guess; a mass that stays at 0 then has no variance at all, so that
  only a demand on mu itself (`NoteExit.least_mean`) tells it from one that is there.

`answer_entropy` is the other quantity that is called EAT (arXiv:2509.26522): the entropy of the token that follows a
`</think>` appended to the text so far, and perhaps the first words of an answer. It takes rows of its own, which
`companion.forced_exit` computes and rolls back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from companion.phase.tracker import PhaseTracker, ThinkTokens

RunningMean = Literal["tokens", "samples"]
Start = Literal["prior", "sample"]
GLOBAL_AT_LEAST = 0.001  # below it the note's ratio is not formed


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """The probe's numbers under the note's names, with its defaults. ValueError on values outside their range.

    ``running_mean`` says what RPDI's global mean divides by: "tokens", as specified, or "samples", repaired; ``start``
    what mu and nu start from: "prior", 0.5 and 0.25 as specified, or the first "sample".
    """

    ema_alpha: float = 0.05
    transition_entropy_threshold: float = 2.5  # nats
    rpdi_threshold: float = 3.0
    eat_ema_variance_threshold: float = 0.001
    min_think_tokens: int = 512
    max_think_tokens: int = 32_768
    probe_every: int = 32  # think tokens
    running_mean: RunningMean = "tokens"
    start: Start = "prior"

    def __post_init__(self) -> None:
        if not 0.0 < self.ema_alpha <= 1.0:
            raise ValueError(f"ema_alpha must lie in (0, 1], got {self.ema_alpha}; 1 keeps the newest sample alone")
        for name in ("transition_entropy_threshold", "rpdi_threshold", "eat_ema_variance_threshold"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number >= 0, got {getattr(self, name)}")
        check_tokens(probe_every=(self.probe_every, 1), min_think_tokens=(self.min_think_tokens, 0))
        check_tokens(max_think_tokens=(self.max_think_tokens, max(1, self.min_think_tokens)))
        for name, known in (("running_mean", ("tokens", "samples")), ("start", ("prior", "sample"))):
            if (given := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be {known[0]!r} (as specified) or {known[1]!r}, got {given!r}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One probed row: that of the token which would follow ``think_tokens`` tokens of thought.

    ``answer_entropy`` holds, for each cue (the text behind the appended `</think>`, "" for none), the entropy in nats
    of the token after it.
    """

    think_tokens: int
    mass: float
    entropy: float  # nats
    max_p: float
    answer_entropy: Mapping[str, float] = field(default_factory=dict)


class SpanProbe:
    """The running statistics of one span; `update` takes one sample."""

    def __init__(self, settings: ProbeSettings | None = None) -> None:
        self.settings = settings or ProbeSettings()
        self.samples = 0
        self.mean, self.second_moment = 0.5, 0.25  # mu and nu
        self.rpdi_local = self.rpdi_global = 0.0

    @property
    def variance(self) -> float:
        """Var[e], from the two moments; not below 0."""
        return max(self.second_moment - self.mean**2, 0.0)

    @property
    def rpdi_ratio(self) -> float | None:
        """Local over global; None while the global mean is too small to divide by."""
        return self.rpdi_local / self.rpdi_global if self.rpdi_global > GLOBAL_AT_LEAST else None

    def update(self, sample: Sample) -> None:
        """Take in one row. ValueError on a mass or entropy that no distribution has, or before the first token."""
        if sample.think_tokens < 1:
            raise ValueError("the first sample of a span comes after its first token, got one after 0 tokens")
        if not (0.0 <= sample.mass <= 1.0 + 1e-5 and 0.0 <= sample.entropy + 1e-5 < math.inf):
            raise ValueError(
                f"a row has mass {sample.mass} on the end of the span and entropy {sample.entropy}, expected a "
                "probability and a finite number of nats: the model's logits are broken"
            )
        alpha, self.samples = self.settings.ema_alpha, self.samples + 1
        if self.samples == 1 and self.settings.start == "sample":
            self.mean, self.second_moment = sample.mass, sample.mass**2
        self.mean += alpha * (sample.mass - self.mean)
        self.second_moment += alpha * (sample.mass**2 - self.second_moment)
        transition = float(sample.entropy > self.settings.transition_entropy_threshold)
        self.rpdi_local += alpha * (transition - self.rpdi_local)
        n = sample.think_tokens if self.settings.running_mean == "tokens" else self.samples
        self.rpdi_global += (transition - self.rpdi_global) / n


class SpanClock:
    """Counts the tokens of the think span that a response is in, from token ids.

    `think_tokens` is the number of tokens behind the opening tag, None outside a span. The closing tag counts, so that
    tokens used is the thought and its end; an opening tag inside the span is one more token and restarts nothing. A
    span that the prompt has opened starts at 0: what the template wrote was not thought by the model.
    """

    def __init__(self, tags: ThinkTokens, prompt: Sequence[int] = ()) -> None:
        self._tracker = PhaseTracker(tags, prompt)
        self.spans = int(self.thinking)  # opened so far
        self.used = 0  # tokens of all spans together
        self._count = 0

    @property
    def thinking(self) -> bool:
        """Whether the next token is one of the span's."""
        return self._tracker.phase == "think"

    @property
    def think_tokens(self) -> int | None:
        return self._count if self.thinking else None

    def push(self, token: int) -> None:
        before = self.thinking
        self._tracker.push(token)
        if before:
            self._count += 1
            self.used += 1
        elif self.thinking:
            self._count, self.spans = 0, self.spans + 1


def check_tokens(**given: tuple[int, int]) -> None:
    """ValueError unless each is a whole number of at least what is given beside it."""
    for name, (value, least) in given.items():
        if not hasattr(value, "__index__") or value < least:
            raise ValueError(f"{name} must be a whole number of tokens, at least {least}, got {value!r}")
