"""Drafted triples of tokens whose pairs are fine and which are broken all the same: what a bigram head cannot see.

On chat at temperature 1, of the triples (x_j, x_{j+1}, x_{j+2}) of tokens that were all three drafted in one block, and
whose first two are no stop tokens:

    broken pair    share of which one of the two pairs occurs nowhere in the reference, text that the target wrote for
                   other prompts
    broken triple  of the rest, whose pairs both occur in the reference, the share that does not occur there

A finite reference lacks some good triples too. How many, the target's own answers to the same prompts say, which are
counted in the same way: what a drafter has beyond them is incoherence. `companion.experiments.three_tokens` is the
smallest case, solved exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from tqdm import tqdm

import companion
from companion.engine.load import ModelFolder, TextTarget
from companion.experiments.drafter_rounds import DrafterRun, finished_runs
from companion.experiments.recorder import Recorder
from companion.provenance import collect, write_json
from companion.resampling import F64, Interval, pooled, pooled_draws, prompt_weights, seed_weights
from companion.training.corpus import DOMAINS, held_out_samples
from companion.training.regenerate import Regeneration, regenerate
from companion.training.target import claim_folder

TEXT = "target"  # the row of the target's own answers
EXAMPLES = 10
Triple = tuple[int, ...]


class Config(BaseModel):
    target: str = "tiny-qwen3"
    prompts: int = Field(default=60, ge=2)  # held-out chat prompts, thinking off
    reference: int = Field(default=3000, ge=1)  # responses to other chat prompts
    max_new_tokens: int = 400
    max_batch: int = 30
    seed: int = 0
    resamples: int = 2000


class Row(BaseModel):
    """Shares of broken pairs and triples, seeds pooled, with 95 % intervals over prompts and seeds (None: there was
    nothing to divide by); an ``excess`` is what a share has beyond that of the answers the drafter helped to write,
    which are the target's own."""

    drafter: str
    seeds: int
    triples: int
    whole_pairs: int  # of them with both pairs in the reference
    pair: float | None
    pair_low: float | None
    pair_high: float | None
    triple: float | None
    triple_low: float | None
    triple_high: float | None
    pair_excess: float | None
    pair_excess_low: float | None
    pair_excess_high: float | None
    triple_excess: float | None
    triple_excess_low: float | None
    triple_excess_high: float | None


class BrokenTriples(BaseModel):
    config: Config
    reference_tokens: int
    reference_pairs: int
    reference_triples: int
    rows: list[Row]  # the target's own text first
    examples: dict[str, list[str]]  # some broken triples of each drafter, as text
    provenance: dict[str, Any]


class Reference:
    """Pairs and triples of adjacent tokens in a set of texts, and how triples are judged by them."""

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self.pairs: set[Triple] = set()
        self.triples: set[Triple] = set()
        self.tokens = 0
        for text in texts:
            self.tokens += len(text)
            self.pairs.update(pairwise(text))
            self.triples.update(zip(text, text[1:], text[2:], strict=False))

    def broken_pair(self, triple: Triple) -> bool:
        return triple[:2] not in self.pairs or triple[1:] not in self.pairs

    def broken_triple(self, triple: Triple) -> bool:
        """Both pairs are there, the triple is not."""
        return not self.broken_pair(triple) and triple not in self.triples

    def counts(self, triples: Sequence[Triple]) -> tuple[int, int, int]:
        """(broken pairs, broken triples, all)."""
        pairs, broken = (sum(map(judge, triples)) for judge in (self.broken_pair, self.broken_triple))
        return pairs, broken, len(triples)


def triples_of(tokens: Sequence[int], stops: frozenset[int]) -> list[Triple]:
    """Adjacent triples, up to the one that ends with the first stop token."""
    found = zip(tokens, tokens[1:], tokens[2:], strict=False)
    end = next((i for i, t in enumerate(tokens) if t in stops), len(tokens))
    return [triple for i, triple in enumerate(found) if i + 2 <= end]


def run(models: Path, folder: Path, output: Path | None = None, config: Config | None = None) -> BrokenTriples:
    """Count for every finished drafter in ``models``; the reference is made in ``folder`` once and kept.

    ``output`` (JSON) is written when all is there. ValueError when there is no drafter.
    """
    config, drafters = config or Config(), finished_runs(models)
    target = companion.load_target(config.target)
    reference = _reference(config, target, folder)
    asked = [s.prompt for s in held_out_samples("chat", "no_think", config.prompts, seed=config.seed)]
    counts: dict[str, list[tuple[F64, F64]]] = {}
    examples: dict[str, list[str]] = {}
    for drafter in tqdm(drafters, desc="broken triples", unit="drafter", disable=None):
        answers, drafted = _decode(target, drafter, asked, config)
        parts = [np.array([reference.counts(t) for t in of], dtype=np.float64) for of in (drafted, answers)]
        counts.setdefault(drafter.name, []).append((parts[0], parts[1]))
        broken = dict.fromkeys(t for of in drafted for t in of if reference.broken_triple(t))
        examples.setdefault(drafter.name, [target.decode(list(t)) for t in list(broken)[:EXAMPLES]])
    result = BrokenTriples(
        config=config,
        reference_tokens=reference.tokens,
        reference_pairs=len(reference.pairs),
        reference_triples=len(reference.triples),
        rows=list(summarise(counts, config)),
        examples=examples,
        provenance=collect(
            target=target.source,
            thinking="off",
            sampling={"temperature": 1.0},
            seeds=[config.seed],
            prompts=asked,
            drafters=[ModelFolder(d.folder, d.label).describe() for d in drafters if d.folder is not None],
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def _reference(config: Config, target: TextTarget, folder: Path) -> Reference:
    """Answers to chat prompts of the training mixture, which shares none with the held-out ones."""
    texts = Regeneration(
        target=config.target,
        seed=config.seed + 100,
        samples=config.reference,
        think_share=0.0,
        domain_shares=tuple(float(domain == "chat") for domain in DOMAINS),
        temperatures=(1.0,),
        max_new_tokens=config.max_new_tokens,
    )
    folder.mkdir(parents=True, exist_ok=True)
    claim_folder(folder, asdict(replace(texts, samples=1)) | {"samples": None, "target": target.source}, "traces.json")
    traces = regenerate(texts, folder / "reference.jsonl")
    return Reference(trace.response for trace in traces)


def _decode(
    target: TextTarget, drafter: DrafterRun, prompts: Sequence[str], config: Config
) -> tuple[list[list[Triple]], list[list[Triple]]]:
    """Triples of each answer, and of the blocks that were drafted on the way to it."""
    model = companion.load_drafter(str(drafter.folder), target)
    assert model is not None
    recorder, stops = Recorder(model), target.eos_token_ids
    results = companion.generate(
        target,
        recorder,
        list(prompts),
        temperature=1.0,
        thinking=False,
        max_new_tokens=config.max_new_tokens,
        seed=config.seed,
        max_batch=config.max_batch,
    )
    requests = [result.rounds[0].request if result.rounds else None for result in results]
    drafted = [
        [t for block in recorder.blocks.get(-1 if r is None else r, ()) for t in triples_of(block, stops)]
        for r in requests
    ]
    return [triples_of(result.tokens, stops) for result in results], drafted


def summarise(counts: Mapping[str, Sequence[tuple[F64, F64]]], config: Config) -> Iterator[Row]:
    """Rows from the counts of each drafter and seed: of drafts and of answers, [P, 3] as `Reference.counts`.

    The target's own text comes first: the answers of all runs, which are so many independent ones.
    """
    prompts = len(next(iter(counts.values()))[0][0])
    weights = prompt_weights(np.zeros(prompts, dtype=np.int64), config.resamples, np.random.default_rng(config.seed))

    def share(parts: F64, what: str, seeds: F64) -> tuple[float, F64]:  # [S, P, 3], [B, S]
        pairs, triples, total = np.moveaxis(parts, -1, 0)
        ratio = np.stack([pairs, total] if what == "pair" else [triples, total - pairs], -1)
        return pooled(ratio), pooled_draws(ratio, weights, seeds)

    everything = np.stack([answers for of in counts.values() for _, answers in of])
    sources = {TEXT: (everything, everything)}
    sources |= {n: (np.stack([d for d, _ in of]), np.stack([a for _, a in of])) for n, of in counts.items()}
    for name, (drafted, answers) in sources.items():
        seeds = seed_weights(len(drafted), config.resamples, np.random.default_rng([config.seed, *name.encode()]))
        fields: dict[str, float | None] = {}
        for what in ("pair", "triple"):
            (value, draws), (own, own_draws) = (share(parts, what, seeds) for parts in (drafted, answers))
            fields |= _ends(what, Interval.of(value, draws))
            fields |= _ends(f"{what}_excess", Interval.of(value - own, draws - own_draws))
        pairs, _, total = (int(count) for count in drafted.sum((0, 1)))
        yield Row(drafter=name, seeds=len(drafted), triples=total, whole_pairs=total - pairs, **fields)


def _ends(name: str, interval: Interval) -> dict[str, float | None]:
    fields = {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {key: value if np.isfinite(value) else None for key, value in fields.items()}


def show(result: BrokenTriples) -> None:
    """Print the shares as a table, and a few of the broken triples."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = ("triples", "broken pair, %", "beyond text", "pairs whole", "broken triple, %", "beyond text")
    table = Table("drafter", "seeds", *columns)
    for r in result.rows:
        shares = ((r.pair, r.pair_low, r.pair_high), (r.pair_excess, r.pair_excess_low, r.pair_excess_high))
        values = [_percent(*share) for share in shares]
        values.append(f"{r.whole_pairs:,}")
        values.append(_percent(r.triple, r.triple_low, r.triple_high))
        values.append(_percent(r.triple_excess, r.triple_excess_low, r.triple_excess_high))
        table.add_row(r.drafter, str(r.seeds), f"{r.triples:,}", *values)
    console.print(table)
    console.print(
        f"reference: {result.reference_tokens:,} tokens of the target, {result.reference_pairs:,} pairs, "
        f"{result.reference_triples:,} triples"
    )
    for name, found in result.examples.items():
        console.print(f"{name}: {'; '.join(map(repr, found)) or 'none'}", markup=False)


def _percent(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return "no data"
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
