"""What Phase 1 runs: drafters by samplings by seeds, each on all prompts with thinking on and off."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from companion.engine.load import DRAFTERS, find_model
from companion.experiments.drafter_rounds import finished_runs
from companion.experiments.phase_gap.prompts import HELD_OUT, PromptSet
from companion.protocols import Sampling
from companion.training.corpus import MODES, Mode

RESPONSES, STEPS = 100, 10_000  # what the protocol asks for: of each domain and condition, of each arm and domain


class Config(BaseModel):
    target: str = "tiny-qwen3"
    device: str = "cpu"
    per_domain: int = 100  # prompts, each, asked with thinking on and off
    prompt_seed: int = 11  # of the held-out ones: not those on which anything else of the book was fitted
    sources: tuple[str, ...] = (HELD_OUT,)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    top_k: int | None = None  # above temperature 0
    top_p: float = 1.0
    seeds: tuple[int, ...] = (0,)  # of the sampling; one is enough at temperature 0
    max_new_tokens: int = 600
    max_batch: int = 30
    confidence: Literal["all", "first", "none"] = "all"  # of which training seeds of a drafter they are kept
    keep_text: bool = False

    def quick(self) -> Config:
        """Few prompts: enough to see that everything works, not to measure."""
        return self.model_copy(update={"per_domain": min(self.per_domain, 6), "max_batch": min(self.max_batch, 18)})


class Drafter(BaseModel, frozen=True):
    """A drafter to measure: how it is called, the seed of its training, and what `load_drafter` is given."""

    name: str
    seed: int
    model: str
    think_share: float | None  # of its training traces, by its recipe; None: its folder does not say
    family: str | None  # drafters that differ by that share, and the seed, alone

    @property
    def label(self) -> str:
        return f"{self.name}-{self.seed}"


class Arm(BaseModel, frozen=True):
    """One recording: all prompts, thinking on and off, by one drafter at one sampling and seed."""

    drafter: Drafter
    temperature: float
    top_k: int | None
    top_p: float
    seed: int

    @property
    def label(self) -> str:
        filters = "" if self.top_k is None else f"-k{self.top_k}"
        filters += "" if self.top_p == 1 else f"-p{self.top_p:g}"
        return f"{self.drafter.label}-T{self.temperature:g}{filters}-s{self.seed}"

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p)


def find_drafters(names: Sequence[str], zoo: Path | None = None) -> list[Drafter]:
    """The drafters called ``names`` (embedded, folders, hub ids) and every finished one in ``zoo``/NAME-SEED/model.

    A folder NAME-SEED/model, as the training writes it, is one seed of the drafter NAME. ValueError for none, for an
    unknown name and for two of one name and seed.
    """
    found = [_drafter(name) for name in names]
    if zoo is not None:
        found += [
            Drafter(name=r.name, seed=r.seed, model=str(r.folder), **_training(r.folder))
            for r in finished_runs(zoo)
            if r.folder is not None
        ]
    if not found:
        raise ValueError(f"there is no drafter to measure: name one of {', '.join(DRAFTERS)}, a folder, or a hub id")
    labels = [d.label for d in found]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ValueError(f"the drafter {twice} was given twice, and would count as two; name it once")
    return found


def _drafter(name: str) -> Drafter:
    if name in ("none", "lookup", "draft"):
        raise ValueError(f"Phase 1 is about trained drafters, so {name!r} cannot take part; name one such as dspark")
    folder = Path(name)
    if name not in DRAFTERS and folder.is_dir():
        recipe, seed = folder.parent.name.rpartition("-")[::2]
        if folder.name == "model" and recipe and seed.isdigit():
            return Drafter(name=recipe, seed=int(seed), model=name, **_training(folder))
        return Drafter(name=folder.resolve().name, seed=0, model=name, **_training(folder))
    training = _training(find_model(name).path) if name in DRAFTERS else _training(None)
    return Drafter(name=name.rpartition("/")[2], seed=0, model=name, **training)


def _training(folder: Path | None) -> dict[str, Any]:
    """Share of thinking traces and family of a drafter, by the recipe beside its weights; None where there is none."""
    unknown = {"think_share": None, "family": None}
    if folder is None:
        return unknown
    try:
        return training_of(json.loads((folder / "recipe.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return unknown


def training_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Share of thinking traces, and a name for all else that the recipe says, its seed left out."""
    rest = {k: v for k, v in recipe.items() if k not in ("seed", "traces")}
    rest["traces"] = {k: v for k, v in recipe["traces"].items() if k != "think_share"}
    family = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:12]
    return {"think_share": float(recipe["traces"]["think_share"]), "family": family}


def check(config: Config) -> None:
    """ValueError for a design that measures nothing, or not what it says."""
    if not config.temperatures or not config.seeds:
        raise ValueError("give at least one temperature and one seed")
    for what, values in (("temperature", config.temperatures), ("seed", config.seeds)):
        if len(set(values)) < len(values):
            raise ValueError(f"a {what} was given twice, and would count as two; name each once, got {list(values)}")
    if config.max_batch < 1 or config.max_new_tokens < 2:
        raise ValueError(
            f"max_batch must be at least 1 and max_new_tokens at least 2, got {config.max_batch} and "
            f"{config.max_new_tokens}"
        )
    for temperature in config.temperatures:
        Sampling(temperature, *(() if temperature == 0 else (config.top_k, config.top_p)))
    if all(t == 0 for t in config.temperatures) and (config.top_k or config.top_p != 1):
        raise ValueError("top_k and top_p have no effect at temperature 0; drop them, or add a temperature above 0")


def arms(config: Config, drafters: Sequence[Drafter]) -> list[Arm]:
    """All recordings, one drafter after another; at temperature 0 the seeds draw nothing, so that one is enough."""
    return [
        Arm(
            drafter=drafter,
            temperature=temperature,
            top_k=config.top_k or None if temperature else None,
            top_p=config.top_p if temperature else 1.0,
            seed=seed,
        )
        for drafter in drafters
        for temperature in config.temperatures
        for seed in (config.seeds if temperature else config.seeds[:1])
    ]


class Chunk(BaseModel, frozen=True):
    """Prompts that are decoded together: what a killed run does again at most."""

    domain: str
    mode: Mode
    numbers: tuple[int, ...]  # of the prompts, within their domain

    def prompt_id(self, number: int) -> str:
        return f"{self.domain}/{self.mode}/{number}"


def chunks(prompts: PromptSet, max_batch: int) -> Iterator[Chunk]:
    """Four full batches a chunk at most, so that few places of the batch are empty at its end; modes in turns."""
    size = 4 * max_batch
    for domain, count in prompts.counts.items():
        for start in range(0, count, size):
            for mode in MODES:
                yield Chunk(domain=domain, mode=mode, numbers=tuple(range(start, min(start + size, count))))
