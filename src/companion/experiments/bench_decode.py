"""Decode speed and memory as ratios within one run: our engine against transformers on the same weights.

Greedy, batch 1, warm. Every method decodes the same prompts; methods alternate prompt by prompt, so that a slow spell
of the machine hits all of them; one pass gives each method tokens per second, and the median over passes is reported
with its range. Peak memory is the resident set of a fresh process that runs one method.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.engine.load import TextTarget, find_model
from companion.experiments.forward_cost import WIDTHS, forward_times
from companion.experiments.stored import read_result
from companion.experiments.timing import (
    PLAIN,
    Decoder,
    Race,
    copy_speed,
    held_out_prompts,
    our_decoder,
    peak_of,
    race,
    transformers_decoder,
)
from companion.metrics import committed_per_round
from companion.provenance import collect, write_json

METHODS = (
    "plain",
    "lookup",
    "draft",
    "transformers",
    "transformers-lookup",
    "transformers-assisted",
)


class Config(BaseModel):
    target: str = "tiny-qwen3"
    draft: str = "tiny-qwen3-draft"
    prompts: int = 6  # per domain
    repeats: int = 3
    threads: int = 1
    device: str = "cpu"
    max_new_tokens: int = 160
    depth: int = 5  # of lookup and draft, in both engines
    context: int = 96  # cached tokens when one forward is timed
    seed: int = 0


class Speed(BaseModel):
    domain: str
    method: str
    tokens_per_second: float  # median over passes
    low: float
    high: float
    tokens_per_round: float | None  # our engine only
    over_plain: float
    over_transformers: float


class Forward(BaseModel):
    tokens: int
    milliseconds: float  # median
    over_one: float


class Floor(BaseModel):
    """What one forward must at least cost: every weight read once, at this machine's own copy speed."""

    weight_mib: float
    copy_gib_per_second: float  # bytes read and written, a buffer as large as the weights
    milliseconds: float
    one_token_over_floor: float
    gflop_per_token: float


class Result(BaseModel):
    config: Config
    speeds: list[Speed]
    forwards: list[Forward]
    floor: Floor
    peak_mib: dict[str, float]
    identical: dict[str, str]  # method -> outputs equal to plain decoding, of all
    provenance: dict[str, Any]


def run(config: Config, output: Path | None = None) -> Result:
    """Time every method, then measure memory; stores the result as JSON when ``output`` is given."""
    if min(config.prompts, config.repeats, config.threads) < 1:
        raise ValueError("prompts, repeats and threads must be at least 1: nothing timed is no result")
    torch.set_num_threads(config.threads)
    target = companion.load_target(config.target, device=config.device)
    prompts = held_out_prompts(target, config.prompts, config.seed)
    found = race({method: _decoder(method, target, config) for method in METHODS}, prompts, config.repeats)
    forwards = _forwards(target, config)
    result = Result(
        config=config,
        speeds=_speeds(found),
        forwards=forwards,
        floor=_floor(target, forwards[0].milliseconds),
        peak_mib={m: peak_of(_decode_once, m, config) for m in tqdm(METHODS, desc="memory", disable=None)},
        identical={method: f"{hits} of {total}" for method, (hits, total) in found.same.items()},
        provenance=collect(
            target=target.source,
            drafter=find_model(config.draft).describe(),
            thinking=False,
            sampling={"temperature": 0.0},
            seeds=[config.seed],
            prompts=[str(ids) for rows in prompts.values() for ids in rows],
            **config.model_dump(include={"repeats", "threads", "max_new_tokens", "depth", "context"}),
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def _speeds(found: Race) -> list[Speed]:
    rates = {key: found.rates(*key) for key in found.seconds}
    median = {key: statistics.median(values) for key, values in rates.items()}
    return [
        Speed(
            domain=domain,
            method=method,
            tokens_per_second=median[domain, method],
            low=min(values),
            high=max(values),
            tokens_per_round=committed_per_round(rounds) if (rounds := found.rounds.get((domain, method))) else None,
            over_plain=median[domain, method] / median[domain, PLAIN],
            over_transformers=median[domain, method] / median[domain, "transformers"],
        )
        for (domain, method), values in rates.items()
    ]


def _decoder(method: str, target: TextTarget, config: Config) -> Decoder:
    """A function from prompt ids to new ids."""
    if method.startswith("transformers"):
        return transformers_decoder(
            config.target,
            config.max_new_tokens,
            config.device,
            assistant=config.draft if method == "transformers-assisted" else None,
            lookup=method == "transformers-lookup",
            depth=config.depth,
        )
    name = {PLAIN: "none", "lookup": "lookup", "draft": config.draft}[method]
    return our_decoder(target, companion.load_drafter(name, target, max_depth=config.depth), config.max_new_tokens)


def _forwards(target: TextTarget, config: Config, repeats: int = 60) -> list[Forward]:
    """Median time of one forward of 1, 2, 4, ... tokens behind a cache of ``context`` tokens."""
    medians = forward_times(target, WIDTHS, context=config.context, repeats=repeats)["median"] / 1e3
    return [Forward(tokens=w, milliseconds=medians[w], over_one=medians[w] / medians[1]) for w in WIDTHS]


def _floor(target: TextTarget, milliseconds: float) -> Floor:
    """Weight bytes over the measured copy speed; each weight also takes one multiply and one add a token."""
    size = target.parameters * target.embedding.element_size()
    speed = copy_speed(size, target.device)
    floor = 1e3 * size / speed
    return Floor(
        weight_mib=size / 2**20,
        copy_gib_per_second=speed / 2**30,
        milliseconds=floor,
        one_token_over_floor=milliseconds / floor,
        gflop_per_token=2 * target.parameters / 1e9,
    )


def _decode_once(method: str, config: Config) -> None:
    """Load the models and decode one prompt of each domain."""
    torch.set_num_threads(config.threads)
    target = companion.load_target(config.target, device=config.device)
    decode = _decoder(method, target, config)
    for rows in held_out_prompts(target, 1, config.seed).values():
        decode(rows[0])


def load(path: Path) -> Result:
    """A stored result. ValueError when the file is none."""
    return read_result(path, Result, "bench decode --output")


def show(result: Result) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("domain", "method", "tokens/s", "range", "tau", "over plain", "over transformers", "peak MiB")
    for s in result.speeds:
        tau = "" if s.tokens_per_round is None else f"{s.tokens_per_round:.2f}"
        spread = f"{s.low:.0f} to {s.high:.0f}"
        peak = f"{result.peak_mib[s.method]:.0f}"
        rate = f"{s.tokens_per_second:.0f}"
        table.add_row(s.domain, s.method, rate, spread, tau, f"{s.over_plain:.2f}", f"{s.over_transformers:.2f}", peak)
    console.print(table)
    costs = Table("tokens in one forward", "ms", "over one token")
    for f in result.forwards:
        costs.add_row(str(f.tokens), f"{f.milliseconds:.2f}", f"{f.over_one:.2f}")
    console.print(costs)
    floor = result.floor
    console.print(
        f"floor: {floor.weight_mib:.1f} MiB of weights at {floor.copy_gib_per_second:.1f} GiB/s is "
        f"{floor.milliseconds:.2f} ms; one token takes {floor.one_token_over_floor:.1f} times that"
    )
    console.print("outputs equal to plain decoding: " + ", ".join(f"{m} {n}" for m, n in result.identical.items()))
