"""Phase 1 from its recordings to its verdicts: H1 for every recording and domain, H2, and what drafters differ by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from companion.experiments.bars import Bar, Verdict, judge, verdict
from companion.experiments.phase_gap import confidence, report
from companion.experiments.phase_gap.confidence import Calibration
from companion.experiments.phase_gap.contrasts import ALL, Contrasts, Difference, Dose, Point, Pooled, groups_of
from companion.experiments.phase_gap.cost import Cost, estimate
from companion.experiments.phase_gap.design import Config, arms, check, find_drafters
from companion.experiments.phase_gap.gaps import Gap, gaps
from companion.experiments.phase_gap.prompts import load_prompts
from companion.experiments.phase_gap.record import record
from companion.experiments.phase_gap.stored import check_comparable, load_arm, load_arms
from companion.experiments.phase_gap.subsample import Subsample, subsamples
from companion.experiments.stored import read_result
from companion.phase.straddle import StraddlePolicy
from companion.phase.verdict import INCONCLUSIVE
from companion.provenance import write_json
from companion.rounds import Rounds


class Analysis(BaseModel):
    resamples: int = 2000
    seed: int = 0
    straddle: StraddlePolicy = "exclude"


class PhaseGap(BaseModel):
    """``gaps`` holds H1 of every recording and domain; the rest pools training seeds."""

    analysis: Analysis
    verdict: Verdict
    bars: list[Bar]
    gaps: list[Gap]
    pooled: list[Pooled]
    differences: list[Difference]
    doses: list[Dose]
    points: list[Point]
    calibration: list[Calibration]
    subsamples: list[Subsample]
    provenance: dict[str, Any]


def dry_run(
    config: Config, drafters: Sequence[str], zoo: Path | None, rounds: Path, *, keep_rows: bool = False
) -> Cost:
    """What `run` would cost, with nothing decoded. ValueError as there."""
    check(config)
    prompts = load_prompts(config.sources, config.per_domain, config.prompt_seed)
    return estimate(config, prompts, arms(config, find_drafters(drafters, zoo)), rounds, rows=keep_rows)


def run(
    config: Config,
    drafters: Sequence[str],
    zoo: Path | None,
    rounds: Path,
    output: Path | None = None,
    analysis: Analysis | None = None,
    *,
    workers: int = 1,
    keep_rows: bool = False,
) -> PhaseGap:
    """Record what the folder ``rounds`` does not hold yet, and judge these recordings; ``output`` (JSON) at the end.

    ValueError for bad input, before anything is decoded.
    """
    check(config)
    planned = arms(config, find_drafters(drafters, zoo))
    prompts = load_prompts(config.sources, config.per_domain, config.prompt_seed)
    paths = record(config, prompts, planned, rounds, workers=workers, rows=keep_rows)
    tables = [load_arm(path) for path in paths]
    check_comparable(rounds, [table.provenance or {} for table in tables])
    return _written(summarise(tables, analysis), output)


def judge_folder(rounds: Path, output: Path | None = None, analysis: Analysis | None = None) -> PhaseGap:
    """`run` on every recording that is there, with nothing decoded. ValueError for none."""
    return _written(summarise(load_arms(rounds), analysis), output)


def _written(result: PhaseGap, output: Path | None) -> PhaseGap:
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def load(path: Path) -> PhaseGap:
    """A stored result. ValueError when the file is none."""
    return read_result(path, PhaseGap, "experiment phase-gap")


def summarise(tables: Sequence[Rounds], analysis: Analysis | None = None) -> PhaseGap:
    """Verdicts and contrasts of recordings that can be compared."""
    analysis = analysis or Analysis()
    known = [table.provenance or {} for table in tables]
    found = [gap for table in tables for gap in gaps(table, analysis.straddle)]
    contrasts = Contrasts(
        groups_of(tables, analysis.straddle), known[0]["settings"]["prompts"], analysis.resamples, analysis.seed
    )
    differences = list(contrasts.differences())
    bars = demands(found, differences)
    firsts = {p["settings"]["drafter_name"]: p["settings"]["drafter_seed"] for p in reversed(known)}
    of_first = [t for t, p in zip(tables, known, strict=True) if _is_first(p, firsts)]
    return PhaseGap(
        analysis=analysis,
        verdict=verdict(bars),
        bars=bars,
        gaps=[g if firsts[g.drafter] == g.seed else g.model_copy(update={"claim": None}) for g in found],
        pooled=list(contrasts.pooled()),
        differences=differences,
        doses=list(contrasts.doses()),
        points=list(contrasts.points()),
        calibration=confidence.of_all(tables, analysis.resamples, analysis.seed),
        subsamples=[one for table in of_first for one in subsamples(table, analysis.straddle)],
        provenance=provenance_of(known),
    )


def _is_first(provenance: dict[str, Any], firsts: dict[str, int]) -> bool:
    settings = provenance["settings"]
    return bool(firsts[settings["drafter_name"]] == settings["drafter_seed"])


def demands(found: Sequence[Gap], differences: Sequence[Difference]) -> list[Bar]:
    """What decides the exit code.

    Where a drafter was also trained on half thinking traces: its gap must exceed that of the drafter without any, over
    prompts and training seeds, all domains and each. Otherwise H1 itself, for every recording and domain. Either way a
    phase without a verdict leaves the matter open.
    """
    mixed = [d for d in differences if 0.25 < d.share < 0.75]
    if not mixed:
        return [_h1(gap) for gap in found]
    bars = [
        judge(
            f"gap of {d.second} minus gap of {d.first}, {d.sampling}, {d.domain}",
            0.0,
            None if d.value.value is None else -d.value.value,
            None if d.value.high is None else -d.value.high,
            None if d.value.low is None else -d.value.low,
            min(d.seeds),
            enough=d.value.low is not None,
            whole_interval=True,
        )
        for d in mixed
    ]
    return bars


def _h1(gap: Gap) -> Bar:
    """H1 as a bar: the gap's size beyond what domains differ by."""
    name = f"H1: {gap.drafter}-{gap.seed}, T {gap.sampling['temperature']:g}, {gap.domain}"
    value = None
    if gap.gap.value is not None and gap.between_domain_gap is not None:
        value = -gap.gap.value - gap.between_domain_gap
    bar = judge(name, 0.0, value, None, None, gap.think.responses, enough=gap.verdict not in INCONCLUSIVE)
    if bar.verdict == "inconclusive":
        return bar
    return bar.model_copy(update={"verdict": "holds" if gap.verdict == "supported" else "fails"})


def provenance_of(known: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all recordings share, and of each what it does not."""
    first = known[0]
    shared = {key: first[key] for key in ("target", "thinking", "prompt_set", "harness", "system")}
    own = ("drafter", "sampling", "seeds", "settings", "recorded_at", "harness", "seconds")
    return shared | {"runs": [{key: p[key] for key in own} for p in known]}


show = report.show

__all__ = ["ALL", "Analysis", "PhaseGap", "demands", "dry_run", "judge_folder", "load", "run", "show", "summarise"]
