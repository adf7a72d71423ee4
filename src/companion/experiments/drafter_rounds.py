"""The Rounds of every trained drafter on the same held-out prompts: what all comparisons of drafters are computed from.

One file for each drafter and temperature, written when its last response is done. Every drafter drafts its whole block
in the real decoding loop, and only T decides how: greedily at 0, sampled above.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.compact import load_compact, load_provenance, save_compact
from companion.engine.generate import GenerationResult
from companion.engine.load import ModelFolder, TextTarget
from companion.experiments.decode_survey import all_rounds, survey
from companion.metrics import committed_per_round
from companion.parallel import ordered_map
from companion.provenance import collect
from companion.rounds import Rounds, comparable

PLAIN = "plain"  # the target without a drafter: what greedy outputs are compared with


class Config(BaseModel):
    target: str = "tiny-qwen3"
    prompts: int = 60  # per domain and mode
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = 600
    max_batch: int = 30
    seed: int = 0
    confidence: bool = True  # keep c_k of every slot: three quarters of a file's size


class DrafterRun(BaseModel, frozen=True):
    """A trained drafter: its recipe's name, the seed of its training, and its folder (None: plain decoding)."""

    name: str
    seed: int
    folder: Path | None

    @property
    def label(self) -> str:
        return PLAIN if self.folder is None else f"{self.name}-{self.seed}"


def finished_runs(models: Path) -> list[DrafterRun]:
    """The drafters in ``models``/NAME-SEED/model that are trained to their end, by name and seed.

    ValueError when there is none.
    """
    found = []
    for recipe in sorted(models.glob("*-*/model/recipe.json")):  # written last
        name, _, seed = recipe.parents[1].name.rpartition("-")
        if seed.isdigit():
            found.append(DrafterRun(name=name, seed=int(seed), folder=recipe.parent))
    if not found:
        raise ValueError(f"no finished drafter in {models}: expected NAME-SEED/model there; `companion train drafters`")
    return found


def run(models: Path, output: Path, config: Config | None = None, workers: int = 1) -> list[Path]:
    """Decode what ``output`` does not hold yet, in ``workers`` processes; returns the files of all runs.

    A killed run loses the files that were being made, and the next one makes them, with the same numbers. ValueError
    for a stored file of other weights or settings.
    """
    config = config or Config()
    if config.prompts < 2:
        raise ValueError(f"prompts must be at least 2 for an interval over responses, got {config.prompts}")
    plain = DrafterRun(name=PLAIN, seed=0, folder=None)
    work = [(plain, 0.0), *product(finished_runs(models), config.temperatures)]
    todo = [(r, t) for r, t in work if not _stored(config, output, r, t)]
    bar = tqdm(total=len(work), initial=len(work) - len(todo), desc="drafter rounds", unit="file", disable=None)
    for line in ordered_map(partial(_measure, config, output), todo, workers):
        bar.set_postfix_str(line)
        bar.update()
    bar.close()
    return [_path(output, r, t) for r, t in work]


def load(folder: Path) -> list[Rounds]:
    """Every stored table of ``folder``; ValueError when there is none, or when they cannot be compared."""
    tables = [load_compact(path) for path in sorted(folder.glob("*.npz"))]
    if not tables:
        raise ValueError(f"{folder} holds no rounds of drafters; `companion experiment drafter-rounds` writes them")
    check_comparable(folder, [table.provenance or {} for table in tables])
    return tables


def check_comparable(folder: Path, known: Sequence[dict[str, Any]]) -> None:
    """ValueError where the provenances of ``folder``'s files are not of one target, one setting and one prompt set."""
    for what, of in (("target", "weights_sha256"), ("settings", "max_new_tokens"), ("settings", "prompts")):
        if any(p[what][of] != known[0][what][of] for p in known):
            raise ValueError(f"the tables in {folder} differ in {what} ({of}); drafters are compared on one alone")
    if any(p["prompt_set"] != known[0]["prompt_set"] for p in known):
        raise ValueError(f"the tables in {folder} are of different prompts; drafters are compared on the same ones")
    _check_replicates(known)


def _check_replicates(known: Iterable[dict[str, Any]]) -> None:
    """ValueError where two runs at one temperature have the same weights: one seed must not count as two."""
    seen: dict[str, str] = {}
    for p in (p for p in known if p["drafter"]):
        key = json.dumps([p["sampling"], p["drafter"]["weights_sha256"]])
        if key in seen:
            raise ValueError(f"{p['drafter']['name']} and {seen[key]} have the same weights; keep one of them")
        seen[key] = p["drafter"]["name"]


def _path(output: Path, drafter: DrafterRun, temperature: float) -> Path:
    return output / f"{drafter.label}-T{temperature:g}.npz"


def _stored(config: Config, output: Path, drafter: DrafterRun, temperature: float) -> bool:
    """Whether the file is there; ValueError when it was measured on something else."""
    path = _path(output, drafter, temperature)
    if not path.exists():
        return False
    check_same_run(path, load_provenance(path), identity(config, drafter, temperature))
    return True


def check_same_run(path: Path, stored: dict[str, Any], ours: dict[str, Any]) -> None:
    """ValueError when ``path``, whose provenance is ``stored``, was measured on something else than ``ours`` says."""
    there, ours = comparable(stored), json.loads(json.dumps(ours))
    changed = [key for key, value in ours.items() if there.get(key) != value]
    if changed:
        raise ValueError(f"{path} is of another run ({', '.join(changed)} differ); remove it, or give another folder")


def identity(config: Config, drafter: DrafterRun, temperature: float) -> dict[str, Any]:
    """The part of the provenance that is known before anything is decoded."""
    settings = {
        "drafter_name": drafter.name,
        "drafter_seed": drafter.seed,
        "prompts": config.prompts,
        "max_new_tokens": config.max_new_tokens,
    }
    model = None
    if drafter.folder is not None:
        model = ModelFolder(drafter.folder, drafter.label).describe()
        settings["recipe"] = json.loads((drafter.folder / "recipe.json").read_text(encoding="utf-8"))
    return {
        "target": _load(config.target).source,
        "drafter": model,
        "thinking": "both",
        "sampling": {"temperature": temperature},
        "seeds": [config.seed],
        "settings": settings,
    }


def _measure(config: Config, output: Path, item: tuple[DrafterRun, float]) -> str:
    """Decode and store one file; runs in a worker process, or in this one."""
    drafter, temperature = item
    target = _load(config.target)
    model = None if drafter.folder is None else companion.load_drafter(str(drafter.folder), target)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker process, so that sums are taken in the same order
    try:
        results = survey(
            target,
            model,
            prompts=config.prompts,
            temperature=temperature,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
            max_batch=config.max_batch,
        )
    finally:
        torch.set_num_threads(threads)
    provenance = collect(prompts=[str(r.prompt_tokens) for r in results]) | identity(config, drafter, temperature)
    provenance |= {
        "depth": model.max_depth if model else 0,
        "outputs_crc32": [_digest(r) for r in results],
        "seconds": _seconds(results) | {"max_batch": config.max_batch},
    }
    rows = all_rounds(results)
    rounds = Rounds(rows if config.confidence else (replace(r, confidence=None) for r in rows), provenance)
    save_compact(rounds, _path(output, drafter, temperature))
    return f"{drafter.label}, T {temperature:g}: tau {committed_per_round(rounds):.2f}"


def _digest(result: GenerationResult) -> int:
    """Of a response's token ids: equal outputs have equal digests."""
    return zlib.crc32(json.dumps(result.tokens).encode())


def _seconds(results: Iterable[GenerationResult]) -> dict[str, Any]:
    """Drafting and verifying seconds of each domain and mode. Batched, beside other processes: shares, not speed."""
    total: dict[str, dict[str, float]] = {}
    for row in (row for result in results for row in result.rounds):
        cell = total.setdefault(f"{row.domain}/{row.mode}", {"draft": 0.0, "verify": 0.0})
        cell["draft"] += row.draft_seconds / row.batch
        cell["verify"] += row.verify_seconds / row.batch
    return {name: {stage: round(value, 3) for stage, value in cell.items()} for name, cell in total.items()}


@cache
def _load(name: str) -> TextTarget:
    return companion.load_target(name)
