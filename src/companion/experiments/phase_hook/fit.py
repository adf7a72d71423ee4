"""What a hook plans with, measured on prompts of their own: rates by phase from full drafts, and what rounds take."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from pydantic import BaseModel
from scipy.stats import theilslopes

import companion
from companion.drafters.load import load_drafter
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.load import TextTarget, find_model
from companion.engine.request import Request, StopRule
from companion.experiments.phase_hook.design import ARGMAX
from companion.experiments.settling import Settling
from companion.phase.rates import Definition, MeasuredRates, PhaseRate
from companion.phase.report import Report
from companion.phase.sources import ledger_of_rounds
from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, Drafter, Sampling
from companion.provenance import collect
from companion.resampling import Interval
from companion.rounds import Rounds
from companion.scheduling.capacity import Capacity, Curve
from companion.scheduling.capacity_file import engine_version
from companion.scheduling.fixed import FixedDepth
from companion.training.corpus import Sample

RUN = 6  # timed rounds of a depth before another depth's turn
LEAST = 1e-9  # seconds: drafting that takes no longer than not drafting


class StepCosts(BaseModel):
    """Lower quartiles over rounds of one request: what else a machine does adds time to some rounds and takes none
    away, and would add it to some depths and not to others."""

    verify: dict[int, float]  # tokens in the target's forward -> seconds
    draft: list[float]  # seconds that drafting 1, 2, .. tokens adds to a round
    other: float  # seconds of every round, drafting or not
    rounds: int
    busy: float  # share of the time in which this thread had a core

    def capacity(self) -> Capacity:
        """What a policy is told. One token more takes a hundredth of a round, less than a depth's time is uncertain by:
        a line (Theil and Sen's) through the depths that draft says how it grows; the step that drafts nothing stands
        apart."""
        sizes = sorted(self.verify)
        verify = [self.verify[sizes[0]], *_line(sizes[1:], [self.verify[size] for size in sizes[1:]])]
        draft = _line(range(1, len(self.draft) + 1), self.draft)
        return Capacity(Curve(tuple(sizes), tuple(verify)), tuple(Curve((1,), (s,)) for s in draft), self.other)


def load(name: str, target: TextTarget) -> tuple[Drafter, dict[str, Any]]:
    """A drafter by the design's name, and how it is described in a provenance."""
    base = name.removesuffix(ARGMAX)
    drafter = load_drafter(base, target, proposal="greedy" if name.endswith(ARGMAX) else "sampled")
    if drafter is None:
        raise ValueError("plain decoding has no depth to choose; name a drafter")
    if base == "lookup":
        return drafter, {"name": name, "revision": f"code {engine_version()}"}  # it has no weights
    found = find_model("tiny-qwen3-draft" if base == "draft" else base).describe()
    return drafter, {**found, "name": name}


def request_of(
    target: TextTarget, sample: Sample, number: int, sampling: Sampling, seed: int, max_new_tokens: int
) -> Request:
    """A request with thinking on; the same prompt and seed draw the same numbers in every run."""
    ids = target.render(sample.prompt, thinking=True)
    context = Context(number, ids, sampling, KeyedDraws(seed, request_key(ids, 0)))
    return Request(context, len(ids), StopRule(max_new_tokens, target.eos_token_ids), PhaseTracker(target.tags, ids))


def full_drafts(
    target: TextTarget,
    drafter: Drafter,
    described: Mapping[str, Any],
    samples: Sequence[Sample],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    seed: int,
) -> Report[Any]:
    """A measured report of the drafter at its full depth, everything verified."""
    results = companion.generate(
        target,
        drafter,
        [sample.prompt for sample in samples],
        **asdict(sampling),
        thinking=True,
        max_new_tokens=max_new_tokens,
        seed=seed,
        labels=[{"prompt_id": f"{i}", "domain": s.domain, "mode": "think"} for i, s in enumerate(samples)],
    )
    record = collect(
        target=target.source,
        drafter=described,
        thinking=True,
        sampling=asdict(sampling),
        seeds=[seed],
        prompts=[sample.prompt for sample in samples],
        depth=drafter.max_depth,
        untrimmed=True,
    )
    return Report(ledger_of_rounds(Rounds((row for result in results for row in result.rounds), record)))


def known_exactly(report: Report[Any], definition: Definition) -> MeasuredRates:
    """The rates of a report as if its prompts were all there are: what an oracle knows."""
    found = MeasuredRates.from_report(report, definition)

    def exact(rate: PhaseRate) -> PhaseRate:
        return PhaseRate(_point(rate.rate), None if rate.curve is None else tuple(map(_point, rate.curve)))

    return MeasuredRates(found.origin, exact(found.think), exact(found.output), definition)


def _point(interval: Interval) -> Interval:
    return Interval(interval.value, interval.value, interval.value)


def step_costs(
    target: TextTarget,
    drafter: Drafter,
    samples: Sequence[Sample],
    sampling: Sampling,
    *,
    rounds: int,
    max_new_tokens: int,
    seed: int,
) -> StepCosts:
    """Time rounds of one request at a time, until each depth was asked for ``rounds`` times and more.

    A depth stays for some rounds before the next comes, in a random order, as it stays for a phase where it is served;
    the first of them are not counted (`companion.experiments.settling`). Verifying is timed by the tokens in the
    forward, which a drafter may leave below what it was asked for. All else of a step is drafting, as the depth that
    was asked for makes it, but for what a step has that drafts nothing.
    """
    depths = range(drafter.max_depth + 1)
    verify: defaultdict[int, list[float]] = defaultdict(list)
    rest: defaultdict[int, list[float]] = defaultdict(list)
    policy, order, number = FixedDepth(0), random.Random(seed), 0
    turns: list[int] = []
    settling, kept = Settling(), 0
    running = total = 0.0
    while min(len(rest[d]) for d in depths) < rounds:
        sample = samples[number % len(samples)]
        request = request_of(target, sample, number, sampling, seed, max_new_tokens)
        engine = Engine(target, drafter, policy, max_batch=1, capacity=request.prompt_length + max_new_tokens)
        engine.submit(request)
        while not request.finish_reason:
            if kept == RUN:
                turns, kept = turns or order.sample(depths, len(depths)), 0
                policy.depth = turns.pop()
            whole = request.room > policy.depth  # else the engine asks for less
            thread, started = time.thread_time(), time.perf_counter()
            engine.step()
            seconds = time.perf_counter() - started
            running, total = running + time.thread_time() - thread, total + seconds
            counts = whole and bool(request.rounds)  # nor does the prefill
            if settling.settled(policy.depth if counts else None, seconds) and counts:
                kept += 1
                row = request.rounds[-1]
                verify[1 + row.verified].append(row.verify_seconds)
                rest[policy.depth].append(seconds - row.verify_seconds)
        number += 1
    other = _quartile(rest[0])
    return StepCosts(
        verify={size: _quartile(times) for size, times in sorted(verify.items())},
        draft=[max(LEAST, _quartile(rest[d]) - other) for d in depths[1:]],
        other=other,
        rounds=sum(map(len, rest.values())),
        busy=running / total,
    )


def _line(x: Sequence[int], seconds: Sequence[float]) -> list[float]:
    if len(x) < 3:
        return list(seconds)
    slope, start = theilslopes(seconds, x, method="joint")[:2]
    return [max(LEAST, float(start + slope * one)) for one in x]


def _quartile(seconds: Sequence[float]) -> float:
    return float(np.quantile(seconds, 0.25))
