"""How far does a drafter get: accepted length by domain, mode and phase, with intervals over responses.

Every setting (temperature, kind of proposal) decodes the same held-out prompts of each domain, with thinking off and
on. tau counts committed tokens per round, the target-made one included. Rounds of one response depend on each other, so
intervals resample whole responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.experiments.bars import Bar, Verdict, judge, verdict
from companion.experiments.decode_survey import all_rounds, survey
from companion.metrics import (
    accepted_per_drafted,
    bootstrap_interval,
    by_prompt,
    committed_per_round,
    conditional_by_position,
    straddle_rate,
    survival_by_position,
)
from companion.provenance import collect, write_json
from companion.rounds import Rounds
from companion.training.corpus import DOMAINS, MODES, Mode

Proposal = Literal["sampled", "greedy"]
DRAFT_MODEL, DRAFT_MODEL_TAU = "draft", 2.5  # what the embedded draft model is asked for, at depth 5


class Config(BaseModel):
    target: str = "tiny-qwen3"
    drafter: str = DRAFT_MODEL
    depth: int = 5
    prompts: int = 60  # per domain and mode
    settings: tuple[tuple[float, Proposal], ...] = (
        (0.0, "greedy"),
        (0.7, "sampled"),
        (0.7, "greedy"),
        (1.0, "sampled"),
        (1.0, "greedy"),
    )
    at_least: float | None = DRAFT_MODEL_TAU  # tau without thinking, all domains together; None: no demand
    max_new_tokens: int = 600
    max_batch: int = 30
    seed: int = 0
    device: str = "cpu"


class Cell(BaseModel):
    """One group of rounds. Counts are [rounds accepting slot k, rounds that judged it], k = 1, 2, ..."""

    temperature: float
    proposal: Proposal
    domain: str  # or "all"
    mode: Mode
    phase: Literal["all", "think", "output"]  # rounds wholly inside one phase
    responses: int
    rounds: int
    tau: float | None
    low: float | None
    high: float | None
    accepted_per_drafted: float | None
    straddling: float | None
    survival: list[tuple[int, int]]
    conditional: list[tuple[int, int]]


class DrafterEvaluation(BaseModel):
    config: Config
    verdict: Verdict | None  # None where nothing was demanded
    bars: list[Bar]
    cells: list[Cell]
    provenance: dict[str, Any]


def run(config: Config | None = None, output: Path | None = None) -> DrafterEvaluation:
    """Decode, count and summarise; ``output`` (JSON) is written when all is there. ValueError for no prompts."""
    config = config or Config()
    if config.prompts < 2:
        raise ValueError(f"prompts must be at least 2 for an interval over responses, got {config.prompts}")
    target = companion.load_target(config.target, device=config.device)
    found: list[Cell] = []
    source: dict[str, Any] | None = None
    prompts: list[str] = []
    bar = tqdm(config.settings, desc="evaluate drafter", unit="setting", disable=None)
    for temperature, proposal in bar:
        bar.set_postfix_str(f"T {temperature}, {proposal}")
        drafter = companion.load_drafter(config.drafter, target, max_depth=config.depth, proposal=proposal)
        if drafter is None:
            raise ValueError("drafter 'none' drafts nothing; choose lookup, draft, a folder or a hub id")
        results = survey(
            target,
            drafter,
            prompts=config.prompts,
            temperature=temperature,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
            max_batch=config.max_batch,
        )
        prompts = prompts or [str(r.prompt_tokens) for r in results]
        source = getattr(getattr(drafter, "model", None), "source", None)
        for domain, mode, phase, rows in _groups(all_rounds(results)):
            found.append(_cell(temperature, proposal, domain, mode, phase, rows))
    judged = [c for c in found if (c.domain, c.mode, c.phase) == ("all", "no_think", "all")]
    bars = [] if config.at_least is None else [_bar(c, config.depth, config.at_least) for c in judged]
    result = DrafterEvaluation(
        config=config,
        verdict=None if config.at_least is None else verdict(bars),
        bars=bars,
        cells=found,
        provenance=collect(
            target=target.source,
            drafter=source,
            thinking="both",
            sampling={"settings": [list(s) for s in config.settings]},
            seeds=[config.seed],
            prompts=prompts,
            depth=config.depth,
            drafter_name=config.drafter,
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def _groups(rounds: Rounds) -> Iterator[tuple[str, Mode, Literal["all", "think", "output"], Rounds]]:
    """All domains together first, then each; with thinking also the rounds inside each phase."""
    for domain in ("all", *DOMAINS):
        for mode in MODES:
            rows = rounds.where(mode=mode) if domain == "all" else rounds.where(domain=domain, mode=mode)
            yield domain, mode, "all", rows
            if mode == "think":
                yield domain, mode, "think", Rounds(r for r in rows if set(r.phases) == {"think"})
                yield domain, mode, "output", Rounds(r for r in rows if set(r.phases) == {"output"})


def _cell(
    temperature: float,
    proposal: Proposal,
    domain: str,
    mode: Mode,
    phase: Literal["all", "think", "output"],
    rows: Rounds,
) -> Cell:
    low, high = bootstrap_interval(committed_per_round, rows)
    return Cell(
        temperature=temperature,
        proposal=proposal,
        domain=domain,
        mode=mode,
        phase=phase,
        responses=len(by_prompt(rows)),
        rounds=len(rows),
        tau=_number(committed_per_round(rows)),
        low=_number(low),
        high=_number(high),
        accepted_per_drafted=_number(accepted_per_drafted(rows)),
        straddling=_number(straddle_rate(rows)),
        survival=survival_by_position(rows),
        conditional=conditional_by_position(rows),
    )


def _number(value: float) -> float | None:
    """nan, nothing to divide by, as None: strict JSON has no nan."""
    return None if value != value else value


def _bar(cell: Cell, depth: int, at_least: float) -> Bar:
    name = f"tau at depth {depth}, thinking off, T {cell.temperature:g}, {cell.proposal}"
    return judge(name, at_least, cell.tau, cell.low, cell.high, cell.responses)


def show(result: DrafterEvaluation) -> None:
    """Print the accepted lengths as a table."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        "T", "proposal", "domain", "thinking", "rounds", "tau, 95 % interval", "n", "accepted/drafted", "slot 1"
    )
    for c in result.cells:
        mode = "off" if c.mode == "no_think" else "on" if c.phase == "all" else f"on, {c.phase}"
        tau = "no data" if c.tau is None else f"{c.tau:.2f} [{c.low or 0:.2f}, {c.high or 0:.2f}]"
        share = "" if c.accepted_per_drafted is None else f"{c.accepted_per_drafted:.3f}"
        first = f"{c.conditional[0][0] / c.conditional[0][1]:.3f}" if c.conditional and c.conditional[0][1] else ""
        table.add_row(
            f"{c.temperature:g}", c.proposal, c.domain, mode, str(c.rounds), tau, str(c.responses), share, first
        )
    console.print(table)
    for b in result.bars:
        value = "no data" if b.value is None else f"{b.value:.2f} [{b.low or 0:.2f}, {b.high or 0:.2f}]"
        console.print(f"{b.name}: at least {b.threshold:g}: {value}  {b.outcome}")
    if result.verdict:
        console.print(f"verdict: {result.verdict}")
