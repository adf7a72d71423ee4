"""Serving under load: every policy with 1 to 32 requests at once, on one core and on two, in the real engine.

Runs are closed loops (`serve`) over a mix of math, code and chat. Within a repeat all policies answer the same
prompts and take turns; repeats have prompts of their own. Finished runs are kept, one a line, so that a killed
measurement goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.engine.load import TextTarget, data_folder, find_model
from companion.experiments.bars import Bar, Verdict, verdict
from companion.experiments.load.design import Config, check, design, texts
from companion.experiments.load.policies import JUDGED, PLAIN, fitted, make
from companion.experiments.load.serve import LoadedEngine, Run, RunKey, serve
from companion.experiments.load.summary import Cell, Ratio, bars, cells, identical, ratios
from companion.experiments.stored import append_rows, read_result, resume_rows
from companion.experiments.yardstick import Yardstick
from companion.protocols import Drafter, Sampling
from companion.provenance import collect, file_hash, system, write_json
from companion.scheduling.capacity import CapacityTable
from companion.scheduling.capacity_file import engine_version, load_capacity
from companion.scheduling.ranking import Calibrate


class Result(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]  # both deployed forms over the best static depth, plain decoding not among them
    ratios: list[Ratio]  # of every policy over plain decoding and over that depth
    cells: list[Cell]
    identical: dict[str, tuple[int, int]]  # greedy: answers equal to plain decoding's, of all compared
    temperatures: dict[str, list[float]]  # of each setting's calibration
    provenance: dict[str, Any]


def run(
    output: Path | None = None,
    rows: Path | None = None,
    config: Config | None = None,
    capacity: Path | None = None,
    calibration: Path | None = None,
) -> Result:
    """Serve what ``rows`` (JSONL) does not hold yet, and write ``output`` (JSON) when all is there.

    ``capacity`` is a table of `companion profile`, ``calibration`` a folder of blocks recorded on other prompts; by
    default those of the book. ValueError for rows of other weights or settings, and for settings that measure nothing.
    """
    config = config or Config()
    check(config)
    results = data_folder() / "results"
    capacity = capacity or results / "capacity_cpu.json"
    target = companion.load_target(config.target, device=config.device)
    if config.drafter in ("none", "lookup", "draft"):
        raise ValueError("policies schedule by confidence: name a drafter with a confidence head, such as dspark")
    companion.load_drafter(config.drafter, target)
    model = find_model(config.drafter).describe()
    folder = calibration or results / "calibration"
    calibrated = {s.name: fitted(folder, model, f"{s.temperature:g}", s.thinking) for s in config.settings}
    temperatures = {name: list(t.values) for name, t in calibrated.items()}
    for threads in {n for s in config.settings for n in s.threads}:
        load_capacity(capacity, threads=threads, here=False)  # before anything is written
    identity: dict[str, Any] = {
        "target": target.source,
        "drafter": model,
        "config": config.model_dump(mode="json", exclude={"resamples"}),
        "capacity_sha256": file_hash(capacity),
        "temperatures": temperatures,
        "engine_version": engine_version(),
        "system": {k: v for k, v in system().items() if k != "threads"},
    }
    path = rows or Path("runs") / "load" / "runs.jsonl"
    done = resume_rows(path, identity, Run)
    started, before = os.getloadavg()[0], torch.get_num_threads()
    try:
        for made in _missing(config, done, target, capacity, {n: t.one for n, t in calibrated.items()}):
            append_rows(path, made)
            done.extend(made)
    finally:
        torch.set_num_threads(before)
    found = ratios(done, config.resamples, config.seed)
    judged = bars(found, done)
    greedy = {s.name for s in config.settings if s.temperature == 0}
    result = Result(
        config=config,
        verdict=verdict(judged),
        bars=judged,
        ratios=found,
        cells=cells(done),
        identical=identical([r for r in done if r.key.setting in greedy]),
        temperatures=temperatures,
        provenance=collect(
            target=target.source,
            drafter=model,
            thinking="both",
            sampling={"temperatures": sorted({s.temperature for s in config.settings})},
            seeds=[config.seed],
            prompts=[text for s in config.settings for r in range(s.repeats) for text in texts(s, r, config.seed)],
            capacity=json.loads(capacity.read_text(encoding="utf-8"))["provenance"].get("harness"),
            capacity_sha256=identity["capacity_sha256"],
            engine_version=identity["engine_version"],
            load_average=[started, os.getloadavg()[0]],
            busy=[min(r.busy for r in done), sorted(r.busy for r in done)[len(done) // 2]],
            served_seconds=sum(r.seconds for r in done),
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def _missing(
    config: Config, done: Sequence[Run], target: TextTarget, capacity: Path, calibrations: dict[str, Calibrate]
) -> Iterator[list[Run]]:
    """Serve one group after another; a thread count begins with one that warms up and is not kept."""
    groups, there = design(config), {r.key for r in done}
    model = find_model(config.drafter).describe()
    names = dict.fromkeys(key.policy for keys in groups for key in keys)
    drafters = {name: companion.load_drafter(config.drafter, target) for name in names}  # each keeps its own requests
    bar = tqdm(total=len(groups), desc="load", unit="group", disable=None)
    tables, yardstick = dict[int, CapacityTable](), Yardstick(target)
    for keys in groups:
        todo = [key for key in keys if key not in there]
        bar.update()
        if not todo:
            continue
        threads = todo[0].threads
        if threads not in tables:
            torch.set_num_threads(threads)
            tables = {threads: load_capacity(capacity, threads=threads, target=target.source, drafter=model)}
            serve(_engines(todo, config, target, drafters, tables[threads], calibrations))
        yield serve(_engines(todo, config, target, drafters, tables[threads], calibrations), yardstick)
        bar.set_postfix_str(f"{keys[0].setting}, {threads} thread(s), {keys[0].concurrency} at once")
    bar.close()


def _engines(
    keys: Sequence[RunKey],
    config: Config,
    target: TextTarget,
    drafters: Mapping[str, Drafter | None],
    table: CapacityTable,
    calibrations: Mapping[str, Calibrate],
) -> dict[RunKey, LoadedEngine]:
    """The engines of a group, all with the same prompts."""
    s = next(s for s in config.settings if s.name == keys[0].setting)
    prompts = [target.render(text, thinking=s.thinking) for text in texts(s, keys[0].repeat, config.seed)]
    found = {}
    for key in keys:
        drafter = drafters[key.policy]
        assert drafter is not None
        found[key] = LoadedEngine(
            key,
            target,
            None if key.policy == PLAIN else drafter,
            make(key.policy, table, calibrations[s.name], drafter.max_depth),
            prompts,
            sampling=Sampling(s.temperature),
            max_new_tokens=config.max_new_tokens,
            window=config.window + config.window_each * key.concurrency,
            seed=config.seed,
        )
    return found


def load(path: Path) -> Result:
    """A stored result. ValueError when the file is none."""
    return read_result(path, Result, "experiment load")


def show(result: Result) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = ("policy", "tokens/s", "per user, p10", "B/R", "tau", "wasted", "draft", "policy")
    for setting in dict.fromkeys((c.setting, c.threads, c.concurrency) for c in result.cells):
        name, threads, concurrency = setting
        table = Table(*columns, title=f"{name}, {threads} thread(s), {concurrency} at once")
        for c in (c for c in result.cells if (c.setting, c.threads, c.concurrency) == setting):
            numbers = (
                f"{c.tokens_per_second:.0f} [{min(c.by_repeat):.0f}, {max(c.by_repeat):.0f}]",
                f"{c.per_user:.0f}, {c.per_user_p10:.0f}",
                f"{c.budget:.2f}",
                f"{c.tau:.2f}",
                f"{100 * c.wasted_share:.0f} %",
                f"{100 * c.draft_share:.0f} %",
                f"{100 * c.policy_share:.1f} %",
            )
            table.add_row(c.policy, *numbers)
        console.print(table)
    for r in result.ratios:
        if r.policy in JUDGED:
            console.print(
                f"{r.setting}, {r.threads} thread(s), {r.concurrency} at once: {r.policy} over {r.over} "
                f"{r.value:.3f} [{r.low:.3f}, {r.high:.3f}]"
            )
    for bar in result.bars:
        console.print(f"{bar.name}: {bar.value:.3f} [{bar.low:.3f}, {bar.high:.3f}]: {bar.outcome}")
    console.print(
        "greedy answers equal to plain: " + ", ".join(f"{p} {a}/{b}" for p, (a, b) in result.identical.items())
    )
    console.print(f"verdict: {result.verdict}")
