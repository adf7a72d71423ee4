"""How long do drafts live: accepted length by drafter, domain, mode and temperature, and acceptance by position.

Everything is computed from the stored Rounds of `drafter_rounds`. tau is committed tokens per round, the target-made
one included, pooled over rounds; the mean of the responses' own tau stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from companion.experiments.bars import Bar, Verdict, judge, verdict
from companion.experiments.drafter_rounds import PLAIN
from companion.experiments.drafter_rounds import load as load_tables
from companion.experiments.drafter_statistics import (
    ALL,
    Cell,
    Difference,
    Fall,
    Position,
    Study,
    groups_of,
    settings,
)
from companion.provenance import write_json
from companion.rounds import Rounds


class Config(BaseModel):
    resamples: int = 2000
    seed: int = 0


class AcceptedLengths(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]
    cells: list[Cell]
    positions: list[Position]
    differences: list[Difference]
    falls: list[Fall]
    greedy_identical: dict[str, tuple[int, int]]  # run -> responses equal to plain decoding's, responses
    provenance: dict[str, Any]


def run(folder: Path, output: Path | None = None, config: Config | None = None) -> AcceptedLengths:
    """Of the tables in ``folder``; ``output`` (JSON) is written when all is there. ValueError for no tables."""
    result = summarise(load_tables(folder), config)
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def summarise(tables: Sequence[Rounds], config: Config | None = None) -> AcceptedLengths:
    """`run` on tables that are loaded."""
    config = config or Config()
    prompts = int(settings(tables[0])["prompts"])
    groups = groups_of([t for t in tables if settings(t)["drafter_name"] != PLAIN], prompts)
    study = Study(groups, prompts, config.resamples, config.seed)
    differences, identical = list(study.differences()), _greedy_identical(tables)
    bars = [_bar(differences, t) for t in sorted({g.temperature for g in groups})]
    same, total = (sum(pair[i] for pair in identical.values()) for i in (0, 1))
    share = same / total if total else None
    bars.append(judge("share of greedy outputs equal to plain decoding's", 1.0, share, None, None, total))
    return AcceptedLengths(
        config=config,
        verdict=verdict(bars),
        bars=bars,
        cells=list(study.cells()),
        positions=list(study.positions()),
        differences=differences,
        falls=list(study.falls()),
        greedy_identical=identical,
        provenance=provenance_of(tables),
    )


def _bar(differences: Sequence[Difference], temperature: float) -> Bar:
    """DSpark above DFlash without thinking, all domains; with one seed of either there is no interval over seeds."""
    name = f"tau of DSpark minus DFlash, thinking off, all domains, T {temperature:g}"
    for d in differences:
        if (d.first, d.second, d.domain, d.mode, d.temperature) == ("dspark", "dflash", ALL, "no_think", temperature):
            enough = min(d.seeds) > 1
            return judge(name, 0.0, d.value, d.low, d.high, d.prompts, enough=enough, whole_interval=True)
    return judge(name, 0.0, None, None, None, 0)


def _greedy_identical(tables: Sequence[Rounds]) -> dict[str, tuple[int, int]]:
    """Responses of each greedy run that are plain decoding's, by the digests of their tokens; empty without plain."""
    digests = {_label(t): t.provenance["outputs_crc32"] for t in tables if t.provenance and _greedy(t)}
    plain = digests.pop(PLAIN, None)
    if plain is None:
        return {}
    return {run: (sum(a == b for a, b in zip(own, plain, strict=True)), len(plain)) for run, own in digests.items()}


def _greedy(table: Rounds) -> bool:
    return bool(table.provenance and table.provenance["sampling"]["temperature"] == 0)


def _label(table: Rounds) -> str:
    own = settings(table)
    return PLAIN if own["drafter_name"] == PLAIN else f"{own['drafter_name']}-{own['drafter_seed']}"


def provenance_of(tables: Sequence[Rounds]) -> dict[str, Any]:
    """What all tables share, and of each what it does not."""
    first = tables[0].provenance or {}
    shared = {key: first[key] for key in ("target", "drafter", "thinking", "seeds", "prompt_set", "harness", "system")}
    own = ("drafter", "sampling", "settings", "depth", "recorded_at", "harness")
    runs = [{key: (t.provenance or {})[key] for key in own} for t in tables]
    return shared | {"drafter": None, "runs": runs}


def show(result: AcceptedLengths) -> None:
    """Print accepted lengths, acceptance by position, differences and bars as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for temperature in sorted({c.temperature for c in result.cells}):
        for mode, name in (("no_think", "off"), ("think", "on")):
            found = [c for c in result.cells if (c.temperature, c.mode) == (temperature, mode)]
            domains = list(dict.fromkeys(c.domain for c in found))
            table = Table(
                "drafter", "seed", *domains, "mean of responses", title=f"tau, T {temperature:g}, thinking {name}"
            )
            for drafter, seed in dict.fromkeys((c.drafter, c.seed) for c in found):
                row = {c.domain: c for c in found if (c.drafter, c.seed) == (drafter, seed)}
                cells = [_text(c.tau, c.low, c.high) for c in row.values()]
                mean = row[ALL]
                cells.append(_text(mean.per_response, mean.per_response_low, mean.per_response_high))
                table.add_row(drafter, "pooled" if seed is None else str(seed), *cells)
            console.print(table)
            _show_positions(result, temperature, mode, console)
    table = Table("difference of tau", "T", "thinking", "domain", "value", "ratio", "Welch over seeds", "seeds apart")
    for d in result.differences:
        mode = "off" if d.mode == "no_think" else "on"
        welch = "" if d.welch_low is None else f"[{d.welch_low:.2f}, {d.welch_high:.2f}]"
        values = (_text(d.value, d.low, d.high), _text(d.ratio, d.ratio_low, d.ratio_high), welch)
        apart = "yes" if d.seeds_apart else "no"
        table.add_row(f"{d.first} - {d.second}", f"{d.temperature:g}", mode, d.domain, *values, apart)
    console.print(table)
    for b in result.bars:
        console.print(f"{b.name}: {_text(b.value, b.low, b.high)} ({b.trials}): {b.outcome}")
    console.print(f"verdict: {result.verdict}")


def _show_positions(result: AcceptedLengths, temperature: float, mode: str, console: Any) -> None:
    from rich.table import Table

    found = [p for p in result.positions if (p.temperature, p.mode) == (temperature, mode)]
    deepest = max((p.position for p in found), default=0)
    table = Table("conditional acceptance", "domain", *map(str, range(1, deepest + 1)))
    for drafter, domain in dict.fromkeys((p.drafter, p.domain) for p in found):
        row = [p for p in found if (p.drafter, p.domain) == (drafter, domain)]
        table.add_row(drafter, domain, *("" if p.conditional is None else f"{p.conditional:.3f}" for p in row))
    console.print(table)


def _text(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "no data"
    return f"{value:.2f}" if low is None or high is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"
