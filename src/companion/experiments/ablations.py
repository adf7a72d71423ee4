"""What each part of a drafter is good for: groups of drafters that differ in one thing, from their stored Rounds.

tau by domain, thinking off, with intervals over prompts and seeds, and differences paired over the prompts. Confidence
is judged by its forecast of prefix survival (`companion.calibration`). Groups are those of
`companion.training.ablations`; a drafter whose Rounds are not there is left out, and a group of which no pair is there
is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from companion.calibration import BINS, bin_counts, brier, ece, survival_forecasts
from companion.experiments.accepted_length import provenance_of
from companion.experiments.drafter_rounds import PLAIN, check_comparable
from companion.experiments.drafter_rounds import load as load_tables
from companion.experiments.drafter_statistics import ALL, Cell, Difference, Study, groups_of, settings
from companion.metrics import by_prompt
from companion.provenance import write_json
from companion.resampling import F64, Interval, seed_weights
from companion.rounds import Rounds
from companion.training.corpus import DOMAINS, Mode
from companion.training.zoo import ABLATIONS

CONFIDENCE = "confidence"  # the group whose forecasts are judged


class Config(BaseModel):
    resamples: int = 2000
    seed: int = 0
    mode: Mode = "no_think"


class Forecast(BaseModel):
    """Brier score and ECE of a drafter's confidence, all domains, seeds pooled; differences are against ``base``."""

    drafter: str
    temperature: float
    seeds: int
    slots: int
    brier: float
    brier_low: float
    brier_high: float
    ece: float
    ece_low: float
    ece_high: float
    base: str | None
    brier_difference: float | None
    brier_difference_low: float | None
    brier_difference_high: float | None
    ece_difference: float | None
    ece_difference_low: float | None
    ece_difference_high: float | None


class GroupResult(BaseModel):
    group: str
    cells: list[Cell]  # seeds pooled
    differences: list[Difference]
    missing: list[str]  # drafters of the group without Rounds


class AblationResults(BaseModel):
    config: Config
    groups: list[GroupResult]
    forecasts: list[Forecast]
    provenance: dict[str, Any]


def run(folders: Sequence[Path], output: Path | None = None, config: Config | None = None) -> AblationResults:
    """Of the tables in ``folders``; ``output`` (JSON) is written when all is there.

    ValueError without tables, for tables that cannot be compared, and where no group has a pair to compare.
    """
    tables = [table for folder in folders for table in load_tables(folder)]
    check_comparable(folders[-1], [t.provenance or {} for t in tables])
    result = summarise(tables, config)
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def summarise(tables: Sequence[Rounds], config: Config | None = None) -> AblationResults:
    """`run` on tables that are loaded."""
    config = config or Config()
    drafted = [t for t in tables if settings(t)["drafter_name"] != PLAIN]
    there = {settings(t)["drafter_name"] for t in drafted}
    prompts = int(settings(tables[0])["prompts"])
    wanted = {name for group in ABLATIONS.groups for name in ABLATIONS.members(group)}
    drafted = [t for t in drafted if settings(t)["drafter_name"] in wanted]
    of_mode = [g for g in groups_of(drafted, prompts) if g.mode == config.mode]
    study = Study(of_mode, prompts, config.resamples, config.seed)
    cells = [c for c in study.cells() if c.seed is None]
    groups = []
    for group, pairs in ABLATIONS.groups.items():
        members = ABLATIONS.members(group)
        differences = list(study.differences(pairs))
        if differences:
            kept = [c for name in members for c in cells if c.drafter == name]
            missing = [name for name in members if name not in there]
            groups.append(GroupResult(group=group, cells=kept, differences=differences, missing=missing))
    if not groups:
        raise ValueError(
            f"none of the groups {', '.join(ABLATIONS.groups)} has two drafters in these tables (there are: "
            f"{', '.join(sorted(there)) or 'none'}); train some with `companion train drafters GROUP`"
        )
    forecasts = _forecasts(drafted, prompts, study, config)
    return AblationResults(config=config, groups=groups, forecasts=forecasts, provenance=provenance_of(tables))


def _forecasts(tables: Sequence[Rounds], prompts: int, study: Study, config: Config) -> list[Forecast]:
    """Of the confidence group, base first, so that the others are compared with it on the same resampled prompts."""
    found = []
    base = ABLATIONS.members(CONFIDENCE)[0]
    for temperature in sorted({g.temperature for g in study.groups}):
        reference: dict[str, F64] = {}
        for name in ABLATIONS.members(CONFIDENCE):
            own = [t for t in tables if (settings(t)["drafter_name"], _temperature(t)) == (name, temperature)]
            if not own:
                continue
            counts = np.stack([_counts(t.where(mode=config.mode), prompts) for t in own])  # [S, P, K, BINS, 4]
            if not counts[..., 0].any():
                continue
            generator = np.random.default_rng([config.seed, *name.encode()])
            seeds = seed_weights(len(own), config.resamples, generator)
            draws = _pooled(counts, study.weights, seeds)
            whole = counts.sum((0, 1))
            fields: dict[str, Any] = {}
            for metric in (brier, ece):
                values = np.append(metric(whole), metric(draws))  # the estimate, then its resamples
                fields |= _fields(metric.__name__, values)
                if name == base:
                    reference[metric.__name__] = values
                difference = values - reference[metric.__name__] if name != base and reference else None
                fields |= _fields(f"{metric.__name__}_difference", difference)
            found.append(
                Forecast(
                    drafter=name,
                    temperature=temperature,
                    seeds=len(own),
                    slots=int(whole[..., 0].sum()),
                    base=base if name != base and reference else None,
                    **fields,
                )
            )
    return found


def _counts(rounds: Rounds, prompts: int) -> F64:  # -> [P, K, BINS, 4]
    assert rounds.provenance is not None
    deepest = int(rounds.provenance["depth"])
    counts = np.zeros((len(DOMAINS) * prompts, deepest, BINS, 4))
    for rows in by_prompt(rounds).values():
        domain, _, number = str(rows[0].prompt_id).split("/")
        counts[DOMAINS.index(domain) * prompts + int(number)] += bin_counts(survival_forecasts(rows), deepest)
    return counts


def _pooled(counts: F64, prompts: F64, seeds: F64) -> F64:  # [S, P, K, BINS, 4], [B, P], [B, S] -> [B, K, BINS, 4]
    """The counts of each resample of prompts and seeds."""
    flat = counts.reshape(*counts.shape[:2], -1)
    drawn = sum(seeds[:, [s]] * (prompts @ of_seed) for s, of_seed in enumerate(flat))
    return np.asarray(drawn).reshape(len(prompts), *counts.shape[2:])


def _fields(name: str, values: F64 | None) -> dict[str, float | None]:
    """An estimate and its resamples as the three fields of an interval."""
    if values is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    interval = Interval.of(float(values[0]), values[1:])
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _temperature(table: Rounds) -> float:
    assert table.provenance is not None
    return float(table.provenance["sampling"]["temperature"])


def show(result: AblationResults) -> None:
    """Print each group's accepted lengths and differences, and the forecasts of the confidence heads."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    domains = [ALL, *DOMAINS]
    for group in result.groups:
        for temperature in sorted({c.temperature for c in group.cells}):
            table = Table("drafter", *domains, title=f"{group.group}: tau, T {temperature:g}")
            for name in dict.fromkeys(c.drafter for c in group.cells):
                row = {c.domain: c for c in group.cells if (c.drafter, c.temperature) == (name, temperature)}
                table.add_row(name, *(_text(c.tau, c.low, c.high) for c in (row[d] for d in domains if d in row)))
            for first, second in dict.fromkeys((d.first, d.second) for d in group.differences):
                of_pair = [d for d in group.differences if (d.first, d.second) == (first, second)]
                shown = [d for d in of_pair if d.temperature == temperature]  # in the order of the domains
                table.add_row(f"{first} - {second}", *(_text(d.value, d.low, d.high) for d in shown))
            console.print(table)
        if group.missing:
            console.print(f"{group.group}: no rounds of {', '.join(group.missing)}")
    table = Table("confidence", "T", "slots", "Brier", "ECE", "Brier - base", "ECE - base")
    for f in result.forecasts:
        values = (_text(f.brier, f.brier_low, f.brier_high, 3), _text(f.ece, f.ece_low, f.ece_high, 3))
        brier_gain = _text(f.brier_difference, f.brier_difference_low, f.brier_difference_high, 3)
        ece_gain = _text(f.ece_difference, f.ece_difference_low, f.ece_difference_high, 3)
        table.add_row(f.drafter, f"{f.temperature:g}", str(f.slots), *values, brier_gain, ece_gain)
    if result.forecasts:
        console.print(table)


def _text(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str:
    if value is None:
        return ""
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
