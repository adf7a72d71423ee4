"""What each signal sees of the two phases, how late the ceiling is, and how alike the phases are.

Decodes held-out prompts with every statistic of every row kept, in memory: nothing to resume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.calibration import F64
from companion.engine.load import TextTarget
from companion.experiments.forced_exit.design import CUE
from companion.experiments.phase_gap import design
from companion.experiments.phase_gap.answers import answer_entropies
from companion.experiments.phase_gap.contrasts import ALL, sampling_name
from companion.experiments.phase_gap.lag import Lag, lags
from companion.experiments.phase_gap.prompts import HELD_OUT, PromptSet, load_prompts
from companion.experiments.phase_gap.record import decode, describe
from companion.experiments.phase_gap.report import text
from companion.experiments.phase_gap.signals import ON, SIDES, Signal, first_slots, signals
from companion.experiments.stored import read_result
from companion.provenance import collect, write_json
from companion.rounds import Round


class Config(BaseModel):
    target: str = "tiny-qwen3"
    drafters: tuple[str, ...] = ("dspark", "dspark-think-50")
    sources: tuple[str, ...] = (HELD_OUT,)
    per_domain: int = 40  # prompts, asked with thinking on and off
    prompt_seed: int = 12
    temperature: float = 1.0
    top_k: int = 20  # decoded without it and with it
    max_new_tokens: int = 600
    max_batch: int = 30
    seed: int = 0
    resamples: int = 300
    device: str = "cpu"


class Overlap(BaseModel):
    """Jensen-Shannon divergence of the token frequencies of two sides, bits: 0 for the same words, 1 for none shared.

    Frequencies of few tokens differ by chance: ``halves`` is the divergence of one half of the first side's responses
    from the other half.
    """

    domain: str
    think_off: float | None
    think_output: float | None
    output_off: float | None
    halves: float | None


class PhaseSignals(BaseModel):
    config: Config
    signals: list[Signal]
    lags: list[Lag]  # of the first drafter's responses
    overlaps: list[Overlap]  # likewise
    provenance: dict[str, Any]


def run(config: Config | None = None, output: Path | None = None) -> PhaseSignals:
    """Decode, and compare; ``output`` (JSON) at the end. ValueError for bad input."""
    config = config or Config()
    if config.per_domain < 4 or config.top_k < 2 or config.temperature <= 0 or config.resamples < 2:
        raise ValueError(
            "signals are compared on two halves of the prompts, with and without top-k, above temperature 0: give at "
            f"least 4 prompts, top_k of at least 2 and 2 resamples; got {config.per_domain} prompts, top_k "
            f"{config.top_k}, temperature {config.temperature:g}, {config.resamples} resamples"
        )
    prompts = load_prompts(config.sources, config.per_domain, config.prompt_seed)
    found = design.find_drafters(config.drafters)
    target = companion.load_target(config.target, device=config.device)
    seen: list[Signal] = []
    late: list[Lag] = []
    alike: list[Overlap] = []
    for number, drafter in enumerate(found):
        for top_k in (None, config.top_k):
            arm = design.Arm(drafter=drafter, temperature=config.temperature, top_k=top_k, top_p=1.0, seed=config.seed)
            rows, answers = _rows(config, prompts, arm, target)
            name = sampling_name({"temperature": config.temperature, "top_k": top_k})
            options = {"resamples": config.resamples, "seed": config.seed}
            slots = first_slots(rows, prompts.domains, target.vocab_size, answers)
            seen += signals(slots, prompts.domains, drafter=drafter.name, sampling=name, **options)
            if number == 0:
                late += lags(rows, prompts.domains, sampling=name, vocab_size=target.vocab_size, top_k=top_k, **options)
                alike = alike or overlaps(rows, prompts.domains, target.vocab_size)
    result = PhaseSignals(
        config=config,
        signals=seen,
        lags=late,
        overlaps=alike,
        provenance=collect(
            target=target.source,
            thinking="both",
            sampling={"temperature": config.temperature, "top_k": config.top_k},
            seeds=[config.seed],
            prompts=[p.text for p in prompts.prompts],
            drafters=[describe(d) for d in found],
            source=prompts.source,
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def _rows(
    config: Config, prompts: PromptSet, arm: design.Arm, target: TextTarget
) -> tuple[list[Round], dict[tuple[str | None, int], tuple[float, float]]]:
    """Rounds with all statistics, and the entropies of early answers at those inside spans."""
    drafter = companion.load_drafter(arm.drafter.model, target)
    assert drafter is not None
    settings = design.Config(**config.model_dump(include={"max_new_tokens", "max_batch"}))
    threads = torch.get_num_threads()
    if config.device == "cpu":
        torch.set_num_threads(1)
    rows, answers = list[Round](), dict[tuple[str | None, int], tuple[float, float]]()
    chunks = list(design.chunks(prompts, config.max_batch))
    try:
        for chunk in tqdm(chunks, desc=f"{arm.drafter.name}, top-k {arm.top_k}", unit="group", disable=None):
            results = [result for result, _ in decode(target, drafter, prompts, chunk, settings, arm)]
            bare, cued = (answer_entropies(target, results, cue) for cue in ("", CUE))
            for result, plain, behind in zip(results, bare, cued, strict=True):
                rows.extend(result.rounds)
                names = {row.round: row.prompt_id for row in result.rounds}
                answers |= {(names[n], n): (plain[n], behind[n]) for n in plain}
    finally:
        torch.set_num_threads(threads)
    return rows, answers


def overlaps(rows: Sequence[Round], domains: Sequence[str], vocab_size: int) -> list[Overlap]:
    """How alike the words of the sides are, by domain."""
    counts: dict[tuple[str, str, int], Counter[int]] = {}
    for r in rows:
        half = int(str(r.prompt_id).rpartition("/")[2]) % 2
        for token, phase in zip(r.tokens, r.phases, strict=True):
            side = "off" if r.mode == "no_think" else phase
            for domain in (str(r.domain), ALL):
                counts.setdefault((domain, side, half), Counter())[token] += 1

    def law(domain: str, side: str, halves: Sequence[int] = (0, 1)) -> F64:
        found = np.zeros(vocab_size)
        for half in halves:
            for token, n in counts.get((domain, side, half), Counter()).items():
                found[token] += n
        return found

    return [
        Overlap(
            domain=domain,
            think_off=divergence(law(domain, "think"), law(domain, "off")),
            think_output=divergence(law(domain, "think"), law(domain, "output")),
            output_off=divergence(law(domain, "output"), law(domain, "off")),
            halves=divergence(law(domain, "think", (0,)), law(domain, "think", (1,))),
        )
        for domain in (ALL, *domains)
    ]


def divergence(one: F64, other: F64) -> float | None:  # [V] counts
    """Jensen-Shannon divergence in bits; None where a side has no tokens."""
    if not one.sum() or not other.sum():
        return None
    p, q = one / one.sum(), other / other.sum()
    m = (p + q) / 2
    bits = sum(float((a[a > 0] * np.log2(a[a > 0] / m[a > 0])).sum()) for a in (p, q)) / 2
    return round(bits, 5)


def load(path: Path) -> PhaseSignals:
    """A stored result. ValueError when the file is none."""
    return read_result(path, PhaseSignals, "experiment phase-signals")


def show(result: PhaseSignals) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for drafter, sampling in dict.fromkeys((s.drafter, s.sampling) for s in result.signals):
        own = [s for s in result.signals if (s.drafter, s.sampling, s.domain) == (drafter, sampling, ALL)]
        table = Table("signal", *(f"{side}: {what}" for side in (*SIDES, ON) for what in ("AUC", "mean, accepted")))
        table.title = f"{drafter}, {sampling}: first slots, all domains"
        for name in dict.fromkeys(s.signal for s in own):
            cells = {s.side: s for s in own if s.signal == name}
            values = ((text(s.auc), f"{s.forecast:.2f}, {s.accepted:.2f}") for s in cells.values())
            table.add_row(name, *(cell for pair in values for cell in pair))
        console.print(table)
    columns = (
        "sampling",
        "domain",
        "side",
        "H",
        "autocorrelation at 1",
        "above the row before's",
        "by 0.1",
        "loose, V",
        "loose, k",
    )
    table = Table(*columns, title="ceilings, one row late")
    for g in result.lags:
        first = g.autocorrelation.get(1)
        numbers = (g.broken, g.broken_by_a_tenth, g.loose_vocabulary, g.loose_kept)
        shown = ("" if first is None else f"{first:.2f}", *map(text, numbers))
        table.add_row(g.sampling, g.domain, g.side, text(g.entropy), *shown)
    console.print(table)
    table = Table("domain", "inside, thinking off", "inside, outside", "outside, thinking off", "halves of inside")
    table.title = "Jensen-Shannon divergence of token frequencies, bits"
    for o in result.overlaps:
        shares = (o.think_off, o.think_output, o.output_off, o.halves)
        table.add_row(o.domain, *("no data" if x is None else f"{x:.3f}" for x in shares))
    console.print(table)
