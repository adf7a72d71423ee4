"""Every trained drafter at every position of the same texts: one recording a drafter and temperature.

The texts are the target's own responses to held-out prompts, decoded plainly once, the same for all drafters. The first
responses of each domain and mode are taken until they have enough anchors.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import companion
from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget
from companion.experiments import drafter_rounds
from companion.experiments.anchor_blocks import draft_everywhere
from companion.experiments.anchor_recording import Anchored, Recording, provenance_of
from companion.experiments.drafter_rounds import DrafterRun, check_comparable, check_same_run, finished_runs
from companion.parallel import ordered_map
from companion.protocols import Sampling
from companion.provenance import collect
from companion.training.corpus import DOMAINS, MODES, Domain, Mode, held_out_samples

Text = tuple[str, Domain, Mode, GenerationResult]  # prompt id, as in the Rounds of `drafter_rounds`


class Config(drafter_rounds.Config):
    modes: tuple[Mode, ...] = MODES
    anchors: int = 1200  # of each domain and mode; `prompts` is the most that may be taken for them
    every: int = 1  # 1: every token of a response is an anchor
    top_k: int | None = None  # kept by target and drafter at temperatures above 0
    max_batch: int = 12

    def sampling(self, temperature: float) -> Sampling:
        """What texts are decoded and blocks are drafted with."""
        return Sampling(temperature, top_k=self.top_k if temperature else None)


def run(models: Path, output: Path, config: Config | None = None, workers: int = 1) -> list[Path]:
    """Record what ``output`` does not hold yet, in ``workers`` processes; returns the files of all drafters.

    A killed run loses the files that were being made, and the next one makes them, with the same numbers. ValueError
    for a stored file of other weights or settings.
    """
    config = config or Config()
    if config.prompts < 2 or config.anchors < 1:
        raise ValueError(
            f"prompts must be at least 2 for an interval over responses, and anchors at least 1; got {config.prompts} "
            f"and {config.anchors}"
        )
    work = [(r, t) for t, r in product(config.temperatures, finished_runs(models))]
    todo = [item for item in work if not _stored(config, output, *item)]
    bar = tqdm(total=len(work), initial=len(work) - len(todo), desc="anchors", unit="file", disable=None)
    for line in ordered_map(partial(_record, config, output), todo, workers):
        bar.set_postfix_str(line)
        bar.update()
    bar.close()
    return [_path(config, output, *item) for item in work]


def load(folder: Path) -> list[Recording]:
    """Every recording of ``folder``; ValueError when there is none, or when they cannot be compared."""
    recordings = [Recording.load(path) for path in sorted(folder.glob("*.npz"))]
    if not recordings:
        raise ValueError(f"{folder} holds no recordings of drafters; `companion experiment anchors` writes them")
    for temperature in {_temperature(r) for r in recordings}:
        same = [r for r in recordings if _temperature(r) == temperature]
        check_comparable(folder, [r.provenance for r in same])
        if any([a.tokens for a in r.responses] != [a.tokens for a in same[0].responses] for r in same):
            raise ValueError(f"the recordings in {folder} are along different texts; drafters are compared on the same")
    return recordings


def _temperature(recording: Recording) -> float:
    return float(recording.provenance["sampling"]["temperature"])


def _path(config: Config, output: Path, drafter: DrafterRun, temperature: float) -> Path:
    top_k = config.sampling(temperature).top_k
    kept = f"-k{top_k}" if top_k else ""
    return output / f"{drafter.label}-T{temperature:g}{kept}.npz"


def _stored(config: Config, output: Path, drafter: DrafterRun, temperature: float) -> bool:
    path = _path(config, output, drafter, temperature)
    if not path.exists():
        return False
    check_same_run(path, provenance_of(path), _identity(config, drafter, temperature))
    return True


def _identity(config: Config, drafter: DrafterRun, temperature: float) -> dict[str, Any]:
    identity = drafter_rounds.identity(config, drafter, temperature)
    identity["settings"] |= {"anchors": config.anchors, "every": config.every}
    if top_k := config.sampling(temperature).top_k:
        identity["sampling"] |= {"top_k": top_k}
    if config.modes != MODES:
        identity["thinking"] = config.modes == ("think",)
    return identity


def _record(config: Config, output: Path, item: tuple[DrafterRun, float]) -> str:
    """Draft along all texts and store one file; runs in a worker process, or in this one."""
    drafter, temperature = item
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker process, so that sums are taken in the same order
    try:
        recording = _recording(config, drafter, temperature)
    finally:
        torch.set_num_threads(threads)
    recording.save(_path(config, output, drafter, temperature))
    first = np.mean(np.concatenate([r.blocks.overlap[:, 0] for r in recording.responses]))
    return f"{drafter.label}, T {temperature:g}: {recording.anchors} anchors, position 1 {first:.2f}"


def _recording(config: Config, drafter: DrafterRun, temperature: float) -> Recording:
    target, sampling = _target(config.target), config.sampling(temperature)
    model = companion.load_drafter(str(drafter.folder), target)
    assert model is not None
    taken = _texts(config.model_dump_json(), temperature)
    responses = []
    for start in range(0, len(taken), config.max_batch):
        part = taken[start : start + config.max_batch]
        blocks = draft_everywhere(
            target, model, [result for *_, result in part], sampling, every=config.every, seed=config.seed
        )
        for (prompt_id, domain, mode, result), found in zip(part, blocks, strict=True):
            if found is not None:
                length, ended = len(result.prompt_tokens), result.finish_reason
                responses.append(Anchored(prompt_id, domain, mode, length, result.tokens, result.phases, ended, found))
    prompts = [str(result.prompt_tokens) for *_, result in taken]
    provenance = collect(prompts=prompts) | _identity(config, drafter, temperature) | {"depth": model.max_depth}
    return Recording(responses, model.max_depth, config.every, tuple(sorted(target.eos_token_ids)), provenance)


@cache
def _target(name: str) -> TextTarget:
    return companion.load_target(name)


@cache
def _texts(settings: str, temperature: float) -> list[Text]:
    """The responses that all drafters walk along, made once a process."""
    config, found = Config.model_validate_json(settings), []
    for domain, mode in product(DOMAINS, config.modes):
        samples, anchors, done = held_out_samples(domain, mode, config.prompts, seed=config.seed), 0, 0
        while done < config.prompts and anchors < config.anchors:
            results = companion.generate(
                _target(config.target),
                None,
                [sample.prompt for sample in samples[done : done + config.max_batch]],
                temperature=temperature,
                top_k=config.sampling(temperature).top_k,
                thinking=mode == "think",
                max_new_tokens=config.max_new_tokens,
                seed=config.seed,
                max_batch=config.max_batch,
            )
            for result in results:
                if anchors < config.anchors:
                    found.append((f"{domain}/{mode}/{done}", domain, mode, result))
                    anchors += (len(result.tokens) + config.every - 2) // config.every
                    done += 1
    return found
