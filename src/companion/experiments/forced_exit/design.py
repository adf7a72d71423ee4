"""What is decoded, and the rules that are tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

from pydantic import BaseModel

from companion.phase.exit_rules import (
    AnswerCertain,
    AnswerSettled,
    ExitRule,
    FixedLength,
    NoteExit,
    Watch,
)
from companion.phase.probe import ProbeSettings, RunningMean

Split = Literal["tuning", "judging"]
SPLITS: tuple[Split, ...] = ("tuning", "judging")
CUE = "\n\nThe answer is "

# Family -> how it is called
FAMILIES = {
    "none": "no exit",
    "note": "the note's defaults",
    "fixed": "fixed length",
    "converged": "converged, as specified",
    "converged-ready": "converged, on a mass that is there",
    "overthinking": "overthinking, as specified",
    "overthinking-samples": "overthinking, mean repaired",
    "settled": "answer entropy settled",
    "settled-cued": "answer entropy settled, cued",
    "certain": "answer entropy low",
    "certain-cued": "answer entropy low, cued",
}


class Config(BaseModel):
    """``tuning`` and ``judging`` prompts of each domain, none in both; every prompt is answered with each seed.

    Spans are probed, and can be left, every ``probe_every`` think tokens.
    """

    target: str = "tiny-qwen3"
    device: str = "cpu"
    tuning: int = 50
    judging: int = 120
    seeds: tuple[int, ...] = (0, 1)
    probe_every: int = 8
    temperature: float = 0.7
    max_new_tokens: int = 600
    prompt_seed: int = 41
    margin: float = 0.02  # of accuracy, that a rule may cost on the tuning prompts
    budget: float = 0.75  # of the think tokens, that the other choice may spend
    live: int = 5  # prompts of each domain on which the chosen rules run in the decoding loop
    chunk: int = 20  # prompts decoded together
    max_batch: int = 64
    resamples: int = 1000

    def quick(self) -> Config:
        """A few prompts: enough to see that everything works."""
        return self.model_copy(update={"tuning": 5, "judging": 6, "seeds": (0,), "live": 2, "resamples": 200})


def check(config: Config) -> None:
    """ValueError for a design that measures nothing."""
    for name in ("tuning", "judging", "probe_every", "chunk", "live"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(config, name)}")
    if not config.seeds or len(set(config.seeds)) < len(config.seeds):
        raise ValueError(f"seeds must be one or more different numbers, got {list(config.seeds)}")
    if 32 % config.probe_every:
        raise ValueError(
            f"probe_every must divide 32, the note's spacing, so that its samples are among ours; got "
            f"{config.probe_every}"
        )
    if config.resamples < 2:
        raise ValueError(f"resamples must be at least 2 for an interval, got {config.resamples}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of a family: the rule, and the numbers in which it differs from the others of the family."""

    family: str
    rule: ExitRule
    setting: dict[str, float]

    def described(self) -> dict[str, Any]:
        """All numbers of the rule, JSON-ready."""
        flat = asdict(self.rule)  # type: ignore[call-overload]
        numbers = {**{k: v for k, v in flat.items() if k not in ("settings", "name")}, **flat.get("settings", {})}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in numbers.items()}


def candidates(every: int, longest: int) -> Iterator[Candidate]:
    """Every setting of every family, thresholds scaled to spans of about a hundred tokens: a sample every ``every``
    tokens in the place of 32, a floor of two samples in the place of 512. The foil goes up to ``longest`` tokens.
    """
    floor = 2 * every
    note = partial(ProbeSettings, probe_every=every, min_think_tokens=floor)
    yield Candidate("none", Watch(None), {})
    yield Candidate("note", NoteExit(), {})
    for tokens in range(0, longest + every, every):
        yield Candidate("fixed", FixedLength(tokens), {"tokens": tokens})
    for alpha, variance in product((0.05, 0.1, 0.2, 0.4, 0.8), (0.05, 0.02, 0.01, 0.001, 0.0001)):
        settings = note(ema_alpha=alpha, eat_ema_variance_threshold=variance)
        yield Candidate("converged", NoteExit(settings, ("converged",)), {"alpha": alpha, "variance": variance})
    for alpha, variance, mean in product((0.2, 0.5, 1.0), (0.05, 0.01), (0.001, 0.01, 0.1)):
        settings = note(ema_alpha=alpha, eat_ema_variance_threshold=variance, start="sample")
        rule = NoteExit(settings, ("converged",), least_mean=mean)
        yield Candidate("converged-ready", rule, {"alpha": alpha, "variance": variance, "least_mean": mean})
    means: dict[str, RunningMean] = {"overthinking": "tokens", "overthinking-samples": "samples"}
    for family, mean_over in means.items():
        for alpha, theta, ratio in product((0.1, 0.2, 0.4), (0.25, 0.5, 1.0, 1.5), (1.5, 2.0, 3.0)):
            settings = note(
                ema_alpha=alpha, transition_entropy_threshold=theta, rpdi_threshold=ratio, running_mean=mean_over
            )
            setting = {"alpha": alpha, "theta": theta, "ratio": ratio}
            yield Candidate(family, NoteExit(settings, ("overthinking",)), setting)
    for suffix, cue in (("", ""), ("-cued", CUE)):
        for alpha, spread in product((0.1, 0.2, 0.4), (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3)):
            settled = AnswerSettled(spread, alpha, floor, every, cue)
            yield Candidate(f"settled{suffix}", settled, {"alpha": alpha, "variance": spread})
        for nats in (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0):
            yield Candidate(f"certain{suffix}", AnswerCertain(nats, floor, every, cue), {"nats": nats})
