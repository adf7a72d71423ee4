"""Wall-clock of trained drafters, as ratios within one run: by domain, by stage, against transformers' modules.

Greedy, batch 1, thinking off, warm; every method decodes the same prompts and they take turns prompt by prompt. The
speed-up over another method is the time that one takes for as many tokens over the drafter's own, summed over prompts
(of each the median over passes), with a 95 % bootstrap interval over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.drafters.dspark.checkpoint import load_dspark
from companion.drafters.dspark.drafter import DSparkDrafter
from companion.engine.load import ModelFolder, TextTarget
from companion.experiments.bars import Bar, Verdict, judge, verdict
from companion.experiments.draft_cost import DraftTime, draft_times
from companion.experiments.drafter_rounds import finished_runs
from companion.experiments.round_stages import Stages, Yardstick, measure
from companion.experiments.speedups import ALL, GENERATE, LOOKUP, Speed, Times, speedups, times
from companion.experiments.stored import read_result
from companion.experiments.timing import (
    PLAIN,
    Decoder,
    Prompts,
    copy_speed,
    held_out_prompts,
    our_decoder,
    peak_of,
    race,
    transformers_decoder,
    transformers_model,
)
from companion.experiments.transformers_round import TransformersDSpark
from companion.provenance import collect, write_json

OVER_PLAIN, OVER_GENERATE, OVER_MODULES = 1.8, 4.0, 2.0  # demanded of DSpark on one thread
SAME = 0.95  # of outputs and of rounds, else the two rounds did not do the same work (two logits may tie to rounding)


class Config(BaseModel):
    target: str = "tiny-qwen3"
    draft: str = "tiny-qwen3-draft"  # of the family "draft model" in T_draft
    prompts: int = 6  # per domain
    repeats: int = 3
    threads: tuple[int, ...] = (1, 2)
    device: str = "cpu"
    max_new_tokens: int = 160
    gammas: tuple[int, ...] = (3, 7, 11, 15)
    context: int = 96  # tokens behind which a proposal is timed
    proposals: int = 30  # of each family and length
    resamples: int = 2000
    seed: int = 0


class Result(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]
    speeds: list[Speed]
    times: list[Times]  # that the speeds were computed from
    stages: list[Stages]
    yardsticks: list[Yardstick]
    draft_times: list[DraftTime]
    copy_gib_per_second: float  # bytes read and written, a buffer as large as the target
    peak_mib: dict[str, float]
    identical: dict[str, tuple[int, int]]  # method -> outputs equal to plain decoding's, outputs
    provenance: dict[str, Any]


def run(models: Sequence[Path], config: Config | None = None, output: Path | None = None) -> Result:
    """Measure the drafters in ``models``, each a folder of one or a folder of runs (NAME-SEED/model).

    ValueError when there is no drafter, or nothing would be timed; ``output`` (JSON) is written when all is there.
    """
    config = config or Config()
    if config.prompts < 2:
        raise ValueError(f"prompts must be at least 2 a domain for an interval over prompts, got {config.prompts}")
    if min(config.repeats, config.proposals, *config.threads) < 1 or not config.threads:
        raise ValueError("repeats, proposals and threads must be at least 1: nothing timed is no result")
    folders = find_drafters(models)
    target = companion.load_target(config.target, device=config.device)
    prompts = held_out_prompts(target, config.prompts, config.seed)
    speeds: list[Speed] = []
    raw: list[Times] = []
    stages: list[Stages] = []
    yardsticks: list[Yardstick] = []
    drafting: list[DraftTime] = []
    same: dict[str, tuple[int, int]] = {}
    before = torch.get_num_threads()
    try:
        for threads in config.threads:
            torch.set_num_threads(threads)
            found = race(_decoders(target, folders, config), prompts, config.repeats)
            speeds.extend(speedups(found, threads, config.resamples, config.seed))
            raw.extend(times(found, threads))
            for method, (hits, total) in found.same.items():
                same[method] = (same.get(method, (0, 0))[0] + hits, same.get(method, (0, 0))[1] + total)
            ours, theirs = _stages(target, folders, prompts, config)
            stages.extend(ours)
            yardsticks.extend(theirs)
        torch.set_num_threads(config.threads[0])
        drafting = draft_times(
            target, draft=config.draft, gammas=config.gammas, context=config.context, repeats=config.proposals
        )
        speed = copy_speed(target.parameters * target.embedding.element_size(), target.device)
    finally:
        torch.set_num_threads(before)
    methods = [PLAIN, LOOKUP, *folders, GENERATE]
    bars = _bars(speeds, yardsticks, config)
    result = Result(
        config=config,
        verdict=verdict(bars),
        bars=bars,
        speeds=speeds,
        times=raw,
        stages=stages,
        yardsticks=yardsticks,
        draft_times=drafting,
        copy_gib_per_second=speed / 2**30,
        peak_mib={m: peak_of(_decode_once, m, folders, config) for m in tqdm(methods, desc="memory", disable=None)},
        identical=same,
        provenance=collect(
            target=target.source,
            thinking=False,
            sampling={"temperature": 0.0},
            seeds=[config.seed],
            prompts=[
                str(ids) for rows in held_out_prompts(target, config.prompts, config.seed).values() for ids in rows
            ],
            drafters=[ModelFolder(folder, label).describe() for label, folder in folders.items()],
            **config.model_dump(exclude={"target", "seed", "prompts"}),
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def find_drafters(models: Sequence[Path]) -> dict[str, Path]:
    """Label -> folder: NAME-SEED for NAME-SEED/model, else the folder's own name. ValueError for none or no drafter."""
    found: dict[str, Path] = {}
    for path in models:
        if not path.is_dir():
            raise ValueError(f"there is no folder {path}: give a drafter's folder, or one that holds NAME-SEED/model")
        if (path / "config.json").is_file():
            here = {path.resolve().parent.name if path.name == "model" else path.name: path}
        else:
            here = {run.label: run.folder for run in finished_runs(path) if run.folder}
        if twice := found.keys() & here.keys():
            raise ValueError(f"{min(twice)} was given twice; a drafter is raced once")
        found |= here
    if not found:
        raise ValueError("there is no drafter to measure: give at least one folder")
    return found


def _decoders(target: TextTarget, folders: dict[str, Path], config: Config) -> dict[str, Decoder]:
    drafters = {PLAIN: None, LOOKUP: companion.load_drafter("lookup", target)}
    drafters |= {label: companion.load_drafter(str(folder), target) for label, folder in folders.items()}
    ours = {label: our_decoder(target, drafter, config.max_new_tokens) for label, drafter in drafters.items()}
    return ours | {GENERATE: transformers_decoder(config.target, config.max_new_tokens, config.device)}


def _stages(
    target: TextTarget, folders: dict[str, Path], prompts: Prompts, config: Config
) -> tuple[list[Stages], list[Yardstick]]:
    drafters, modules = {}, {}
    for label, folder in folders.items():
        drafter = companion.load_drafter(str(folder), target)
        assert drafter is not None
        drafters[label] = drafter
        if isinstance(drafter, DSparkDrafter) and drafter.config.anchor_predicts:
            modules[label] = TransformersDSpark(load_dspark(ModelFolder(folder, label), target))
    reference = transformers_model(config.target, config.device) if modules else None
    return measure(
        target,
        drafters,
        modules,
        reference,
        prompts,
        repeats=config.repeats,
        max_new_tokens=config.max_new_tokens,
        resamples=config.resamples,
        seed=config.seed,
    )


def _bars(speeds: Sequence[Speed], yardsticks: Sequence[Yardstick], config: Config) -> list[Bar]:
    """What is demanded of DSpark on one thread; nothing is judged where none was raced there."""
    bars = []
    for row in speeds:
        if (row.threads, row.domain) == (1, ALL) and _is_dspark(row.method):
            for over, ratio, demanded in (
                ("plain decoding", row.over_plain, OVER_PLAIN),
                ("transformers' generate", row.over_transformers, OVER_GENERATE),
            ):
                name = f"{row.method} over {over}, one thread"
                prompts = config.prompts * len({s.domain for s in speeds} - {ALL})
                bars.append(judge(name, demanded, ratio.value, ratio.low, ratio.high, prompts))
    for y in yardsticks:
        if y.threads == 1 and _is_dspark(y.drafter):
            same = min(y.outputs[0] / y.outputs[1], y.drafts[0] / max(y.drafts[1], 1)) >= SAME
            name = f"{y.drafter}: round in transformers' modules over ours, one thread"
            bars.append(judge(name, OVER_MODULES, y.ratio, y.low, y.high, y.rounds, enough=same))
    return bars


def _is_dspark(label: str) -> bool:
    name, _, seed = label.rpartition("-")
    return (name if seed.isdigit() else label).removeprefix("tiny-qwen3-") == "dspark"


def _decode_once(method: str, folders: dict[str, Path], config: Config) -> None:
    """Load what the method needs and decode one prompt of each domain."""
    torch.set_num_threads(config.threads[0])
    target = companion.load_target(config.target, device=config.device)
    if method == GENERATE:
        decode = transformers_decoder(config.target, config.max_new_tokens, config.device)
    else:
        name = str(folders[method]) if method in folders else {PLAIN: "none"}.get(method, method)
        decode = our_decoder(target, companion.load_drafter(name, target), config.max_new_tokens)
    for rows in held_out_prompts(target, 1, config.seed).values():
        decode(rows[0])


def is_result(path: Path) -> bool:
    """Whether the file says of itself that it came from here; it may still be broken."""
    try:
        return '"draft_times"' in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def load(path: Path) -> Result:
    """A stored result. ValueError when the file is none."""
    return read_result(path, Result, "bench drafters --output")


def show(result: Result) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        "threads", "domain", "method", "tokens/s", "range", "tau", "over plain", "over lookup", "over generate"
    )
    for s in result.speeds:
        ratios = (
            f"{r.value:.2f} [{r.low:.2f}, {r.high:.2f}]" for r in (s.over_plain, s.over_lookup, s.over_transformers)
        )
        tau = "" if s.tau is None else f"{s.tau:.2f}"
        spread = f"{s.slowest:.0f} to {s.fastest:.0f}"
        table.add_row(str(s.threads), s.domain, s.method, f"{s.tokens_per_second:.0f}", spread, tau, *ratios)
    console.print(table)
    columns = ("parallel", "sequential", "draft", "forward", "accept", "plain")
    table = Table("drafter", "threads", *columns, "break-even tau", "tau", title="one round, milliseconds")
    for one in result.stages:
        values = ("" if (v := getattr(one, c)) is None else f"{v:.2f}" for c in columns)
        table.add_row(one.drafter, str(one.threads), *values, f"{one.breakeven:.2f}", f"{one.tau:.2f}")
    console.print(table)
    for y in result.yardsticks:
        gap = "" if y.confidence_gap is None else f", confidences within {y.confidence_gap:.0e}"
        console.print(
            f"{y.drafter}, {y.threads} thread(s): {y.draft:.2f} + {y.verify:.2f} ms, in transformers' modules "
            f"{y.their_draft:.2f} + {y.their_verify:.2f} ms, ratio {y.ratio:.2f} [{y.low:.2f}, {y.high:.2f}]; equal "
            f"outputs {y.outputs[0]} of {y.outputs[1]}, equal rounds {y.drafts[0]} of {y.drafts[1]}{gap}"
        )
    table = Table("drafter", "gamma", "T", "ms", "quartiles", "loop", "MiB", "MFLOP", "floor", title="T_draft")
    for t in result.draft_times:
        loop = "" if t.sequential is None else f"{t.sequential:.2f}"
        numbers = (f"{t.low:.2f} to {t.high:.2f}", loop, f"{t.mib:.1f}", f"{t.mflop:.1f}", f"{t.floor:.2f}")
        table.add_row(t.family, str(t.gamma), f"{t.temperature:g}", f"{t.milliseconds:.2f}", *numbers)
    console.print(table)
    console.print(f"memory is copied at {result.copy_gib_per_second:.1f} GiB/s, bytes read and written")
    console.print("peak MiB: " + ", ".join(f"{m} {v:.0f}" for m, v in result.peak_mib.items()))
    console.print(
        "outputs equal to plain decoding's: " + ", ".join(f"{m} {a}/{b}" for m, (a, b) in result.identical.items())
    )
    for bar in result.bars:
        interval = "" if bar.low is None else f" [{bar.low:.2f}, {bar.high:.2f}]"
        console.print(f"{bar.name}: {bar.value:.2f}{interval}, demanded {bar.threshold}: {bar.outcome}")
    console.print(f"verdict: {result.verdict}")
