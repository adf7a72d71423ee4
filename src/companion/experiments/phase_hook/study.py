"""The hook off, uncalibrated, calibrated by the note's rate, by the solved rate, by the position curve, and an oracle.

For each drafter and temperature: rates by phase and the time of rounds are measured on one set of prompts; then every
arm answers another set, thinking on, one request at a time, in turns (`race`). Speed is tokens over seconds, by phase
of the tokens. The hook's bars were set beforehand: calibrated, inside the span at least 0.97 of plain decoding's speed
for every drafter, and outside it at least 0.97 of the drafter's speed without a hook. One arm is there twice: where
its two copies cannot be told to be equal, the clock was disturbed and nothing is judged. A drafter and temperature that
is done is kept as one line, so that a killed run goes on behind it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.engine.load import TextTarget
from companion.experiments.bars import Bar, Verdict, verdict
from companion.experiments.phase_hook import design
from companion.experiments.phase_hook.design import Config, arms, check, fitting, judging
from companion.experiments.phase_hook.fit import StepCosts, full_drafts, known_exactly, load, request_of, step_costs
from companion.experiments.phase_hook.race import PHASES, Answer, Runner, race
from companion.experiments.phase_hook.summary import (
    Cell,
    Ratio,
    bars,
    busy,
    cells,
    disturbed,
    identical,
    ratios,
)
from companion.experiments.stored import append_rows, read_result, resume_rows
from companion.phase.origin import Measured
from companion.phase.rates import MeasuredRates
from companion.phase.report import Report
from companion.planning import CostModel
from companion.protocols import Drafter, Phase, Policy, Sampling
from companion.provenance import collect, shortened, system, write_json
from companion.scheduling.capacity import Capacity
from companion.scheduling.capacity_file import engine_version
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.phase_hook import Decision, PhaseHook, Serving


class Planned(BaseModel):
    """What an arm's hook decides in a phase where entropy says nothing."""

    arm: str
    phase: Phase
    depth: int
    basis: str
    rate: float | None
    tau: float | None


class Case(BaseModel):
    """One drafter at one temperature."""

    drafter: str
    temperature: float
    deterministic: bool
    depth: int
    costs: StepCosts
    banner: str  # of the run that the rates come from
    planned: list[Planned]
    busy: float  # share of the race's time in which this thread had a core
    answers: list[Answer] = []  # as they are kept while measuring; a result has their sums alone


class Result(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]
    ratios: list[Ratio]  # of every arm over plain decoding and over the drafter without a hook
    cells: list[Cell]
    cases: list[Case]
    identical: dict[str, tuple[int, int]]  # greedy: drafter -> answers equal to plain decoding's, of all compared
    provenance: dict[str, Any]


def run(output: Path | None = None, rows: Path | None = None, config: Config | None = None) -> Result:
    """Measure what ``rows`` (JSONL) does not hold yet, and write ``output`` (JSON) when all is there.

    ValueError for rows of other weights or settings, and for a design that measures nothing.
    """
    config = config or Config()
    check(config)
    target = companion.load_target(config.target, device=config.device)
    described = {name: load(name, target)[1] for name in config.drafters}
    identity: dict[str, Any] = {
        "target": target.source,
        "drafters": list(described.values()),
        "config": config.model_dump(mode="json", exclude={"resamples"}),
        "engine_version": engine_version(),
        "system": {k: v for k, v in system().items() if k != "threads"},
    }
    path = rows or Path("runs") / "phase_hook" / "cases.jsonl"
    done = resume_rows(path, identity, Case)
    load_average, before = [os.getloadavg()[0]], torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        for case in _missing(config, target, described, done):
            append_rows(path, [case])
            done.append(case)
    finally:
        torch.set_num_threads(before)
    load_average.append(os.getloadavg()[0])
    known = [cell for case in done for cell in cells(case.drafter, case.temperature, case.answers)]
    found = [
        ratio
        for case in done
        for ratio in ratios(case.drafter, case.temperature, case.answers, config.resamples, config.seed)
    ]
    judged = bars(found, known, {(case.drafter, case.temperature) for case in done if crowded(case, config)})
    result = Result(
        config=config,
        verdict=verdict(judged),
        bars=judged,
        ratios=found,
        cells=known,
        cases=[case.model_copy(update={"answers": []}) for case in done],
        identical={case.drafter: identical(case.answers) for case in done if case.temperature == 0},
        provenance=collect(
            target=target.source,
            thinking=True,
            sampling={"temperatures": list(config.temperatures)},
            seeds=[config.seed],
            prompts=[sample.prompt for sample in judging(config)],
            drafters=list(described.values()),
            engine_version=identity["engine_version"],
            load_average=load_average,
        ),
    )
    result = Result.model_validate(shortened(result.model_dump(mode="json")))
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def crowded(case: Case, config: Config) -> bool:
    """Whether others had the core too often. Told of one thread on a CPU; what several do, or a GPU, is not seen."""
    one_thread = config.device == "cpu" and config.threads == 1
    return one_thread and min(case.costs.busy, case.busy) < design.UNDISTURBED


def _missing(
    config: Config, target: TextTarget, described: Mapping[str, Mapping[str, Any]], done: Sequence[Case]
) -> Iterator[Case]:
    there = {(case.drafter, case.temperature) for case in done}
    todo = [(name, t) for name in config.drafters for t in config.temperatures]
    bar = tqdm(todo, desc="phase hook", unit="case", disable=None)
    for name, temperature in bar:
        bar.set_postfix_str(f"{name}, temperature {temperature:g}")
        if (name, temperature) not in there:
            yield measure(config, target, name, described[name], temperature)


def measure(config: Config, target: TextTarget, name: str, described: Mapping[str, Any], temperature: float) -> Case:
    """Fit on one set of prompts, then let every arm answer the other."""
    drafter, sampling = load(name, target)[0], Sampling(temperature)
    fit, judge = fitting(config), judging(config)
    timed = {"max_new_tokens": config.max_new_tokens, "seed": config.seed}
    fitted, ideal = (full_drafts(target, drafter, described, own, sampling, **timed) for own in (fit, judge))
    costs = step_costs(target, drafter, fit, sampling, rounds=config.timed_rounds, **timed)
    names = arms(drafter.deterministic, temperature)
    chosen = {arm: policy(arm, target, drafter, fitted, ideal, costs.capacity()) for arm in names}
    order = random.Random(config.seed)
    answers, number = [], 1 << 20  # a drafter knows requests by number, and one serves all arms
    for i, sample in [(0, judge[0]), *enumerate(judge)]:  # the first one once more: what warms up is not kept
        for repeat in range(config.repeats):
            runners = {}
            for arm in names:
                number += 1
                request = request_of(target, sample, number, sampling, config.seed + repeat, config.max_new_tokens)
                runners[arm] = Runner(target, None if arm == design.PLAIN else drafter, chosen[arm], request)
            race(runners, order)
            answers += [runner.answer(arm, i, sample.domain, repeat) for arm, runner in runners.items()]
    hooks = {arm: one for arm, one in chosen.items() if isinstance(one, PhaseHook)}
    answers = answers[len(names) * config.repeats :]
    return Case(
        drafter=name,
        temperature=temperature,
        deterministic=drafter.deterministic,
        depth=drafter.max_depth,
        costs=costs,
        banner=fitted.origin.banner,
        planned=[_planned(arm, phase, hook.decide(phase)) for arm, hook in hooks.items() for phase in PHASES],
        busy=busy(answers),
        answers=answers,
    )


def policy(
    arm: str, target: TextTarget, drafter: Drafter, fitted: Report[Any], ideal: Report[Any], capacity: Capacity
) -> Policy:
    """What an arm chooses depths by. ValueError where the fitted prompts were too few for its rates."""
    if arm == design.PLAIN:
        return FixedDepth(0)
    if arm in (design.OFF, design.AGAIN):
        return FixedDepth(drafter.max_depth)
    own: dict[str, Any] = {
        "baseline": drafter.max_depth,
        "max_depth": drafter.max_depth,
        "vocab_size": target.vocab_size,
        "deterministic": drafter.deterministic,
    }
    if arm == design.SHIPPED:
        return PhaseHook(**own)
    if arm == design.SHRUNK:
        return PhaseHook(**own, min_depth=0, costs=capacity)
    run: Measured = fitted.origin
    rates = (
        known_exactly(ideal, "solved")
        if arm == design.ORACLE
        else MeasuredRates.from_report(fitted, "token_acceptance" if arm == design.NOTE else "solved")
    )
    return PhaseHook(
        **own,
        min_depth=0,
        costs=CostModel() if arm == design.PLACEHOLDERS else capacity,
        planner="curve" if arm in (design.CURVE, design.ORACLE) else "iid",
        rates=rates,
        serving=Serving(run.target, run.drafter, run.target_revision, run.drafter_revision),
    )


def _planned(arm: str, phase: Phase, found: Decision) -> Planned:
    return Planned(arm=arm, phase=phase, depth=found.depth, basis=found.basis, rate=found.rate, tau=found.tau)


def load_stored(path: Path) -> Result:
    """A stored result. ValueError when the file is none."""
    return read_result(path, Result, "experiment phase-hook")


def show(result: Result) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = ("arm", "phase", "depth", "tau", "tokens/s", "over plain", "over no hook")
    speed = {(r.drafter, r.temperature, r.arm, r.part, r.over): r for r in result.ratios}
    for case in result.cases:
        table = Table(*columns, title=f"{case.drafter}, temperature {case.temperature:g}")
        for c in result.cells:
            if (c.drafter, c.temperature) != (case.drafter, case.temperature) or c.part == "all":
                continue
            over = [speed.get((c.drafter, c.temperature, c.arm, c.part, base)) for base in (design.PLAIN, design.OFF)]
            table.add_row(
                c.arm, c.part, *map(_number, (c.depth, c.tau)), _number(c.tokens_per_second, 0), *map(_ratio, over)
            )
        console.print(table)
        straddling = max(c.straddle_rate for c in result.cells if c.drafter == case.drafter)
        if crowded(case, result.config):
            console.print("timed while others wanted the core: nothing is judged by it; measure on an idle machine")
        elif (case.drafter, case.temperature) in disturbed(result.ratios):
            console.print("two arms that do the same took different times: nothing is judged by it; measure again")
        console.print(f"{case.banner}; at most {100 * straddling:.1f} % of an arm's rounds straddle")
    for bar in result.bars:
        value = "none" if bar.value is None else f"{bar.value:.3f}"
        interval = "" if bar.low is None or bar.high is None else f" [{bar.low:.3f}, {bar.high:.3f}]"
        console.print(f"{bar.name}: {value}{interval}: {bar.outcome}")
    console.print(
        "greedy answers equal to plain: " + ", ".join(f"{d} {a}/{b}" for d, (a, b) in result.identical.items())
    )
    console.print(f"verdict: {result.verdict}")


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _ratio(found: Ratio | None) -> str:
    if found is None or found.value is None:
        return ""
    return f"{found.value:.3f}" + ("" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]")
