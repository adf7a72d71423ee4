"""Every drafter that the book compares: its recipe by name, and how many seeds of it are trained.

DFlash, DSpark, its RNN variant and Eagle3 learn from the same non-thinking traces with the same steps; three more of
DSpark differ in the share of thinking traces alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from companion.parallel import ordered_map

from .drafter import DrafterConfig, dflash_config, prepare, train_drafter

_DSPARK = DrafterConfig()


def _thinking(share: float) -> DrafterConfig:
    return replace(_DSPARK, traces=replace(_DSPARK.traces, think_share=share))


RECIPES: dict[str, DrafterConfig] = {
    "dflash": dflash_config(),
    "dspark": _DSPARK,
    "dspark-rnn": replace(_DSPARK, head="rnn"),
    "eagle3": replace(_DSPARK, kind="eagle3", layers=1),
    "dspark-think-5": _thinking(0.05),
    "dspark-think-50": _thinking(0.5),
    "dspark-think-100": _thinking(1.0),
}
SEEDS = {"dflash": 5, "dspark": 5}
SEEDS_OF_OTHERS = 3


def runs(names: list[str] | None = None, seeds: int | None = None) -> list[tuple[str, DrafterConfig]]:
    """(run name, recipe) of every seed, seed by seed, so that an unfinished zoo has some of each kind.

    ValueError for an unknown name.
    """
    unknown = set(names or ()) - RECIPES.keys()
    if unknown:
        raise ValueError(f"there is no drafter recipe {min(unknown)!r}; there are {', '.join(RECIPES)}")
    chosen = [(n, seeds or SEEDS.get(n, SEEDS_OF_OTHERS)) for n in names or RECIPES]
    most = max(count for _, count in chosen)
    return [(f"{n}-{s}", replace(RECIPES[n], seed=s)) for s in range(most) for n, count in chosen if s < count]


def train_zoo(folder: Path, names: list[str] | None = None, seeds: int | None = None, workers: int = 2) -> list[Path]:
    """Train the runs that are not finished, ``workers`` at a time; model folders in the order of `runs`.

    Runs with the same traces share ``folder/data-SHARE``. Resumable; what is finished is not trained again.
    """
    todo = runs(names, seeds)
    for config in {c.traces: c for _, c in todo}.values():
        prepare(config, _data(folder, config), workers)
    return list(ordered_map(partial(_train, folder), todo, workers))


def _train(folder: Path, run: tuple[str, DrafterConfig]) -> Path:
    name, config = run
    result = train_drafter(config, folder / name, _data(folder, config), workers=1)
    if not result.finished:
        raise KeyboardInterrupt
    return folder / name / "model"


def _data(folder: Path, config: DrafterConfig) -> Path:
    return folder / f"data-{config.traces.think_share:g}"
