"""One simulated load: policies against the same workloads, each seed with resampled responses of its own.

The numbers of a point are means over seeds; its intervals are theirs, mean +- t times the deviation over seeds: a seed
draws the responses anew from those recorded (bootstrap), so that deviation is the standard error that other prompts
would bring, with the noise of a finite run added. Ratios are taken seed by seed. Policies whose name ends in -raw take
the drafter's confidences as they are, all others calibrated ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from pydantic import BaseModel
from scipy.stats import t as student

from companion.experiments.load.policies import PLAIN, RAW, STATIC
from companion.experiments.load.policies import make as make_policy
from companion.experiments.simulation.tables import Clock
from companion.protocols import Policy
from companion.resampling import F64
from companion.scheduling.capacity import CapacityTable
from companion.scheduling.lagged import LaggedTopK
from companion.scheduling.ranking import as_drafted
from companion.serving import (
    AnalyticTable,
    Arrivals,
    Fairness,
    Foresight,
    Load,
    Oracle,
    Replay,
    SameStep,
    Window,
    simulate,
    workload,
)

ORACLE, SAME_STEP, LAG = "oracle", "same-step", "lagged-by-"
LEAST = 24  # requests of a run, at least


class Estimate(BaseModel):
    """Mean over seeds and its 95 % interval; None where a seed has no value, no interval of one seed."""

    value: float
    low: float | None
    high: float | None


class Point(BaseModel):
    """One policy at one load. Seconds and tokens per second."""

    table: str
    temperature: float
    concurrency: int
    policy: str
    throughput: Estimate
    speed: Estimate  # of a user, mean
    p10_speed: float
    budget: float  # B / R
    drafted: float  # a round, as the next ones
    verified: float
    accepted: float
    wasted: float
    tau: float
    step_seconds: float
    drafting_share: float
    over_plain: Estimate | None  # throughput
    over_mtp: Estimate | None  # over static depth 1
    over_static: Estimate | None  # over the static depth that is fastest here, plain decoding not among them


@dataclass(frozen=True, slots=True)
class Served:
    """What is served from: responses with calibrated confidences, and the same with raw ones."""

    calibrated: Sequence[Replay]
    raw: Sequence[Replay]
    temperature: float

    def of(self, policy: str) -> Sequence[Replay]:
        return self.raw if policy.endswith(RAW) else self.calibrated


def make(name: str, capacity: CapacityTable, depth: int) -> Policy | Foresight:
    """A policy of the real runs, the oracle, the search of the same step, or the deployed form with another lag."""
    if name == ORACLE:
        return Oracle(capacity)
    if name == SAME_STEP:
        return SameStep(capacity)
    if name.startswith(LAG):
        return LaggedTopK(capacity, lag=int(name.removeprefix(LAG)))
    return make_policy(name, capacity, as_drafted, depth)


def closed_loop(
    policy: Policy | Foresight,
    capacity: CapacityTable,
    pool: Sequence[Replay],
    concurrency: int,
    seed: int,
    *,
    turnover: int = 2,
    mix: Mapping[tuple[str, str], float] | None = None,
) -> Window:
    """The steady part of a run in which every user asks ``turnover`` times on average after a warm-up.

    Prompts are read in the same steps where the table was measured, and elsewhere where it is arithmetic.
    """
    count = max(LEAST, (turnover + 1) * concurrency)
    responses = workload(pool, count, seed=seed, mix=mix)
    arrivals = Arrivals.closed_loop(concurrency, count)
    log = simulate(policy, capacity, responses, arrivals, prefill=not isinstance(capacity, AnalyticTable))
    return Window.steady(log, max(concurrency + concurrency // 2, 2))


def loads(
    policies: Sequence[str], clock: Clock, served: Served, concurrency: int, seeds: Sequence[int]
) -> dict[str, list[Load]]:
    """Of every policy a load for each seed."""
    depth = served.raw[0].depth
    return {
        name: [
            closed_loop(make(name, clock.capacity, depth), clock.capacity, served.of(name), concurrency, seed).load()
            for seed in seeds
        ]
        for name in policies
    }


def points(clock: Clock, served: Served, concurrency: int, found: Mapping[str, Sequence[Load]]) -> list[Point]:
    """The loads of one place as points; ratios need the policies they are over to be among them."""
    rates = {name: column(own, "throughput") for name, own in found.items()}
    static = [name for name in rates if name in STATIC]
    best = max(static, key=lambda name: rates[name].mean()) if static else None
    return [
        Point(
            table=clock.name,
            temperature=served.temperature,
            concurrency=concurrency,
            policy=name,
            throughput=estimate(rates[name]),
            speed=estimate(column(own, "mean_speed")),
            over_plain=over(rates, name, PLAIN),
            over_mtp=over(rates, name, "fixed-1"),
            over_static=over(rates, name, best),
            **{field: float(np.mean(column(own, of))) for field, of in _MEANS.items()},
        )
        for name, own in found.items()
    ]


_MEANS = {
    "p10_speed": "p10_speed",
    "budget": "budget",
    "drafted": "drafted",
    "verified": "verified",
    "accepted": "accepted",
    "wasted": "wasted",
    "tau": "committed",
    "step_seconds": "step_seconds",
    "drafting_share": "drafting_share",
}


def column(found: Sequence[Load] | Sequence[Fairness], name: str) -> F64:  # -> [seeds]
    """One field of each seed's numbers."""
    assert name in {field.name for field in fields(found[0])}
    return np.array([getattr(own, name) for own in found], dtype=np.float64)


def estimate(values: F64) -> Estimate:  # [seeds]
    """Mean and interval over seeds."""
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(value=mean, low=None, high=None)
    half = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1))
    return Estimate(value=mean, low=mean - half, high=mean + half)


def over(rates: Mapping[str, F64], name: str, base: str | None) -> Estimate | None:
    """A ratio seed by seed; None where there is nothing to divide by, or nothing else."""
    return None if base is None or base not in rates or base == name else estimate(rates[name] / rates[base])
