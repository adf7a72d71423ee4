"""Speed-ups from a race: how many times faster one method makes its tokens than another makes as many.

Of every prompt the median over passes, summed over prompts; the 95 % interval is a bootstrap over prompts.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from companion.experiments.timing import PLAIN, Race
from companion.metrics import committed_per_round
from companion.resampling import Interval, pooled, pooled_draws, prompt_weights

ALL = "all"
LOOKUP, GENERATE = "lookup", "transformers"


class Ratio(BaseModel):
    value: float
    low: float  # 95 %, over prompts
    high: float


class Speed(BaseModel):
    threads: int
    domain: str
    method: str
    tokens_per_second: float  # median over passes
    slowest: float
    fastest: float
    tau: float | None  # our engine only
    over_plain: Ratio
    over_lookup: Ratio
    over_transformers: Ratio


class Times(BaseModel):
    """What the ratios are made of."""

    threads: int
    domain: str
    method: str
    tokens: list[int]  # new ones of each prompt
    seconds: list[list[float]]  # [pass][prompt]


def times(found: Race, threads: int) -> list[Times]:
    """Every method in every domain, to the microsecond."""
    return [
        Times(
            threads=threads,
            domain=domain,
            method=method,
            tokens=found.tokens[domain, method][0],
            seconds=[[round(s, 6) for s in one] for one in passes],
        )
        for (domain, method), passes in found.seconds.items()
    ]


def speedups(found: Race, threads: int, resamples: int, seed: int) -> list[Speed]:
    """Every method in every domain and in all together."""
    domains, methods = (list(dict.fromkeys(column)) for column in zip(*found.seconds, strict=True))
    rows = []
    for scope, members in {ALL: domains, **{d: [d] for d in domains}}.items():
        for method in methods:
            rates = [
                sum(sum(found.tokens[d, method][p]) for d in members)
                / sum(sum(found.seconds[d, method][p]) for d in members)
                for p in range(len(found.seconds[domains[0], method]))
            ]
            rounds = [row for d in members for row in found.rounds.get((d, method), ())]
            over = {base: _over(found, base, method, members, resamples, seed) for base in (PLAIN, LOOKUP, GENERATE)}
            row = Speed(
                threads=threads,
                domain=scope,
                method=method,
                tokens_per_second=statistics.median(rates),
                slowest=min(rates),
                fastest=max(rates),
                tau=committed_per_round(rounds) if rounds else None,
                over_plain=over[PLAIN],
                over_lookup=over[LOOKUP],
                over_transformers=over[GENERATE],
            )
            rows.append(row)
    return rows


def _over(found: Race, base: str, method: str, domains: Sequence[str], resamples: int, seed: int) -> Ratio:
    """How many times faster ``method`` makes its tokens than ``base`` makes as many."""
    parts, strata = [], []
    for stratum, domain in enumerate(domains):
        theirs, ours = (np.median(found.seconds[domain, m], axis=0) for m in (base, method))  # [P]
        theirs = theirs * np.divide(found.tokens[domain, method][0], found.tokens[domain, base][0])
        parts.append(np.stack([theirs, ours], -1))
        strata.append(np.full(len(ours), stratum))
    crossed = np.concatenate(parts)[None]  # [1, P, 2]
    generator = np.random.default_rng(seed)
    weights = prompt_weights(np.concatenate(strata), resamples, generator)
    draws = pooled_draws(crossed, weights, np.ones((resamples, 1)))
    interval = Interval.of(pooled(crossed), draws)
    return Ratio(value=interval.value, low=interval.low, high=interval.high)
