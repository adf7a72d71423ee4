"""Forced exit measured: does a rule that ends the thought early keep the answer right, and for how many tokens less.

Settings are chosen on tuning prompts and judged on others. The foil is an exit after a fixed number of tokens: a signal
is worth something only where it does better than that at the same mean length.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import companion
from companion.engine.load import TextTarget
from companion.experiments.bars import Bar, Verdict, judge, verdict
from companion.experiments.forced_exit.checks import answers
from companion.experiments.forced_exit.design import CUE, FAMILIES, SPLITS, Config, Split, check
from companion.experiments.forced_exit.outcomes import Table
from companion.experiments.forced_exit.recording import CUES, Thought, options, prompts, record
from companion.experiments.forced_exit.summary import (
    Choice,
    Ends,
    Judged,
    Point,
    Reference,
    Tried,
    choose,
    judged,
    of_family,
    point,
    references,
    tabled,
)
from companion.experiments.stored import read_result
from companion.forced_exit import decode_with_exit
from companion.phase.exit_rules import Watch
from companion.provenance import collect, write_json
from companion.training.corpus import DOMAINS

SAME = 0.99  # share of responses that must agree token by token; what is left is rounding


class Trace(BaseModel):
    """One response, row by row: the signals before each token. Answer entropies only inside the span."""

    domain: str
    prompt: str
    pieces: list[str]  # text of each token
    phases: list[str]
    mass: list[float]
    entropy: list[float]
    max_p: list[float]
    probed: list[int]  # places of the tokens before which the answer entropy was taken
    answer_entropy: dict[str, list[float]]


class Result(BaseModel):
    config: Config
    verdict: Verdict
    bars: list[Bar]
    note_exits: int  # of the note's defaults, over all responses of both splits
    longest_span: int
    judged: list[Judged]
    points: list[Point]
    references: list[Reference]
    traces: list[Trace]
    provenance: dict[str, Any]


def run(config: Config | None = None, output: Path | None = None, rows: Path | None = None, workers: int = 1) -> Result:
    """Decode what ``rows`` (JSONL; default a file in ``runs/``) lacks, then judge; ``output`` is written when all is
    there. A killed run goes on from its rows and ends with the same numbers. ValueError as `record`.
    """
    config = config or Config()
    check(config)
    digest = hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]
    path = rows or Path("runs") / "forced_exit" / f"{Path(config.target).name}-{digest}.jsonl"
    done, target = record(config, path, workers)
    tables: dict[Split, Table] = {
        split: Table([r for r in done if r.split == split], config.probe_every, config.resamples) for split in SPLITS
    }
    found = tabled(config, tables)
    chosen = choose(config, found["tuning"])
    bars = _bars(config, target, tables["judging"], [found["judging"][i] for i in sorted(set(chosen.values()))])
    result = Result(
        config=config,
        verdict=verdict(bars),
        bars=bars,
        note_exits=sum(e is not None for own in found.values() for o in of_family(own, "note") for e in o.exits),
        longest_span=max(r.think_tokens for r in done),
        judged=judged(tables["judging"], found["judging"], chosen),
        points=[
            point(tables[split], split, candidate, outcome, domain)
            for split in SPLITS
            for candidate, outcome in found[split]
            for domain, _ in tables[split].scopes()
            if split == "judging" or domain == "all"
        ],
        references=references(tables["judging"]),
        traces=_traces(config, target),
        provenance=collect(
            target=target.source,
            thinking="both",
            sampling={"temperature": config.temperature},
            seeds=config.seeds,
            prompts=[s.prompt for d in DOMAINS for s in prompts(config, d)],
            probe_every=config.probe_every,
            cues=list(CUES),
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def _bars(config: Config, target: TextTarget, table: Table, live: Tried) -> list[Bar]:
    """What the recording rests on, looked at in the loop itself, on a few prompts of each domain."""
    seed, last = config.seeds[0], config.tuning + config.live
    at = [i for i, r in enumerate(table.rows) if r.seed == seed and r.index < last]
    samples = [prompts(config, table.rows[i].domain)[table.rows[i].index] for i in at]
    texts, how = [s.prompt for s in samples], options(config, seed)
    plain = companion.generate(
        target,
        None,
        texts,
        temperature=config.temperature,
        max_new_tokens=config.max_new_tokens,
        max_batch=config.max_batch,
        seed=seed,
    )
    probed = decode_with_exit(target, texts, Watch(config.probe_every, CUES), **how)
    same = []
    for candidate, outcome in live:
        responses = decode_with_exit(target, texts, candidate.rule, allow_lossy=True, **how)
        for i, sample, r in zip(at, samples, responses, strict=True):
            right = answers(sample, r.text, r.finish_reason == "stop")
            same.append((right, r.think_tokens) == (bool(outcome.right[i]), int(outcome.think[i])))
    return [
        _share(
            "probing leaves every token as it is",
            [a.tokens == b.emitted for a, b in zip(plain, probed, strict=True)],
        ),
        _share("a rule in the decoding loop does what its replay says", same),
    ]


def _share(name: str, held: list[bool]) -> Bar:
    return judge(name, SAME, sum(held) / len(held) if held else None, None, None, len(held))


def _traces(config: Config, target: TextTarget) -> list[Trace]:
    """The first judging prompt of each domain, probed at every token."""
    asked = {domain: prompts(config, domain)[config.tuning].prompt for domain in DOMAINS}
    found = decode_with_exit(target, list(asked.values()), Watch(1, CUES), **options(config, config.seeds[0]))

    def rounded(values: list[float]) -> list[float]:
        return [round(v, 5) for v in values]

    return [
        Trace(
            domain=domain,
            prompt=asked[domain],
            pieces=[target.decode([token], keep_special=True) for token in r.emitted],
            phases=list(r.phases),
            mass=rounded(r.rows.mass),
            entropy=rounded(r.rows.entropy),
            max_p=rounded(r.rows.max_p),
            probed=[Thought.of(target, r).first + s.think_tokens for s in r.samples],
            answer_entropy={cue: rounded([s.answer_entropy[cue] for s in r.samples]) for cue in CUES},
        )
        for domain, r in zip(DOMAINS, found, strict=True)
    ]


def load(path: Path) -> Result:
    """A stored result. ValueError when the file is none."""
    return read_result(path, Result, "experiment forced-exit")


def show(result: Result) -> None:
    """Print full thinking and thinking off, the chosen settings, and the bars."""
    from rich.console import Console
    from rich.table import Table as Printed

    console = Console()
    console.print(
        f"the note's defaults ended {result.note_exits} of all spans, the longest of which has {result.longest_span} "
        f"tokens; cue: {CUE!r}"
    )
    full = {p.domain: p for p in result.points if (p.family, p.split) == ("none", "judging")}
    printed = Printed("domain", "right", "think tokens", "right, thinking off", "settled after", "mass < 0.001")
    for r in result.references:
        own = full[r.domain]
        printed.add_row(
            r.domain,
            _percent(own.accuracy),
            _number(own.think_tokens),
            _percent(r.off_accuracy),
            _number(r.settled_tokens),
            f"{100 * r.silent:.1f} %",
        )
    console.print(printed)
    titles: dict[Choice, str] = {
        "keep": f"least thinking within {100 * result.config.margin:g} points of full thinking's accuracy, by tuning",
        "budget": f"most accurate within {100 * result.config.budget:g} % of full thinking's tokens, by tuning",
    }
    for choice, title in titles.items():
        columns = ("rule", "right", "by domain", "think tokens", "right - full", "right - fixed length")
        printed = Printed(*columns, title=title)
        found = [j for j in result.judged if j.choice == choice]
        for family in dict.fromkeys(j.point.family for j in found):
            by = {j.point.domain: j for j in found if j.point.family == family}
            j = by["all"]
            by_domain = " ".join(f"{100 * by[d].point.accuracy.value:.0f}" for d in DOMAINS if d in by)
            numbers = (_number(j.point.think_tokens), _percent(j.over_none), _percent(j.over_fixed))
            printed.add_row(FAMILIES[family], _percent(j.point.accuracy), by_domain, *numbers)
        console.print(printed)
    for bar in result.bars:
        shown = "no data" if bar.value is None else f"{100 * bar.value:.1f} %"
        console.print(f"{bar.name}: {shown} of {bar.trials}: {bar.outcome}")
    console.print(f"verdict: {result.verdict}")


def _percent(ends: Ends) -> str:
    tail = "" if ends.low is None or ends.high is None else f" [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"
    return f"{100 * ends.value:.1f} %{tail}"


def _number(ends: Ends) -> str:
    return f"{ends.value:.0f}" + ("" if ends.low is None else f" [{ends.low:.0f}, {ends.high:.0f}]")
