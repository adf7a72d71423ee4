"""The phase hook that a settings file asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from companion.phase.origin import Measured
from companion.phase.settings import Settings, read_settings
from companion.scheduling.capacity import Capacity, CapacityTable
from companion.scheduling.phase_hook import PhaseHook, Planner, Serving


def configured_hook(
    settings: Settings,
    *,
    deterministic: bool,
    serving: Serving,
    planner: Planner = "iid",
    costs: Capacity | CapacityTable | None = None,
) -> PhaseHook | None:
    """None where the file leaves the hook off. ``costs``: a measured capacity in the place of the file's line.

    ValueError for rates that were measured for other models or at another depth; without rates the hook is uncalibrated
    and only shrinks.
    """
    if not settings.enabled:
        return None
    return PhaseHook(
        settings.baseline_proposal_len,
        deterministic=deterministic,
        min_depth=settings.min_proposal_len,
        max_depth=settings.max_proposal_len,
        vocab_size=settings.vocab_size,
        use_entropy_ceiling=settings.use_entropy_ceiling,
        planner=planner,
        costs=costs or settings.cost,
        rates=settings.rates,
        serving=serving,
    )


def load_hook(
    path: Path,
    *,
    serving: Serving,
    vocab_size: int,
    deepest: int,
    deterministic: bool,
    costs: Capacity | CapacityTable | None = None,
) -> PhaseHook:
    """The hook of a settings file, for a drafter that goes ``deepest`` tokens deep. Models whose revisions are those of
    the file's rates may be called otherwise there.

    ValueError for a broken file, one that leaves the hook off, another vocabulary, a depth that the drafter does not
    reach, and rates of other models.
    """
    settings = read_settings(path)
    if settings.vocab_size != vocab_size:
        raise ValueError(
            f"{path} is for a vocabulary of {settings.vocab_size} tokens, and {serving.target} has {vocab_size}; set "
            "vocab_size"
        )
    if settings.max_proposal_len > deepest:
        raise ValueError(
            f"{path} goes {settings.max_proposal_len} tokens deep, and {serving.drafter} drafts at most {deepest}; set "
            "max_proposal_len"
        )
    if settings.rates is not None:
        serving = _renamed(serving, settings.rates.origin)
    hook = configured_hook(settings, deterministic=deterministic, serving=serving, costs=costs)
    if hook is None:
        raise ValueError(f"{path} leaves the hook off (enabled = false); set it to true, or leave the file out")
    return hook


def _renamed(serving: Serving, run: Measured) -> Serving:
    """Weights are known by their hash; what a folder or a run calls them is a label."""
    if serving.target_revision == run.target_revision:
        serving = replace(serving, target=run.target)
    if serving.drafter_revision == run.drafter_revision:
        serving = replace(serving, drafter=run.drafter)
    return serving
