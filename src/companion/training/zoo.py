"""Every drafter that the book compares: its recipe by name, and how many seeds of it are trained.

DFlash, DSpark, its RNN variant and Eagle3 learn from the same non-thinking traces with the same steps, and so do
Medusa-style heads without and with a Markov head; three more of DSpark differ in the share of thinking traces alone.
The recipes of the ablations (`companion.training.ablations`) are known by their names and by their groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from companion.parallel import ordered_map

from .ablations import Ablations
from .corpus import DOMAINS, SHARES
from .drafter import DrafterConfig, dflash_config, prepare, train_drafter
from .group import under_torchrun
from .regenerate import Regeneration

_DSPARK = DrafterConfig()


def _thinking(share: float) -> DrafterConfig:
    return replace(_DSPARK, traces=replace(_DSPARK.traces, think_share=share))


RECIPES: dict[str, DrafterConfig] = {
    "dflash": dflash_config(),
    "dspark": _DSPARK,
    "dspark-rnn": replace(_DSPARK, head="rnn"),
    "eagle3": replace(_DSPARK, kind="eagle3", layers=1),
    "medusa": replace(_DSPARK, kind="medusa", layers=1, rank=0),
    "medusa-markov": replace(_DSPARK, kind="medusa", layers=1),
    "dspark-think-5": _thinking(0.05),
    "dspark-think-50": _thinking(0.5),
    "dspark-think-100": _thinking(1.0),
}
ABLATIONS = Ablations(_DSPARK, RECIPES["dflash"])
KNOWN = {**ABLATIONS.recipes, **RECIPES}
SEEDS = {"dflash": 5, "dspark": 5}
SEEDS_OF_OTHERS = 3


def runs(names: list[str] | None = None, seeds: int | None = None) -> list[tuple[str, DrafterConfig]]:
    """(run name, recipe) of every seed, seed by seed, so that an unfinished zoo has some of each kind.

    ``names`` are recipes or groups of ablations; by default the drafters of the book, without ablations. ValueError for
    an unknown name.
    """
    wanted: dict[str, None] = {}
    for name in names or RECIPES:
        members = ABLATIONS.members(name) if name in ABLATIONS.groups else [name]
        if unknown := set(members) - KNOWN.keys():
            raise ValueError(
                f"there is no drafter recipe {min(unknown)!r}; there are {', '.join(KNOWN)}, and the groups "
                f"{', '.join(ABLATIONS.groups)}"
            )
        wanted |= dict.fromkeys(members)
    chosen = [(n, seeds or SEEDS.get(n, SEEDS_OF_OTHERS)) for n in wanted]
    most = max(count for _, count in chosen)
    return [(f"{n}-{s}", replace(KNOWN[n], seed=s)) for s in range(most) for n, count in chosen if s < count]


def train_zoo(
    folder: Path,
    names: list[str] | None = None,
    seeds: int | None = None,
    workers: int = 2,
    data: Path | None = None,
    device: str = "cpu",
) -> list[Path]:
    """Train the runs that are not finished, ``workers`` at a time; model folders in the order of `runs`.

    Runs with the same traces share a folder in ``data`` (default: ``folder``). Resumable; what is finished is not
    trained again. ValueError under torchrun, which shares out one run.
    """
    if under_torchrun():
        raise ValueError("these are many runs of one process each; torchrun is for `companion train drafter`")
    todo, shared = runs(names, seeds), data or folder
    for config in {c.traces: c for _, c in todo}.values():
        prepare(config, _data(shared, config.traces), workers, device=device)
    return list(ordered_map(partial(_train, folder, shared, device), todo, workers))


def _train(folder: Path, data: Path, device: str, run: tuple[str, DrafterConfig]) -> Path:
    name, config = run
    result = train_drafter(config, folder / name, _data(data, config.traces), workers=1, device=device)
    if not result.finished:
        raise KeyboardInterrupt
    return folder / name / "model"


def _data(folder: Path, traces: Regeneration) -> Path:
    """By what the traces are of: the share of thinking, and the domains where they are not the usual ones."""
    name = f"data-{traces.think_share:g}"
    if traces.domain_shares != tuple(SHARES[domain] for domain in DOMAINS):
        name += "-" + "-".join(f"{share:g}" for share in traces.domain_shares)
    return folder / name
