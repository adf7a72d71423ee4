"""SPS(B) of a real engine: what its steps take, by requests, depth and context, drafting and all else apart.

Every step is one of the engine, at temperature 1, with a fixed depth: R requests at about the same context length draft
d tokens each and verify all of them, B = R (1 + d). ``verify`` is the target's forward, the rule, the statistics of the
rows and the commit; ``draft`` is all the rest of the step: the proposal, the policy, and the drafter's reading of what
was committed. Depths take turns step by step, requests and contexts wave by wave, so that a slow spell of the machine
hits all of them alike: timed apart, cells of other minutes make jags, at which an early stop stops. Of each cell the
median and the quartiles are kept, jagged as they come.

Cells with the same B and other R differ, since each request reads its own keys and values. So at every context

    verify(R, d) = curve(B) + R read

is fitted by least squares, with a free value of the curve at every B: `companion.scheduling.capacity` has this form.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.drafters.lookup import LookupDrafter
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.load import TextTarget, find_model
from companion.engine.request import Request, StopRule
from companion.experiments.capacity_errors import ContextError, context_errors
from companion.experiments.capacity_tables import Cell, Table, table_of_cells
from companion.experiments.yardstick import Yardstick
from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, Drafter, Sampling
from companion.provenance import collect, write_json
from companion.scheduling.capacity_file import FORMAT, engine_version
from companion.scheduling.fixed import FixedDepth
from companion.training.corpus import DOMAINS, held_out_samples

GENERATED = 40  # new tokens of a wave: the context of a cell drifts by less


class Config(BaseModel):
    target: str = "tiny-qwen3"
    drafter: str = "dspark"
    device: str = "cpu"
    threads: tuple[int, ...] = (1, 2)
    requests: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (64, 192, 384)
    repeats: int = 8  # timed steps of every cell, at least
    seed: int = 0


class Result(BaseModel):
    format: str
    config: Config
    tables: list[Table]  # one a thread count
    cells: list[Cell]  # what they were made of
    errors: list[ContextError]  # of a curve at one context used at another
    provenance: dict[str, Any]


def run(config: Config | None = None, output: Path | None = None) -> Result:
    """Measure, and write ``output`` (JSON, as `load_capacity` reads it) when all is there. ValueError for settings that
    measure nothing or do not fit the models."""
    config = config or Config()
    _check(config)
    target = companion.load_target(config.target, device=config.device)
    drafter = companion.load_drafter(config.drafter, target)
    if drafter is None:
        raise ValueError("a capacity table is measured with a drafter; name one, such as dspark")
    if isinstance(drafter, LookupDrafter):
        raise ValueError("lookup drafts what it finds, so that no depth can be timed; name a model, such as dspark")
    described = find_model("tiny-qwen3-draft" if config.drafter == "draft" else config.drafter).describe()
    longest = min(target.max_context, drafter.max_context or target.max_context)
    if max(config.contexts) + GENERATED > longest:
        raise ValueError(f"contexts may go up to {longest - GENERATED} tokens with these models, got {config.contexts}")
    text = chained_text(target, max(config.contexts), config.seed)
    before, load = torch.get_num_threads(), [os.getloadavg()[0]]
    cells: list[Cell] = []
    speeds: dict[int, float] = {}
    try:
        for threads in config.threads:
            torch.set_num_threads(threads)
            found, speeds[threads] = measure(target, drafter, text, config)
            cells += found
            load.append(os.getloadavg()[0])
    finally:
        torch.set_num_threads(before)
    tables = [
        table_of_cells(threads, [c for c in cells if c.threads == threads], speeds[threads])
        for threads in config.threads
    ]
    result = Result(
        format=FORMAT,
        config=config,
        tables=tables,
        cells=cells,
        errors=[error for table in tables for error in context_errors(table, cells)],
        provenance=collect(
            target=target.source,
            drafter=described,
            sampling={"temperature": 1.0},
            seeds=[config.seed],
            engine_version=engine_version(),
            load_average=load,
            **config.model_dump(exclude={"target", "drafter", "seed"}),
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def _check(config: Config) -> None:
    for name in ("threads", "requests", "contexts"):
        values = getattr(config, name)
        if not values or min(values) < 1 or list(values) != sorted(set(values)):
            raise ValueError(f"{name} must be whole numbers from 1 on that rise, got {list(values)}")
    if min(config.contexts) <= GENERATED:
        raise ValueError(f"contexts must exceed the {GENERATED} tokens that a wave writes, got {list(config.contexts)}")
    if config.repeats < 3:
        raise ValueError(f"repeats must be at least 3 for a median with quartiles, got {config.repeats}")


def chained_text(target: TextTarget, length: int, seed: int) -> list[int]:
    """Held-out conversations, one after another, with the target's own answers: at least four times ``length``."""
    found: list[int] = []
    for count in (4, 16, 64):
        prompts = [s.prompt for d in DOMAINS for s in held_out_samples(d, "think", count, seed=seed)]
        results = companion.generate(target, None, prompts, max_new_tokens=256, seed=seed, max_batch=16)
        found = [token for result in results for token in (*result.prompt_tokens, *result.tokens)]
        if len(found) >= 4 * length:
            break
    return found


def measure(target: TextTarget, drafter: Drafter, text: Sequence[int], config: Config) -> tuple[list[Cell], float]:
    """All cells at the present number of threads, and what the yardstick took in between."""
    depths = range(drafter.max_depth + 1)
    seen: dict[tuple[int, int, int], list[tuple[float, float, float]]] = defaultdict(list)  # [step](draft, verify, at)
    pairs = list(product(config.contexts, config.requests))
    bar = tqdm(total=len(pairs), desc=f"capacity, {torch.get_num_threads()} thread(s)", disable=None)
    wave = 0
    for context, requests in pairs:  # warm
        _wave(target, drafter, text, context, requests, depths, wave)
    open_pairs, yardstick, taken = list(pairs), Yardstick(target), list[float]()
    while open_pairs:
        for context, requests in open_pairs:
            taken.append(yardstick())
            missing = sorted(depths, key=lambda d: (len(seen[context, requests, d]), d))
            for depth, *times in _wave(target, drafter, text, context, requests, missing, wave):
                seen[context, requests, depth].append((times[0], times[1], times[2]))
            wave += 1
        left = [p for p in open_pairs if min(len(seen[(*p, d)]) for d in depths) < config.repeats]
        bar.update(len(open_pairs) - len(left))
        open_pairs = left
    bar.close()
    cells = [
        Cell.of(torch.get_num_threads(), context, requests, depth, seen[context, requests, depth])
        for (context, requests), depth in product(pairs, depths)
    ]
    return cells, float(np.median(taken))


def _wave(
    target: TextTarget,
    drafter: Drafter,
    text: Sequence[int],
    context: int,
    requests: int,
    depths: Sequence[int],
    wave: int,
) -> list[tuple[int, float, float, float]]:
    """Depth, drafting seconds, verifying seconds and mean context of the steps in which all requests took part."""
    policy = FixedDepth(0)
    engine = Engine(target, drafter, policy, max_batch=requests, capacity=context + GENERATED)
    batch, timed = [], []
    for i in range(requests):
        start = (97 * i + 31 * wave) % (len(text) - context)
        ids = list(text[start : start + context - GENERATED // 2])
        draws = KeyedDraws(wave, request_key(ids, i))
        batch.append(
            Request(Context(i, ids, Sampling(), draws), len(ids), StopRule(GENERATED), PhaseTracker(target.tags))
        )
        engine.submit(batch[-1])
    step = -1
    while not all(r.finish_reason for r in batch):
        running = [r for r in batch if not r.finish_reason]
        whole = len(running) == requests and step >= 0  # the first step is the prefill
        policy.depth = depths[step % len(depths)] if whole else drafter.max_depth
        position = float(np.mean([len(r.context.tokens) for r in running]))
        started = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - started
        step += 1
        if whole and all(r.rounds[-1].verified == policy.depth for r in running):
            verify = running[0].rounds[-1].verify_seconds
            timed.append((policy.depth, seconds - verify, verify, position))
    return timed


def show(result: Result) -> None:
    """Print the tables and how wrong a curve of one context is at another."""
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console()
    for own in result.tables:
        grid = Grid("B", *(f"context {c}" for c in own.contexts), title=f"{own.threads} thread(s): milliseconds of B")
        for i, size in enumerate(own.sizes):
            grid.add_row(str(size), *(f"{1e3 * row[i]:.2f}" for row in own.verify))
        grid.add_row("a request", *(f"{1e3 * read:.3f}" for read in own.reads))
        console.print(grid)
        for context, by_depth in zip(own.contexts, own.draft.seconds, strict=True):
            drafted = ", ".join(
                f"{r}: {1e3 * one:.2f} to {1e3 * whole:.2f}"
                for r, one, whole in zip(own.draft.requests, by_depth[0], by_depth[-1], strict=True)
            )
            console.print(f"drafting one token to the whole block at context {context}, ms by requests: {drafted}")
        console.print(f"a cell's step is off the table by {100 * own.misfit:.1f} % in the median")
    for e in result.errors:
        console.print(
            f"{e.threads} thread(s), curve of context {e.used} at {e.at}: a step is off by {100 * e.median:.1f} % in "
            f"the median, {100 * e.worst:.1f} % at worst"
        )
