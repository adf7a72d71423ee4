"""What the review leaves open about scheduling, answered in the simulator; every ratio is of throughputs, seed by seed.

gaps         what the deployed form loses by its delay, and Algorithm 1 by its early stop, against the search on the
             confidences of the same step (which no lossless scheduler may run), and that against the oracle
drifts       what wrong confidences cost: logits divided by a temperature after they were calibrated, and calibrations
             fitted on one domain's prompts and used on another's
parts        a gain over static depth 1 taken apart, by swapping one thing at a time: the depth, the drafter, drafting
             the whole block whatever is verified of it, the scheduler, and its limit on what is drafted
fairness     who gets the slots, and who goes without for how long
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import BaseModel
from scipy.special import expit, logit

from companion.calibration import fit
from companion.experiments.load.policies import DEPLOYED, LIMITED, METHOD, STATIC
from companion.experiments.simulation.points import (
    LAG,
    ORACLE,
    SAME_STEP,
    Estimate,
    Served,
    closed_loop,
    column,
    estimate,
    loads,
    make,
)
from companion.experiments.simulation.tables import Clock
from companion.resampling import F64
from companion.serving import Replay
from companion.training.corpus import DOMAINS

LAGS = (1, 2, 4, 8)
DISTORTIONS = (0.25, 0.5, 2.0, 4.0)
LONG = 5  # rounds without a slot that count as starving


class Compared(BaseModel):
    """Throughput of ``what`` over that of ``over``."""

    table: str
    temperature: float
    concurrency: int
    what: str
    over: str
    ratio: Estimate


class Part(BaseModel):
    """A factor of a gain; the ``total`` is the product of the others at every seed."""

    table: str
    temperature: float
    concurrency: int
    part: str
    factor: Estimate


class Fair(BaseModel):
    """Of the requests of a domain, or of all. Shares are of what was drafted."""

    table: str
    temperature: float
    concurrency: int
    policy: str
    domain: str
    requests: int
    verified: float
    expected: float  # by the confidences
    accepted: float
    longest: float  # rounds in a row without a slot: mean over requests of each one's longest
    longest_of_all: int
    starving: float  # share of requests that went `LONG` rounds or more without
    slowest: float  # p10 of speeds over their mean


def gaps(clock: Clock, served: Served, concurrency: int, seeds: Sequence[int]) -> Iterator[Compared]:
    """Lags, the early stop and the oracle."""
    names = [SAME_STEP, "prefix", *(f"{LAG}{lag}" for lag in LAGS), ORACLE]
    rates = _rates(names, clock, served, concurrency, seeds)
    for name in names[1:]:
        ratio = estimate(rates[name] / rates[SAME_STEP])
        yield _compared(clock, served, concurrency, name, SAME_STEP, ratio)


def drifts(clock: Clock, served: Served, concurrency: int, seeds: Sequence[int]) -> Iterator[Compared]:
    """Calibrated confidences against distorted ones, and each domain's own calibration against the others'."""

    def rate(pool: Sequence[Replay]) -> F64:
        depth = pool[0].depth
        found = [
            closed_loop(make(DEPLOYED, clock.capacity, depth), clock.capacity, pool, concurrency, seed)
            for seed in seeds
        ]
        return column([window.load() for window in found], "throughput")

    base = rate(served.calibrated)
    for t in DISTORTIONS:
        pool = [r.with_confidence(_warmed(r.confidence, t)) for r in served.calibrated]
        yield _compared(clock, served, concurrency, f"logits / {t:g}", "calibrated", estimate(rate(pool) / base))
    yield _compared(clock, served, concurrency, "uncalibrated", "calibrated", estimate(rate(served.raw) / base))
    for domain in DOMAINS:
        halves = {other: _half([r for r in served.raw if r.domain == other], 0) for other in DOMAINS}
        use = _half([r for r in served.raw if r.domain == domain], 1)
        if min(map(len, (use, *halves.values()))) < 2:
            continue
        own = rate(_fitted(halves[domain], use))
        for other in DOMAINS:
            if other != domain:
                ratio = estimate(rate(_fitted(halves[other], use)) / own)
                what = f"{domain}, calibrated on {other}"
                yield _compared(clock, served, concurrency, what, f"on {domain}", ratio)


def _rates(
    names: Sequence[str], clock: Clock, served: Served, concurrency: int, seeds: Sequence[int]
) -> dict[str, F64]:
    """Throughputs, [seeds] of each policy."""
    return {name: column(own, "throughput") for name, own in loads(names, clock, served, concurrency, seeds).items()}


def _compared(clock: Clock, served: Served, concurrency: int, what: str, base: str, ratio: Estimate) -> Compared:
    return Compared(
        table=clock.name, temperature=served.temperature, concurrency=concurrency, what=what, over=base, ratio=ratio
    )


def _warmed(confidence: Sequence[Sequence[float]] | None, temperature: float) -> F64:
    return np.asarray(expit(logit(np.array(confidence)) / temperature))


def _half(pool: Sequence[Replay], which: int) -> list[Replay]:
    return list(pool[which::2])


def _fitted(known: Sequence[Replay], used: Sequence[Replay]) -> list[Replay]:
    """``used`` with temperatures from ``known``. Whether a prefix survives is all that the paper's fit asks of them."""
    confidence = np.concatenate([np.array(r.confidence) for r in known])
    logits = np.clip(logit(np.clip(confidence, 1e-12, 1 - 1e-12)), -30, 30)
    leading = np.concatenate([r.leading for r in known])[:, None]
    temperatures = fit(METHOD, logits, (np.arange(logits.shape[1]) < leading).astype(float))
    return [r.with_confidence(temperatures.apply(np.array(r.confidence))) for r in used]


def parts(
    clock: Clock,
    served: Served,
    concurrency: int,
    seeds: Sequence[int],
    independent: tuple[Clock, Served] | None = None,
) -> Iterator[Part]:
    """From static depth 1 to the best static depth; from there, if the table and the responses of an ``independent``
    drafter are given and depths were its own, to this drafter at its best depth; then to its best depth when the whole
    block is drafted all the same, as a scheduler has it; from there to the scheduler; and to the one that limits what
    is drafted."""
    rates = _rates([*STATIC, DEPLOYED, LIMITED], clock, served, concurrency, seeds)
    whole = _rates(STATIC, clock.whole_block(), served, concurrency, seeds)
    best, same = (max((own[name] for name in STATIC), key=lambda rate: float(rate.mean())) for own in (rates, whole))
    if independent is None:
        factors = {"depth": best / rates["fixed-1"]}
    else:
        others = _rates(STATIC, *independent, concurrency, seeds)
        deepest = max(others.values(), key=lambda rate: float(rate.mean()))
        factors = {"depth": deepest / others["fixed-1"], "drafter": best / deepest}
    factors |= {"whole block": same / best, "scheduler": rates[DEPLOYED] / same}
    factors["depth limit"] = rates[LIMITED] / rates[DEPLOYED]
    factors["total"] = np.prod(list(factors.values()), axis=0)
    for name, values in factors.items():
        yield Part(
            table=clock.name,
            temperature=served.temperature,
            concurrency=concurrency,
            part=name,
            factor=estimate(values),
        )


def fairness(
    clock: Clock,
    served: Served,
    concurrency: int,
    seeds: Sequence[int],
    policies: Sequence[str] = (DEPLOYED, LIMITED, "prefix"),
) -> Iterator[Fair]:
    """Over all requests of all seeds, together and by domain."""
    for name in policies:
        found = []
        for seed in seeds:
            policy = make(name, clock.capacity, served.raw[0].depth)
            found.append(closed_loop(policy, clock.capacity, served.of(name), concurrency, seed, turnover=4).fairness())
        domains = np.concatenate([own.domain for own in found])
        for domain in ("all", *DOMAINS):
            mask = np.ones(len(domains), dtype=bool) if domain == "all" else domains == domain
            if not mask.any():
                continue
            share, need, worth, starved, speed = (
                np.concatenate([getattr(own, field) for own in found])[mask]
                for field in ("share", "need", "accepted", "starved", "speed")
            )
            yield Fair(
                table=clock.name,
                temperature=served.temperature,
                concurrency=concurrency,
                policy=name,
                domain=domain,
                requests=int(mask.sum()),
                verified=float(share.mean()),
                expected=float(need.mean()),
                accepted=float(worth.mean()),
                longest=float(starved.mean()),
                longest_of_all=int(starved.max()),
                starving=float((starved >= LONG).mean()),
                slowest=float(np.quantile(speed, 0.1) / speed.mean()),
            )
