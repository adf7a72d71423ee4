"""What the answers say: speed and accepted length of each arm and phase, and ratios with intervals over prompts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from companion.experiments.bars import Bar, judge
from companion.experiments.phase_hook.design import AGAIN, AT_LEAST, JUDGED, OFF, PLAIN
from companion.experiments.phase_hook.race import PHASES, Answer, Spent
from companion.protocols import Phase
from companion.resampling import Interval, prompt_weights

Part = Phase | Literal["all"]
PARTS: tuple[Part, ...] = (*PHASES, "all")


class Cell(BaseModel):
    """One arm in one phase, summed over prompts and repeats."""

    drafter: str
    temperature: float
    arm: str
    part: Part
    tokens: int
    rounds: float
    tokens_per_second: float | None
    tau: float | None  # tokens a round
    depth: float | None  # drafted a round
    straddle_rate: float  # rounds in both phases, of all of the arm's


class Ratio(BaseModel):
    """Speed of an arm over that of another, with 95 % over prompts, which both answered in turns."""

    drafter: str
    temperature: float
    arm: str
    over: str
    part: Part
    value: float | None
    low: float | None
    high: float | None


def spent(answers: Sequence[Answer], part: Part) -> Spent:
    """The sum."""
    own = [answer.of(phase) for answer in answers for phase in PHASES if part in (phase, "all")]
    return Spent(
        tokens=sum(s.tokens for s in own),
        seconds=sum(s.seconds for s in own),
        rounds=sum(s.rounds for s in own),
        drafted=sum(s.drafted for s in own),
    )


def cells(drafter: str, temperature: float, answers: Sequence[Answer]) -> list[Cell]:
    """Every arm in either phase and in both."""
    found = []
    for arm in dict.fromkeys(answer.arm for answer in answers):
        own = [answer for answer in answers if answer.arm == arm]
        rounds = spent(own, "all").rounds
        for part in PARTS:
            s = spent(own, part)
            found.append(
                Cell(
                    drafter=drafter,
                    temperature=temperature,
                    arm=arm,
                    part=part,
                    tokens=s.tokens,
                    rounds=s.rounds,
                    tokens_per_second=s.tokens / s.seconds if s.seconds else None,
                    tau=s.tokens / s.rounds if s.rounds else None,
                    depth=s.drafted / s.rounds if s.rounds else None,
                    straddle_rate=sum(answer.straddling for answer in own) / rounds if rounds else 0.0,
                )
            )
    return found


def ratios(drafter: str, temperature: float, answers: Sequence[Answer], resamples: int, seed: int) -> list[Ratio]:
    """Of every arm over plain decoding and over the drafter without a hook, by phase; prompts are drawn within their
    domains, for both arms alike."""
    arms = list(dict.fromkeys(answer.arm for answer in answers))
    found = []
    for part in PARTS:
        parts = {arm: _by_prompt([a for a in answers if a.arm == arm], part) for arm in arms}
        for over in (PLAIN, OFF):
            for arm in arms:
                if arm in (over, PLAIN):
                    continue
                interval = _ratio(parts[arm], parts[over], _domains(answers), resamples, seed)
                known = np.isfinite(interval.value)
                low, high = (float(x) if np.isfinite(x) else None for x in (interval.low, interval.high))
                found.append(
                    Ratio(
                        drafter=drafter,
                        temperature=temperature,
                        arm=arm,
                        over=over,
                        part=part,
                        value=interval.value if known else None,
                        low=low,
                        high=high,
                    )
                )
    return found


def _by_prompt(answers: Sequence[Answer], part: Part) -> NDArray[np.float64]:  # [P, 2] tokens and seconds
    prompts = sorted({answer.prompt for answer in answers})
    sums = [spent([answer for answer in answers if answer.prompt == prompt], part) for prompt in prompts]
    return np.array([[s.tokens, s.seconds] for s in sums])


def _domains(answers: Sequence[Answer]) -> NDArray[np.int64]:  # [P]
    known = {answer.prompt: answer.domain for answer in answers}
    return np.unique([known[prompt] for prompt in sorted(known)], return_inverse=True)[1].astype(np.int64)


def _ratio(
    ours: NDArray[np.float64],  # [P, 2]
    theirs: NDArray[np.float64],  # [P, 2]
    strata: NDArray[np.int64],  # [P]
    resamples: int,
    seed: int,
) -> Interval:
    parts = np.concatenate([ours, theirs], axis=1)  # [P, 4]
    draws = prompt_weights(strata, resamples, np.random.default_rng(seed)) @ parts  # [B, 4]
    with np.errstate(divide="ignore", invalid="ignore"):
        whole, drawn = (x[..., 0] / x[..., 1] / (x[..., 2] / x[..., 3]) for x in (parts.sum(0), draws))
    return Interval.of(float(whole), drawn)


def busy(answers: Sequence[Answer]) -> float:
    """Share of the steps' time in which this thread had a core."""
    return sum(a.running_seconds for a in answers) / sum(a.prefill_seconds + spent([a], "all").seconds for a in answers)


def disturbed(found: Sequence[Ratio]) -> set[tuple[str, float]]:
    """Drafters and temperatures whose negative control fails: two arms that do the same are apart by more than the bars
    allow, inside the span or outside, and 1 is not in the interval of their ratio."""
    return {
        (r.drafter, r.temperature)
        for r in found
        if (r.arm, r.over) == (AGAIN, OFF) and r.part != "all"
        if r.value is not None and r.low is not None and r.high is not None
        if abs(r.value - 1.0) > 1.0 - AT_LEAST and not r.low <= 1.0 <= r.high
    }


def bars(found: Sequence[Ratio], known: Sequence[Cell], crowded: Collection[tuple[str, float]] = ()) -> list[Bar]:
    """What is demanded of the calibrated hook: inside the span over plain decoding, outside over no hook at all.

    ``crowded`` are drafters and temperatures that were timed while others wanted the core: longer steps are interrupted
    more often, so depths were chosen by wrong times, and nothing is judged by them; nor where the control fails.
    """
    left_open = {*crowded, *disturbed(found)}
    tokens = {(c.drafter, c.temperature, c.arm, c.part): c.tokens for c in known}
    demands = {("think", PLAIN), ("output", OFF)}
    return [
        judge(
            f"{r.drafter}, temperature {r.temperature:g}, {r.arm}: {'inside' if r.part == 'think' else 'outside'} "
            f"the span over {'plain decoding' if r.over == PLAIN else 'no hook'}",
            AT_LEAST,
            r.value,
            r.low,
            r.high,
            tokens[r.drafter, r.temperature, r.arm, r.part],
            enough=(r.drafter, r.temperature) not in left_open,
        )
        for r in found
        if r.arm in JUDGED and (r.part, r.over) in demands
    ]


def identical(answers: Sequence[Answer]) -> tuple[int, int]:
    """Answers equal to plain decoding's of the same prompt and repeat, and how many were compared."""
    plain = {(a.prompt, a.repeat): a.crc32 for a in answers if a.arm == PLAIN}
    others = [a for a in answers if a.arm != PLAIN]
    return sum(a.crc32 == plain[a.prompt, a.repeat] for a in others), len(others)
