"""Points of accuracy over think length, the settings that were chosen, and what they gain over the foil."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from companion.experiments.forced_exit.design import Candidate, Config, Split, candidates
from companion.experiments.forced_exit.outcomes import F64, Foil, Outcome, Table, settled_from
from companion.experiments.forced_exit.recording import Row
from companion.phase.exit_rules import NoteExit, replay
from companion.phase.probe import Sample
from companion.resampling import Interval

Choice = Literal["keep", "budget"]
UNCHOSEN = ("none", "note")


class Ends(BaseModel):
    """A value and its 95 % interval over prompts."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, interval: Interval) -> Ends:
        low, high = (None if np.isnan(x) else round(float(x), 5) for x in (interval.low, interval.high))
        return cls(value=round(interval.value, 5), low=low, high=high)


class Point(BaseModel):
    """One setting of a family on one split: share of right answers, and mean tokens of the span and in all."""

    family: str
    setting: dict[str, float]  # what tells it from the others of its family
    split: Split
    domain: str  # or "all"
    responses: int
    accuracy: Ends
    think_tokens: Ends
    total_tokens: Ends
    exits: dict[str, int]  # by reason


class Judged(BaseModel):
    """A setting chosen on the tuning prompts, on the judging ones.

    ``over_none`` and ``over_fixed`` are differences in accuracy on the same responses: to full thinking, and to exits
    at a fixed length that think as long on average. ``clockwork`` is, of the exits by convergence, the share that falls
    where a mass of 0 throughout would have had them fall.
    """

    choice: Choice
    rule: dict[str, Any]  # all its numbers
    point: Point
    over_none: Ends
    over_fixed: Ends
    saved: Ends  # share of full thinking's think tokens
    clockwork: float | None


class Reference(BaseModel):
    """Thinking off, and the earliest exit from which every answer stays right, which no rule can know."""

    domain: str
    off_accuracy: Ends
    off_tokens: Ends
    settled_tokens: Ends  # think tokens, where full thinking is right; else all of them
    silent: float  # share of the samples in the span with a mass below 0.001


Tried = list[tuple[Candidate, Outcome]]


def tabled(config: Config, tables: Mapping[Split, Table]) -> dict[Split, Tried]:
    """Every candidate on both splits."""
    longest = max(row.think_tokens for table in tables.values() for row in table.rows)
    every = list(candidates(config.probe_every, longest))
    return {split: [(c, table.outcome(c.rule)) for c in every] for split, table in tables.items()}


def of_family(found: Tried, family: str) -> list[Outcome]:
    return [outcome for candidate, outcome in found if candidate.family == family]


def point(table: Table, split: Split, candidate: Candidate, outcome: Outcome, domain: str) -> Point:
    members = table.members(domain)
    accuracy, think, total = (
        Ends.of(table.interval(v, members)) for v in (outcome.right, outcome.think, outcome.total)
    )
    return Point(
        family=candidate.family,
        setting=candidate.setting,
        split=split,
        domain=domain,
        responses=int(members.sum()),
        accuracy=accuracy,
        think_tokens=think,
        total_tokens=total,
        exits=outcome.reasons(members),
    )


def choose(config: Config, found: Tried) -> dict[tuple[str, Choice], int]:
    """Of each family, by the tuning prompts of all domains: the setting that thinks least and keeps full thinking's
    accuracy within the margin, and the most accurate one within the budget. A family without either has none.
    """
    (none,) = of_family(found, "none")
    chosen: dict[tuple[str, Choice], int] = {}
    for family in dict.fromkeys(c.family for c, _ in found if c.family not in UNCHOSEN):
        own = [(i, o.right.mean(), o.think.mean()) for i, (c, o) in enumerate(found) if c.family == family]
        if keeping := [(t, -a, i) for i, a, t in own if a >= none.right.mean() - config.margin]:
            chosen[family, "keep"] = min(keeping)[2]
        if cheap := [(-a, t, i) for i, a, t in own if t <= config.budget * none.think.mean()]:
            chosen[family, "budget"] = min(cheap)[2]
    return chosen


def judged(table: Table, found: Tried, chosen: Mapping[tuple[str, Choice], int]) -> list[Judged]:
    """The chosen settings on the judging prompts, in all and by domain."""
    (none,) = of_family(found, "none")
    foil = Foil(table, of_family(found, "fixed"))
    made = []
    for (_, choice), i in chosen.items():
        candidate, outcome = found[i]
        for domain, members in table.scopes():
            made.append(
                Judged(
                    choice=choice,
                    rule=candidate.described(),
                    point=point(table, "judging", candidate, outcome, domain),
                    over_none=Ends.of(table.interval(outcome.right - none.right, members)),
                    over_fixed=Ends.of(foil.gain(outcome, domain)),
                    saved=Ends.of(_saved(table, outcome.think, none.think, members)),
                    clockwork=_clockwork(table, candidate, outcome, members),
                )
            )
    return made


def _saved(table: Table, think: F64, full: F64, members: np.ndarray) -> Interval:
    (own, draws), (whole, all_draws) = table.mean(think, members), table.mean(full, members)
    return Interval.of(1 - own / whole, 1 - draws / all_draws)


def _clockwork(table: Table, candidate: Candidate, outcome: Outcome, members: np.ndarray) -> float | None:
    rule = candidate.rule
    if not isinstance(rule, NoteExit) or rule.reasons != ("converged",):
        return None
    every, longest = table.every, max(row.think_tokens for row in table.rows)
    silence = [Sample(n, 0.0, 0.0, 1.0) for n in range(every, longest + 1, every)]
    clock = replay(rule, silence, longest)
    fired = [e for e, own in zip(outcome.exits, members, strict=True) if own and e is not None]
    return sum(e == clock for e in fired) / len(fired) if fired else None


def references(table: Table) -> list[Reference]:
    off_right, off_tokens, settled, silent = (
        np.array(column, dtype=float)
        for column in (
            [r.off_right for r in table.rows],
            [r.off_tokens for r in table.rows],
            [_settled_tokens(r, table.every) for r in table.rows],
            [sum(m < 0.001 for m in r.mass) / max(1, len(r.mass)) for r in table.rows],
        )
    )
    return [
        Reference(
            domain=domain,
            off_accuracy=Ends.of(table.interval(off_right, members)),
            off_tokens=Ends.of(table.interval(off_tokens, members)),
            settled_tokens=Ends.of(table.interval(settled, members)),
            silent=round(float(silent[members].mean()), 5),
        )
        for domain, members in table.scopes()
    ]


def _settled_tokens(row: Row, every: int) -> int:
    place = settled_from(row)
    full = int(row.think_tokens + row.closed)
    return full if place is None else min(full, place * every + 1)
