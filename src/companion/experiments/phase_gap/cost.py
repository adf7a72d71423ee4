"""What a recording will cost, before it runs: tokens, hours and disk.

Known beforehand are the prompts' lengths and the cap. What a response takes is known from responses that were recorded
already, in the same folder: the expectation scales them up. Without any there are bounds alone: tokens at the cap, and
the time that reading the weights takes at this device's bandwidth, once a step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from companion.compact import load_provenance
from companion.engine.load import find_model
from companion.experiments.phase_gap.design import Arm, Config
from companion.experiments.phase_gap.prompts import PromptSet
from companion.experiments.phase_gap.stored import finished
from companion.rounds import Round
from companion.training.corpus import MODES

JSON_NUMBER = 20  # bytes that a statistic of one row takes in a rounds file
FIRST_DEPTH = 7  # of a drafter whose config.json names no block size


class Cost(BaseModel):
    """Of a whole design; ``expected_*`` None where nothing was recorded yet. Bounds are at the cap of new tokens."""

    recordings: int
    responses: int
    responses_recorded: int
    prompt_tokens: int
    new_tokens_at_most: int
    expected_new_tokens: int | None
    expected_hours: float | None  # of what is left, on this machine
    floor_hours_low: float  # to read the weights once a step, every draft accepted
    floor_hours_high: float  # none accepted
    bandwidth_gb_per_second: float
    disk_mb_while_running: float  # at most: the rows of the recording under way
    disk_mb: float  # at most: what stays


def estimate(config: Config, prompts: PromptSet, planned: Sequence[Arm], output: Path, *, rows: bool = False) -> Cost:
    """Of recording ``planned`` into ``output``. Nothing is decoded; a hub model's files are fetched."""
    lengths = _prompt_tokens(config.target, prompts)
    each = len(MODES) * len(prompts.prompts)
    cap = each * config.max_new_tokens
    known = _recorded(output)
    there = int(sum(cell["responses"] for cell in known.values()))
    per_mode = {mode: known[mode] for mode in MODES if known.get(mode, {}).get("responses")}
    expected_tokens = hours = None
    if len(per_mode) == len(MODES):
        half = len(planned) * len(prompts.prompts)
        expected_tokens = round(sum(half * c["tokens"] / c["responses"] for c in per_mode.values()))
        left = {mode: max(0.0, half - c["responses"]) for mode, c in per_mode.items()}
        hours = sum(left[mode] * c["seconds"] / c["responses"] for mode, c in per_mode.items()) / 3600
    bandwidth = _copy_bandwidth(config.device)
    low, high = (
        sum(_floor_seconds(config, a, cap, bandwidth, accepted) for a in planned) / 3600 for accepted in (1, 0)
    )
    depth = max((_depth(arm) for arm in planned), default=FIRST_DEPTH)
    row = _row_bytes(depth, everything=rows)
    stays = len(planned) * cap * (row if rows else 2 + (2 if config.confidence != "none" else 0))
    stays += len(planned) * cap * 6 if config.keep_text else 0  # bytes of a token's text, about
    return Cost(
        recordings=len(planned),
        responses=len(planned) * each,
        responses_recorded=there,
        prompt_tokens=len(planned) * lengths,
        new_tokens_at_most=len(planned) * cap,
        expected_new_tokens=expected_tokens,
        expected_hours=hours,
        floor_hours_low=low,
        floor_hours_high=high,
        bandwidth_gb_per_second=round(bandwidth / 1e9, 1),
        disk_mb_while_running=round(cap * row / 1e6, 1),
        disk_mb=round(stays / 1e6, 1),
    )


def _prompt_tokens(target: str, prompts: PromptSet) -> int:
    """Of all prompts, with thinking on and off, in the target's own template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(find_model(target).path))
    total = 0
    for prompt in prompts.prompts:
        for mode in MODES:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt.text}],
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=mode == "think",
            )
            total += len(tokenizer.encode(text, add_special_tokens=False))
    return total


def _recorded(output: Path) -> dict[str, dict[str, float]]:
    """Seconds, tokens and responses of each mode in everything that ``output`` holds, finished or not."""
    total: dict[str, dict[str, float]] = {mode: {"seconds": 0.0, "tokens": 0.0, "responses": 0.0} for mode in MODES}
    cells: list[Mapping[str, Mapping[str, float]]] = []
    stems = set()
    for path in finished(output):
        cells.append(load_provenance(path)["seconds"])
        stems.add(path.stem)
    for path in sorted(output.glob("*.jsonl")):
        if path.stem not in stems and not path.name.endswith(".text.jsonl"):
            cells.append(_of_rows(_whole_lines(path)))
    for cell in cells:
        for mode in MODES:
            for name in total[mode]:
                total[mode][name] += cell[mode][name]
    return total


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number and line.endswith(b"\n"):
                yield json.loads(line)


def _of_rows(rows: Iterator[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {mode: {"seconds": 0.0, "tokens": 0.0, "responses": 0.0} for mode in MODES}
    for row in rows:
        cell = found[row["mode"]]
        cell["seconds"] += (row["draft_seconds"] + row["verify_seconds"]) / row["batch"]
        cell["tokens"] += len(row["phases"])
        cell["responses"] += row["ended"] is not None
    return found


def _depth(arm: Arm) -> int:
    return int(find_model(arm.drafter.model).config().get("block_size") or FIRST_DEPTH)


def _floor_seconds(config: Config, arm: Arm, tokens: int, bandwidth: float, accepted: float) -> float:
    """To read the target's and the drafter's weights once a step of a full batch."""
    wide = 2 if config.device.startswith("cuda") else 4  # bytes of a weight as it is held
    files = [f for name in (config.target, arm.drafter.model) for f in find_model(name).weight_files()]
    held = sum(f.stat().st_size for f in files) * wide / 2  # files hold two bytes a weight
    steps = tokens / config.max_batch / (1 + accepted * _depth(arm))
    return steps * held / bandwidth


def _copy_bandwidth(device: str, megabytes: int = 128) -> float:
    """Bytes a second of a copy, read and written, best of five."""
    place = torch.device(device)
    source = torch.ones(megabytes * 2**18, device=place)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        source.clone()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        best = min(best, time.perf_counter() - started)
    return 2 * source.numel() * 4 / best


def _row_bytes(depth: int, *, everything: bool) -> int:
    """Of one round in a rounds file, one token committed."""
    row = Round(0, 0, 10_000, depth, depth, 0, True, True, [], ["think"], confidence=[])
    row.prompt_id, row.domain, row.mode = "math500/think/100", "math500", "think"
    numbers = depth + (5 * (depth + 1) if everything else 0)
    return len(json.dumps(asdict(row))) + 2 * JSON_NUMBER + numbers * JSON_NUMBER


def show(cost: Cost) -> None:
    """Print it as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("cost", "", title="dry run: nothing was decoded")
    table.add_row("recordings", f"{cost.recordings}")
    table.add_row("responses", f"{cost.responses:,} ({cost.responses_recorded:,} recorded already)")
    table.add_row("prompt tokens", f"{cost.prompt_tokens:,}")
    table.add_row("new tokens, at most", f"{cost.new_tokens_at_most:,}")
    if cost.expected_new_tokens is not None:
        table.add_row("new tokens, expected", f"{cost.expected_new_tokens:,}")
        table.add_row("hours left, expected", f"{cost.expected_hours:.2f}")
    else:
        table.add_row("hours, expected", "unknown: record a few minutes, stop with Ctrl-C, and ask again")
    floor = f"{cost.floor_hours_low:.3g} (all drafts accepted) to {cost.floor_hours_high:.3g} (none)"
    table.add_row(f"hours, reading weights at {cost.bandwidth_gb_per_second:g} GB/s and the cap", floor)
    table.add_row("disk while running, at most", f"{cost.disk_mb_while_running:,.0f} MB")
    table.add_row("disk, at most", f"{cost.disk_mb:,.0f} MB")
    Console().print(table)
