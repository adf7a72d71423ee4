"""Does a temperature mend a confidence head: fitted on one half of the prompts, scored on the other.

Of one drafter's recordings at several samplings, thinking off and on. The standard temperatures are fitted with
thinking off, on prompts in the domain mix that the drafter was trained on, at the sampling they are used at; then one
of these is changed at a time: the domains (drift), the phase, the sampling. The real loop, which visits other anchors,
is scored from its Rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from tqdm import tqdm

from companion.calibration import METHODS, PULL, Temperatures
from companion.compact import load_compact
from companion.experiments.bars import Bar, Verdict, judge, verdict
from companion.experiments.calibration_blocks import ALL, PHASES, load, of_rounds, sampling_key, training_shares
from companion.experiments.calibration_cells import Cell, Curve
from companion.experiments.calibration_halves import (
    LABEL,
    MIX,
    OFF,
    PAPER,
    Config,
    Halves,
    Limit,
    Shift,
    limits,
    shifts,
)
from companion.experiments.calibration_ranking import Ranking, Swaps, ranking, swaps
from companion.provenance import collect, write_json
from companion.resampling import F64, Interval
from companion.training.corpus import DOMAINS

WORTH = 0.05  # an ECE above this is worth mending
HALF = 0.5  # the part of it that a temperature must take away


class Calibration(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]
    temperatures: dict[str, list[float]]  # "sampling phase domain method half" -> T_1 .. T_K
    cells: list[Cell]
    curves: list[Curve]
    shifts: list[Shift]
    limits: list[Limit]
    rankings: list[Ranking]
    swaps: list[Swaps]
    provenance: dict[str, Any]


def run(
    folder: Path,
    rounds: Sequence[Path] = (),
    output: Path | None = None,
    temperatures: Path | None = None,
    config: Config | None = None,
) -> Calibration:
    """Of the recordings in ``folder`` and the Rounds files ``rounds`` of the same drafter.

    ``output`` (JSON) and ``temperatures`` (those of the paper's method at temperature 1, for a scheduler) are written
    when all is there. ValueError for what cannot be compared.
    """
    config = config or Config()
    blocks, known = load(folder)
    if LABEL not in blocks:
        raise ValueError(f"{folder} has no recording at temperature 1, which the confidence head is trained for")
    drafter = known[0]["drafter"]
    for table in map(load_compact, rounds):
        blocks[f"loop {sampling_key(table.provenance or {})}"] = of_rounds(table, drafter, known[0]["depth"])
    halves = Halves(blocks, training_shares(known), config, drafter)
    result = _study(halves, known)
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    if temperatures is not None:
        fitted = halves.fit(PAPER, LABEL)
        own = next(p for p in known if sampling_key(p) == LABEL)
        source = collect(target=own["target"], thinking=False, sampling=own["sampling"], seeds=own["seeds"])
        source["prompt_set"] = f"{own['prompt_set']}: those with an even number, in the training mix"
        Temperatures(PAPER, fitted.values, drafter, source).save(temperatures)
    return result


def _study(halves: Halves, known: Sequence[dict[str, Any]]) -> Calibration:
    c, every = halves.config, halves.blocks[LABEL]
    held_out = every.of(OFF)
    held_out = held_out.where(held_out.prompt % 2 == 1)
    parts: dict[str, Any] = {}
    made: dict[str, Iterator[BaseModel]] = {
        "cells": _cells(halves),
        "curves": _curves(halves),
        "shifts": shifts(halves),
        "limits": limits(halves),
        "rankings": (ranking(every.of(p), LABEL, p, halves.shares, c.resamples, c.seed) for p in halves.phases()),
        "swaps": (swaps(held_out, halves.fit(method, LABEL), c.seed) for method in ("single", PAPER, "nll")),
        "bars": _bars(halves),
    }
    for name, found in tqdm(made.items(), desc="calibration", disable=None):
        parts[name] = list(found)
    return Calibration(
        config=c,
        verdict=verdict(parts["bars"]),
        temperatures=halves.temperatures,
        provenance=_provenance(known, halves.shares),
        **parts,
    )


def _cells(halves: Halves) -> Iterator[Cell]:
    for sampling, blocks in halves.blocks.items():
        for phase, domain in product(PHASES, (ALL, *DOMAINS)):
            if not (blocks.of(phase, domain).prompt % 2 == 1).any():
                continue
            evaluation = halves.score(sampling, phase, domain)
            for method in METHODS if domain == ALL else ("none", PAPER):
                t = halves.fit(method, sampling)
                halves.fit(method, sampling, half=1)  # how far another half of the prompts is from it
                yield evaluation.cell(t, sampling, MIX, phase, domain)


def _curves(halves: Halves) -> Iterator[Curve]:
    for phase, domain in product((p for p in halves.phases() if p != "after"), (ALL, "chat")):
        for method in ("none", PAPER):
            yield from halves.score(LABEL, phase, domain).curves(halves.fit(method, LABEL), LABEL, phase, domain)


def _bars(halves: Halves) -> Iterator[Bar]:
    """In phase and on the training mix, at the sampling of the head's label, by position; at anchors and in the loop.

    Where even outcomes drawn from the forecasts would show more than half of the ECE, no temperatures can pass and none
    fail: too little data.
    """
    for place in (LABEL, f"loop {LABEL}"):
        if place not in halves.blocks:
            continue
        e, t = halves.score(place), halves.fit(PAPER, place)
        (before, of_before), (after, of_after) = e.error(halves.fit("none", place)), e.error(t)
        worth, floor = [k for k in range(1, t.positions + 1) if before[k] > WORTH], e.floor(e.forecasts(t))
        where = "in phase, training mix, T 1, " + ("every anchor" if place == LABEL else "real loop")
        for k in worth:
            part = Interval.of(float(1 - after[k] / before[k]), 1 - of_after[:, k] / of_before[:, k])
            enough, trials = bool(floor[k] <= HALF * before[k]), int(e.blocks.judged[:, k - 1].sum())
            ends = (round(part.value, 5), round(part.low, 5), round(part.high, 5))
            yield judge(
                f"part of the ECE at position {k} that STS takes away, {where}", HALF, *ends, trials, enough=enough
            )
        if not worth:
            yield judge(f"ECE above {WORTH} halved by STS, {where}: there is none", HALF, None, None, None, 0)


def _provenance(known: Sequence[dict[str, Any]], shares: F64) -> dict[str, Any]:
    """What all recordings share, and of each what it does not."""
    runs = ("drafter", "sampling", "thinking", "prompt_set", "recorded_at", "harness", "settings")
    own = collect(target=known[0]["target"], thinking="both", seeds=known[0]["seeds"])
    del own["prompt_set"]  # every run has its own
    mix = {domain: float(share) for domain, share in zip(DOMAINS, shares, strict=True)}
    return own | {"training_mix": mix, "pull": PULL, "runs": [{key: p[key] for key in runs} for p in known]}


def show(result: Calibration) -> None:
    """Print scores by phase and method, the three shifts, the limits inside the span, the rankings and the bars."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for sampling in dict.fromkeys(c.sampling for c in result.cells):
        table = Table("phase", "domain", "method", "blocks", "ECE", "on chances", "floor", "Brier", *"1234567")
        table.title = f"sampling {sampling}: all positions, then ECE by position"
        for c in (c for c in result.cells if c.sampling == sampling):
            scores = (_text(c.ece[0], c.ece_low[0], c.ece_high[0]), _text(c.analytic[0]), _text(c.floor[0]))
            by_position = (_text(x) for x in c.ece[1:])
            table.add_row(c.phase, c.domain, c.method, str(c.blocks), *scores, _text(c.brier[0]), *by_position)
        console.print(table)
    table = Table("what changes", "method", "fitted on", "used on", "ECE", "on chances", "taken away")
    for s in result.shifts:
        gain = _text(s.gain, s.gain_low, s.gain_high)
        table.add_row(s.what, s.method, s.fitted_on, s.used_on, _text(s.ece, s.low, s.high), _text(s.analytic), gain)
    console.print(table)
    table = Table("span, position 1", "accepted", "positive logits", "ECE", "best T", "best ECE", "T without bound")
    for x in result.limits:
        cells = (x.outcome, x.positive, x.before, x.best_temperature, x.best, x.least)
        table.add_row(x.domain, *(_text(cell) for cell in cells))
    console.print(table)
    for r in result.rankings:
        table = Table("AUC", *"1234567", "last - first", title=f"thinking: {r.phase}")
        for i, name in enumerate(("prefix", "if_right", "own", "survivors")):
            table.add_row(name, *map(_text, getattr(r, name)), _text(r.rise[i], r.rise_low[i], r.rise_high[i]))
        table.add_row("survivors - own", *map(_text, r.selection))
        console.print(table)
    for w in result.swaps:
        console.print(f"{w.method}: pairs that change places {w.by_position}, any two slots {w.pooled}")
    for b in result.bars:
        console.print(f"{b.name}: {_text(b.value, b.low, b.high)} ({b.trials}): {b.outcome}")
    console.print(f"verdict: {result.verdict}")


def _text(value: float | None, low: float | None = None, high: float | None = None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
