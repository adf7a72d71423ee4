"""Every prompt answered in full, and again from every place where its thought could have been cut off.

What comes before an exit does not depend on the rule, so that one probed response and its answers from every place tell
what any rule would have done: `companion.phase.exit_rules.replay` finds the exit, the table the answer behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.engine.load import TextTarget
from companion.experiments.forced_exit.checks import answers, checkable_samples
from companion.experiments.forced_exit.design import CUE, SPLITS, Config, Split
from companion.experiments.stored import append_rows, resume_rows
from companion.forced_exit import ProbedResponse, Start, decode_with_exit
from companion.parallel import ordered_map
from companion.phase.exit_rules import Watch
from companion.phase.probe import Sample as Probed
from companion.phase.tracker import PhaseTracker
from companion.protocols import Sampling
from companion.training.corpus import DOMAINS, Domain, Sample

CUES = ("", CUE)
Chunk = tuple[Domain, int, int]  # domain, seed, number of the chunk


class Row(BaseModel):
    """One response. ``think_tokens`` is the length of its thought, the closing tag not counted.

    Lists at the exits begin with an exit before the first token of the thought and go on every ``probe_every`` tokens;
    those of samples begin with the second of these places.
    """

    split: Split
    domain: Domain
    index: int
    seed: int
    ended: bool
    closed: bool
    think_tokens: int
    answer_tokens: int
    right: bool
    off_right: bool  # thinking off
    off_tokens: int
    exit_right: list[bool]
    exit_tokens: list[int]  # of the answer
    mass: list[float]
    entropy: list[float]
    max_p: list[float]
    answer_entropy: dict[str, list[float]]

    @property
    def last_choice(self) -> int:
        """Tokens of the thought before its last row: that of its end, or where it was never closed, of its last token,
        which ended the response."""
        return self.think_tokens if self.closed else max(0, self.think_tokens - 1)

    def samples(self, every: int) -> list[Probed]:
        return [
            Probed(every * k, *row, {cue: values[k - 1] for cue, values in self.answer_entropy.items()})
            for k, row in enumerate(zip(self.mass, self.entropy, self.max_p, strict=True), start=1)
        ]


def prompts(config: Config, domain: Domain) -> list[Sample]:
    """The tuning prompts, then the judging ones: drawn together, so that none is in both."""
    return _prompts(domain, config.tuning + config.judging, config.prompt_seed)


def record(config: Config, path: Path, workers: int = 1) -> tuple[list[Row], TextTarget]:
    """All rows; those in ``path`` are kept, the others decoded and added, a chunk at a time.

    ValueError when ``path`` belongs to other weights or settings, or the target has no think span.
    """
    target = companion.load_target(config.target, device=config.device)
    if target.tags.close is None or target.tokenizer is None:
        raise ValueError(f"{target.name} has no token </think>, so there is no thought to cut off")
    settings = config.model_dump(mode="json", exclude={"margin", "budget", "live", "resamples"})
    done = resume_rows(path, {"config": settings, "weights": target.source["weights_sha256"]}, Row)
    have = {(r.domain, r.index, r.seed) for r in done}
    todo = [c for c in _chunks(config) if any((c[0], i, c[1]) not in have for i in _members(config, c))]
    total = len(DOMAINS) * (config.tuning + config.judging) * len(config.seeds)
    bar = tqdm(total=total, initial=len(done), desc="forced exit", unit="response", disable=None)
    for made in ordered_map(partial(_decode, config), todo, workers):
        # a chunk is decoded as a whole, so that what a killed run left of it changes no batch
        new = [r for r in made if (r.domain, r.index, r.seed) not in have]
        append_rows(path, new)
        done += new
        bar.update(len(new))
    bar.close()
    order = {d: i for i, d in enumerate(DOMAINS)}
    return sorted(done, key=lambda r: (SPLITS.index(r.split), order[r.domain], r.index, r.seed)), target


def _chunks(config: Config) -> Iterator[Chunk]:
    count = -(-(config.tuning + config.judging) // config.chunk)
    for number in range(count):
        for domain in DOMAINS:
            for seed in config.seeds:
                yield domain, seed, number


def _members(config: Config, chunk: Chunk) -> range:
    first = config.chunk * chunk[2]
    return range(first, min(first + config.chunk, config.tuning + config.judging))


@cache
def _load(name: str, device: str) -> TextTarget:
    return companion.load_target(name, device=device)


@cache
def _prompts(domain: Domain, count: int, seed: int) -> list[Sample]:
    return checkable_samples(domain, count, seed)


def options(config: Config, seed: int) -> dict[str, Any]:
    """How everything here is decoded."""
    return {
        "sampling": Sampling(config.temperature),
        "max_new_tokens": config.max_new_tokens,
        "max_batch": config.max_batch,
        "seed": seed,
    }


def _decode(config: Config, chunk: Chunk) -> list[Row]:
    domain, seed, _ = chunk
    target, indices = _load(config.target, config.device), list(_members(config, chunk))
    samples = [prompts(config, domain)[i] for i in indices]
    texts, how = [s.prompt for s in samples], options(config, seed)
    full = decode_with_exit(target, texts, Watch(config.probe_every, CUES), **how)
    off = decode_with_exit(target, texts, Watch(None), thinking=False, **how)
    thoughts = [Thought.of(target, r) for r in full]
    places = [t.places(config) for t in thoughts]
    waiting = sorted((n, k) for k, own in enumerate(places) for n in own)  # of like length side by side
    starts = [Start(full[k].prompt_tokens, thoughts[k].cut(target, full[k], n)) for n, k in waiting]
    answered = dict(zip(waiting, decode_with_exit(target, starts, Watch(None), **how) if starts else (), strict=True))
    rows = []
    for k, (index, sample, response) in enumerate(zip(indices, samples, full, strict=True)):
        behind = [answered[n, k] for n in places[k]]
        probed = response.samples[: thoughts[k].length // config.probe_every]  # of the first span
        rows.append(
            Row(
                split="tuning" if index < config.tuning else "judging",
                domain=domain,
                index=index,
                seed=seed,
                ended=_ended(response),
                closed=thoughts[k].closed,
                think_tokens=thoughts[k].length,
                answer_tokens=len(response.emitted) - thoughts[k].behind,
                right=answers(sample, response.text, _ended(response)),
                off_right=answers(sample, off[k].text, _ended(off[k])),
                off_tokens=len(off[k].emitted),
                exit_right=[answers(sample, r.text, _ended(r)) for r in behind],
                exit_tokens=[
                    len(r.emitted) - thoughts[k].first - n - 1 for n, r in zip(places[k], behind, strict=True)
                ],
                mass=[_short(s.mass) for s in probed],
                entropy=[_short(s.entropy) for s in probed],
                max_p=[_short(s.max_p) for s in probed],
                answer_entropy={cue: [_short(s.answer_entropy[cue]) for s in probed] for cue in CUES},
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class Thought:
    """The first span of a response: where its tokens begin among the emitted ones, how many, whether it was closed."""

    first: int
    length: int
    closed: bool
    there: bool = True

    @classmethod
    def of(cls, target: TextTarget, response: ProbedResponse) -> Thought:
        emitted, tags = response.emitted, target.tags
        if PhaseTracker(tags, response.prompt_tokens).phase == "think":
            first = 0
        elif tags.open in emitted:
            first = emitted.index(tags.open) + 1
        else:
            return cls(0, 0, False, there=False)
        end = next((i for i in range(first, len(emitted)) if emitted[i] == tags.close), None)
        return cls(first, (len(emitted) if end is None else end) - first, end is not None)

    @property
    def behind(self) -> int:
        """Emitted tokens up to the answer."""
        return self.first + self.length + self.closed

    def places(self, config: Config) -> list[int]:
        """Where it can be left with room for an answer, counted in its tokens."""
        last = self.length if self.closed else self.length - 1  # behind the token that ends a response is nothing
        most = min(last, config.max_new_tokens - self.first - 2)
        return list(range(0, most + 1, config.probe_every)) if self.there else []

    def cut(self, target: TextTarget, response: ProbedResponse, n: int) -> Sequence[int]:
        """The response up to ``n`` tokens of the thought, and its end."""
        assert target.tags.close is not None
        return [*response.emitted[: self.first + n], target.tags.close]


def _ended(response: ProbedResponse) -> bool:
    return response.finish_reason == "stop"


def _short(value: float) -> float:
    """As many digits as fp32 has."""
    return float(f"{value:.9g}")
