"""Does tiny-qwen3 reason? Each bar measured on held-out prompts, with Wilson 95 % intervals.

Every response is one row of a file that a killed run goes on from; all numbers are computed from the rows.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget
from companion.experiments.bars import Bar, Verdict, verdict
from companion.experiments.stored import append_rows, resume_rows
from companion.experiments.target_report import Cell, EntropySummary, Proportion, bars, cells, entropies
from companion.experiments.target_rows import Response
from companion.parallel import ordered_map
from companion.provenance import collect, write_json
from companion.training.corpus import DOMAINS, KINDS, MODES, Domain, Kind, Mode, Sample, held_out_samples, is_right

WorkCell = tuple[float, Domain, Mode, Kind]


class Config(BaseModel):
    """What is sampled. ``samples`` responses per domain, mode and temperature; the other held-out kinds get
    ``other_samples`` (chat wordings: what the grammar has)."""

    target: str = "tiny-qwen3"
    samples: int = 1000
    other_samples: int = 250
    temperatures: tuple[float, ...] = (0.7, 1.0)
    seed: int = 0
    max_new_tokens: int = 700
    max_batch: int = 128
    device: str = "cpu"


class TargetEvaluation(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]
    cells: list[Cell]
    entropy: list[EntropySummary]
    provenance: dict[str, Any]


def run(
    config: Config | None = None, output: Path | None = None, rows: Path | None = None, workers: int = 1
) -> TargetEvaluation:
    """Sample, check and summarise; ``output`` (JSON) is written only when all is there.

    ``rows`` (default: in ``runs/``, a file for each choice of weights and settings) collects one line per response; a
    run that is killed goes on from it and ends with the same numbers, whatever the number of worker processes. Raises
    ValueError when ``rows`` belongs to other weights or settings.
    """
    config = config or Config()
    if config.samples < 1 or config.other_samples < 0:
        raise ValueError(f"at least 1 sample is needed, got {config.samples} (of other kinds: {config.other_samples})")
    target = companion.load_target(config.target, device=config.device)
    header = {"config": config.model_dump(mode="json"), "weights": target.source["weights_sha256"]}
    path = rows or Path("runs") / "evaluate_target" / f"{target.name}-{_digest(header)}.jsonl"
    done = resume_rows(path, header, Response)
    work = _plan(config)
    total = sum(n for *_, n in work)
    bar = tqdm(total=total, initial=len(done), desc="evaluate target", unit="response", disable=None)
    for made in ordered_map(partial(_answer, config), _missing(config, done), workers):
        append_rows(path, made)
        done += made
        bar.update(len(made))
    bar.close()
    prompts = [s.prompt for _, domain, mode, kind, n in work for s in _samples(domain, mode, n, config.seed, kind)]
    found = bars(done, config.samples)
    result = TargetEvaluation(
        config=config,
        verdict=verdict(found),
        bars=found,
        cells=cells(done),
        entropy=entropies(done),
        provenance=collect(
            target=target.source,
            thinking="both",
            sampling={"temperatures": list(config.temperatures)},
            seeds=[config.seed],
            prompts=prompts,
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def show(result: TargetEvaluation) -> None:
    """Print bars, cells and entropies as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("bar", "at least", "measured, 95 % interval", "n", "")
    for b in result.bars:
        value = (
            "" if b.value is None else f"{100 * b.value:.1f} % [{100 * (b.low or 0):.1f}, {100 * (b.high or 0):.1f}]"
        )
        table.add_row(b.name, f"{100 * b.threshold:.1f} %", value, str(b.trials), b.outcome)
    console.print(table)
    table = Table("kind", "T", "domain", "mode", "n", "right", "span", "ends", "tokens", "think", "spans >= 100")
    for c in result.cells:
        shares = [_percent(c.right), _percent(c.span_ok), _percent(c.ended)]
        lengths = [f"{c.mean_tokens:.0f}", f"{c.mean_think_tokens:.0f}", _percent(c.long_spans)]
        table.add_row(c.kind, f"{c.temperature:g}", c.domain, c.mode, str(c.ended.trials), *shares, *lengths)
    console.print(table)
    table = Table("domain", "mode", "phase", "tokens", "mean nats", "< .05", "> 1", "> 2", "max")
    for e in result.entropy:
        shares = [f"{s:.3f}" for s in (e.below_005, e.above_1, e.above_2)]
        table.add_row(e.domain, e.mode, e.phase, str(e.tokens), f"{e.mean:.3f}", *shares, f"{e.maximum:.2f}")
    console.print(table)
    console.print(f"verdict: {result.verdict}")


def _percent(p: Proportion | None) -> str:
    return "" if p is None or p.value is None else f"{100 * p.value:.1f} %"


def _digest(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:12]


def _plan(config: Config) -> list[tuple[float, Domain, Mode, Kind, int]]:
    """Cells to sample; the unseen kinds at the first temperature only."""
    work: list[tuple[float, Domain, Mode, Kind, int]] = [
        (t, d, m, "standard", config.samples) for t in config.temperatures for d in DOMAINS for m in MODES
    ]
    for kind in KINDS[1:]:
        for d in DOMAINS:
            if not (d == "chat" and kind == "longer"):
                work += [(config.temperatures[0], d, m, kind, config.other_samples) for m in MODES]
    return work


def _missing(config: Config, done: list[Response]) -> list[tuple[WorkCell, list[int]]]:
    """What has no row yet, in chunks of a few batches."""
    have = {(r.cell, r.index) for r in done}
    chunks: list[tuple[WorkCell, list[int]]] = []
    size = 4 * config.max_batch
    for temperature, domain, mode, kind, count in _plan(config):
        cell = (temperature, domain, mode, kind)
        missing = [i for i in range(count) if (cell, i) not in have]
        chunks += [(cell, missing[start : start + size]) for start in range(0, len(missing), size)]
    return chunks


def _answer(config: Config, chunk: tuple[WorkCell, list[int]]) -> list[Response]:
    """The rows of one chunk; runs in a worker process, or in this one."""
    (temperature, domain, mode, kind), indices = chunk
    target = _load(config.target, config.device)
    count = config.samples if kind == "standard" else config.other_samples
    samples = _samples(domain, mode, count, config.seed, kind)
    results = companion.generate(
        target,
        None,
        [samples[i].prompt for i in indices],
        temperature=temperature,
        seed=config.seed,
        max_new_tokens=config.max_new_tokens,
        max_batch=config.max_batch,
        thinking=mode == "think",
    )
    return [
        _response(target, r, i, temperature, kind, mode, domain, samples[i].family, samples[i].final)
        for i, r in zip(indices, results, strict=True)
    ]


@cache
def _load(name: str, device: str) -> TextTarget:
    return companion.load_target(name, device=device)


@cache
def _samples(domain: Domain, mode: Mode, count: int, seed: int, kind: Kind) -> list[Sample]:
    return held_out_samples(domain, mode, count, seed, kind)


def _response(
    target: TextTarget,
    result: GenerationResult,
    index: int,
    temperature: float,
    kind: Kind,
    mode: Mode,
    domain: Domain,
    family: str,
    final: str | None,
) -> Response:
    opens = result.tokens.count(_tag(target.tags.open))
    closes = result.tokens.count(_tag(target.tags.close))
    if mode == "think":
        span_ok = opens == closes == 1 and result.tokens[0] == _tag(target.tags.open)
    else:
        span_ok = opens == closes == 0
    by_phase: dict[str, list[float]] = {"think": [], "output": []}
    if temperature == 1.0 and kind == "standard":
        for row in result.rounds:  # plain decoding: one token and one distribution a round
            by_phase[row.phases[0]].append(round(row.entropy[0], 4))
    return Response(
        index=index,
        temperature=temperature,
        domain=domain,
        mode=mode,
        kind=kind,
        family=family,
        right=None if final is None else result.finish_reason == "stop" and is_right(final, result.text),
        span_ok=span_ok,
        ended=result.finish_reason == "stop",
        tokens=len(result.tokens),
        think_tokens=sum(p == "think" for p in result.phases),
        entropy_think=by_phase["think"],
        entropy_output=by_phase["output"],
    )


def _tag(token: int | None) -> int:
    if token is None:
        raise ValueError(
            "the target's think tags are not single tokens; this evaluation needs a model with a think span"
        )
    return token
