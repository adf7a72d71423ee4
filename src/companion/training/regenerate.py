"""The target's own answers to training prompts: what a drafter learns from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from tqdm import tqdm

from companion.engine.generate import generate
from companion.engine.load import TextTarget, load_target
from companion.parallel import ordered_map

from .corpus import DOMAINS, SHARES, training_sample
from .tokenizer import render

CHUNK = 240  # prompts between two writes


@dataclass(frozen=True)
class Regeneration:
    """Which prompts the target answers, and how it samples; the temperatures take turns over the prompts."""

    target: str = "tiny-qwen3"
    seed: int = 1
    samples: int = 1440
    think_share: float = 0.5
    domain_shares: tuple[float, ...] = tuple(SHARES[domain] for domain in DOMAINS)  # in the order of DOMAINS
    temperatures: tuple[float, ...] = (0.7, 1.0, 1.0)
    max_new_tokens: int = 600
    max_batch: int = 80

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 <= self.think_share <= 1:
            raise ValueError(
                f"traces need at least 1 sample and a share of thinking from 0 to 1, got {self.samples} and "
                f"{self.think_share}"
            )
        shares = self.domain_shares
        if len(shares) != len(DOMAINS) or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise ValueError(f"the shares of {', '.join(DOMAINS)} must be {len(DOMAINS)} that sum to 1, got {shares}")


@dataclass(frozen=True)
class Trace:
    """Token ids of a prompt and of the target's response to it."""

    prompt: list[int]
    response: list[int]


def regenerate(config: Regeneration, path: Path, workers: int = 1, device: str = "cpu") -> list[Trace]:
    """The traces in ``path`` (JSON lines), after adding those that are missing; a killed run goes on from there."""
    done = _whole_lines(path)
    starts = range(done, config.samples, CHUNK)
    chunks = [range(start, min(start + CHUNK, config.samples)) for start in starts]
    with tqdm(total=config.samples, initial=done, desc="target output", unit="response", disable=None) as bar:
        for traces in ordered_map(partial(_answer, config, device), chunks, workers):
            with path.open("a") as f:
                f.writelines(json.dumps({"prompt": t.prompt, "response": t.response}) + "\n" for t in traces)
            bar.update(len(traces))
    return read_traces(path)[: config.samples]


def read_traces(path: Path) -> list[Trace]:
    return [Trace(**json.loads(line)) for line in path.read_text().splitlines()]


def _answer(config: Regeneration, device: str, indices: range) -> list[Trace]:
    target = _load(config.target, device)
    prompts = {i: _prompt_ids(config, i, target) for i in indices}
    responses: dict[int, list[int]] = {}
    for temperature in sorted(set(config.temperatures)):
        mine = [i for i in indices if config.temperatures[i % len(config.temperatures)] == temperature]
        if not mine:
            continue
        made = generate(
            target,
            None,
            [prompts[i] for i in mine],
            temperature=temperature,
            seed=config.seed,
            max_new_tokens=config.max_new_tokens,
            max_batch=config.max_batch,
        )
        responses |= {i: r.tokens for i, r in zip(mine, made, strict=True)}
    return [Trace(prompts[i], responses[i]) for i in indices]


@cache
def _load(name: str, device: str) -> TextTarget:
    return load_target(name, device=device)


def _prompt_ids(config: Regeneration, index: int, target: TextTarget) -> list[int]:
    shares = dict(zip(DOMAINS, config.domain_shares, strict=True))
    sample = training_sample(config.seed, index, config.think_share, shares=shares)
    return list(target.encode(render(replace(sample, thinking="", answer=""))[0]))


def _whole_lines(path: Path) -> int:
    """Number of complete lines; a line cut by a kill is dropped from the file."""
    if not path.exists():
        return 0
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        partial_file = path.with_suffix(".partial")
        partial_file.write_bytes(whole)
        os.replace(partial_file, path)
    return whole.count(b"\n")
