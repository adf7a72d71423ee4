"""Does acceptance decay along the block: every drafter at the same anchors, and next to its own real loop.

From the recordings of `anchor_survey`, and from the Rounds of `drafter_rounds` where they are given. Intervals are over
prompts and training seeds (`companion.resampling`); drafters are compared at the same anchors of the same resampled
prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from companion.experiments import anchor_survey, drafter_rounds
from companion.experiments.anchor_counts import greedy_chain
from companion.experiments.anchor_recording import Recording
from companion.experiments.anchor_statistics import (
    AGREE,
    AnchorStudy,
    Check,
    Comparison,
    Estimate,
    Fall,
    Length,
    Real,
    run_key,
)
from companion.experiments.bars import Bar, Verdict, judge, verdict
from companion.experiments.drafter_statistics import REACHED, Position
from companion.metrics import by_prompt
from companion.provenance import write_json
from companion.resampling import Interval
from companion.rounds import Round, Rounds
from companion.training.corpus import MODES

DECAYS = 0.2  # a fall of conditional acceptance from the first to the last position that counts as decay
STEADY = 0.05  # a fall that does not


class Config(BaseModel):
    resamples: int = 2000
    seed: int = 0


class SuffixDecay(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]
    positions: list[Position]  # sampled
    analytic: list[Position]
    lengths: list[Length]
    falls: list[Fall]
    checks: list[Check]
    comparisons: list[Comparison]
    greedy_identical: dict[str, tuple[int, int]]  # run -> responses whose rounds the anchors foretold, responses
    provenance: dict[str, Any]


def run(
    folder: Path, rounds: Path | None = None, output: Path | None = None, config: Config | None = None
) -> SuffixDecay:
    """Of the recordings in ``folder`` and the Rounds in ``rounds``; ``output`` (JSON) is written when all is there."""
    tables = drafter_rounds.load(rounds) if rounds is not None else []
    result = summarise(anchor_survey.load(folder), tables, config)
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def summarise(
    recordings: Sequence[Recording], tables: Sequence[Rounds] = (), config: Config | None = None
) -> SuffixDecay:
    """`run` on what is loaded. ValueError for Rounds of other prompts or settings."""
    config = config or Config()
    real = _by_prompt(recordings, tables)
    studies = list(_studies(recordings, real, config))
    checks = [check for study in studies for check in study.checks()]
    comparisons = [comparison for study in studies for comparison in study.comparisons()]
    identical = _greedy_identical(recordings, real)
    bars = [*_decay_bars(studies), *_agreement_bars(checks, comparisons, identical)]
    return SuffixDecay(
        config=config,
        verdict=verdict(bars),
        bars=bars,
        positions=[position for study in studies for position in study.sampled.positions()],
        analytic=[position for study in studies for position in study.analytic.positions()],
        lengths=[length for study in studies for length in study.lengths()],
        falls=[fall for study in studies for fall in study.falls()],
        checks=checks,
        comparisons=comparisons,
        greedy_identical=identical,
        provenance=_provenance(recordings),
    )


def _by_prompt(recordings: Sequence[Recording], tables: Sequence[Rounds]) -> Real:
    """Rounds of the recorded drafters; ValueError where their loop was another one."""
    known = {run_key(r.provenance): r.provenance for r in recordings}
    found: dict[tuple[str, int, float], dict[str, list[Round]]] = {}
    for table in tables:
        own = table.provenance or {}
        recorded = known.get(run_key(own))
        if recorded is None:
            continue
        for what, there, here in (
            ("max_new_tokens", own["settings"]["max_new_tokens"], recorded["settings"]["max_new_tokens"]),
            ("seeds", own["seeds"], recorded["seeds"]),
            ("weights", own["drafter"]["weights_sha256"], recorded["drafter"]["weights_sha256"]),
            ("target", own["target"], recorded["target"]),
            ("depth", own["depth"], recorded["depth"]),
        ):
            if there != here:
                raise ValueError(
                    f"the stored rounds of {own['drafter']['name']} differ from its anchors in {what}; compare runs of "
                    "one drafter, target and setting"
                )
        found[run_key(own)] = {str(rows[0].prompt_id): rows for rows in by_prompt(table).values()}
    return found


def _studies(recordings: Sequence[Recording], real: Real, config: Config) -> Iterator[AnchorStudy]:
    for temperature, mode in product(sorted({run_key(r.provenance)[2] for r in recordings}), MODES):
        drafters: dict[str, dict[int, Recording]] = {}
        for recording in recordings:
            name, seed, own = run_key(recording.provenance)
            if own == temperature and any(r.mode == mode for r in recording.responses):
                drafters.setdefault(name, {})[seed] = recording
        if drafters:
            yield AnchorStudy(drafters, real, temperature, mode, config.resamples, config.seed)


def _greedy_identical(recordings: Sequence[Recording], real: Real) -> dict[str, tuple[int, int]]:
    """Of each greedy run, the responses whose real rounds accept what the chain of untrimmed blocks says, and all."""
    found = {}
    for recording in recordings:
        rounds = real.get(run_key(recording.provenance))
        if rounds is None or recording.every > 1 or recording.provenance["sampling"]["temperature"]:
            continue
        limit = int(recording.provenance["settings"]["max_new_tokens"])
        same = [
            greedy_chain(r, limit) == [row.accepted for row in rounds.get(r.prompt_id, ())] for r in recording.responses
        ]
        found[recording.provenance["drafter"]["name"]] = (sum(same), len(same))
    return found


def _decay_bars(studies: Sequence[AnchorStudy]) -> Iterator[Bar]:
    """The suffix decay of the paper, at temperature 1 on chat without thinking, where every drafter is trained."""
    first: dict[str, Estimate] = {}
    fall: dict[str, Estimate] = {}
    judged: dict[str, int] = {}
    for study in (s for s in studies if (s.temperature, s.mode) == (1.0, "no_think")):
        mask = dict(study.sampled.domains())["chat"]
        groups = {g.drafter: g for g in study.sampled.groups}
        for found in (f for f in study.falls() if f.domain == "chat"):
            name, group = found.drafter, groups[found.drafter]
            judged[name], first[name] = found.judged, study.rate(group, 1, mask)
            fall[name] = study.fall(group, found.last, mask)

    def bar(name: str, threshold: float, parts: Mapping[str, float], of: Mapping[str, Estimate]) -> Bar:
        """Of a weighted sum over drafters."""
        name = f"{name} (conditional acceptance on chat, thinking off, T 1)"
        if not parts.keys() <= of.keys():
            return judge(name, threshold, None, None, None, 0)
        value, draws = (sum(weight * of[drafter][i] for drafter, weight in parts.items()) for i in (0, 1))
        ends = Interval.of(float(value), np.asarray(draws))
        trials = min(judged[drafter] for drafter in parts)
        return judge(name, threshold, round(ends.value, 5), round(ends.low, 5), round(ends.high, 5), trials)

    yield bar("DFlash: fall from position 1 to the last", DECAYS, {"dflash": 1.0}, fall)
    yield bar("half of DFlash's fall minus DSpark's", 0.0, {"dflash": 0.5, "dspark": -1.0}, fall)
    yield bar("DFlash minus Eagle3 at position 1", 0.0, {"dflash": 1.0, "eagle3": -1.0}, first)
    yield bar("Eagle3: rise from position 1 to the last", -STEADY, {"eagle3": -1.0}, fall)


def _agreement_bars(
    checks: Sequence[Check], comparisons: Sequence[Comparison], identical: Mapping[str, tuple[int, int]]
) -> Iterator[Bar]:
    """What must be equal: exactly at temperature 0, within `AGREE` standard errors above."""
    agree = [check.agrees for check in checks]
    yield _share("sampled acceptance is the analytic one, and with the wrong q it is not: share of drafters", agree)
    same, total = (sum(pair[i] for pair in identical.values()) for i in (0, 1))
    exact = "greedy rounds of the real loop are those of the untrimmed blocks: share of responses"
    yield judge(exact, 1.0, same / total if total else None, None, None, total)
    gaps = [c.gap_errors for c in comparisons if c.temperature and c.judged >= REACHED and c.gap_errors is not None]
    yield _share(
        "tau and acceptance of the real loop are those of visited anchors: share", [abs(g) <= AGREE for g in gaps]
    )


def _share(name: str, held: Sequence[bool]) -> Bar:
    return judge(name, 1.0, sum(held) / len(held) if held else None, None, None, len(held))


def _provenance(recordings: Sequence[Recording]) -> dict[str, Any]:
    """What all recordings share, and of each what it does not."""
    first = recordings[0].provenance
    own = ("drafter", "sampling", "settings", "depth", "prompt_set", "recorded_at", "harness")
    shared = {key: first[key] for key in ("target", "thinking", "seeds", "harness", "system")}
    return shared | {"drafter": None, "runs": [{key: r.provenance[key] for key in own} for r in recordings]}


def show(result: SuffixDecay) -> None:
    """Print acceptance by position, lengths, the comparison with the real loop, and the bars."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for temperature, mode in dict.fromkeys((p.temperature, p.mode) for p in result.positions):
        thinking = f"T {temperature:g}, thinking {'off' if mode == 'no_think' else 'on'}"
        for domain in dict.fromkeys(p.domain for p in result.positions):
            rows = [p for p in result.analytic if (p.temperature, p.mode, p.domain) == (temperature, mode, domain)]
            deepest = max(p.position for p in rows)
            title = f"conditional acceptance at every anchor (analytic), {domain}, {thinking}"
            table = Table("drafter", *map(str, range(1, deepest + 1)), "tau", "sampled", title=title)
            for length in (
                x for x in result.lengths if (x.temperature, x.mode, x.domain) == (temperature, mode, domain)
            ):
                cells = [
                    "" if p.conditional is None else f"{p.conditional:.3f}" for p in rows if p.drafter == length.drafter
                ]
                taus = (
                    _text(length.analytic, length.analytic_low, length.analytic_high),
                    _text(length.sampled, length.sampled_low, length.sampled_high),
                )
                table.add_row(length.drafter, *cells, *[""] * (deepest - len(cells)), *taus)
            console.print(table)
    table = Table(
        "drafter", "T", "thinking", "position", "uniform", "visited", "visited - uniform", "real", "real - visited"
    )
    for c in (c for c in result.comparisons if c.position < 2):
        real = ("", "") if c.real is None else (f"{c.real:.3f}", _text(c.gap, c.gap_low, c.gap_high))
        selection = _text(c.selection, c.selection_low, c.selection_high)
        place, on = str(c.position) if c.position else "tau", "off" if c.mode == "no_think" else "on"
        table.add_row(
            c.drafter, f"{c.temperature:g}", on, place, f"{c.uniform:.3f}", f"{c.visited:.3f}", selection, *real
        )
    console.print(table)
    for b in result.bars:
        console.print(f"{b.name}: {_text(b.value, b.low, b.high)} ({b.trials}): {b.outcome}")
    console.print(f"verdict: {result.verdict}")


def _text(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "no data"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"
