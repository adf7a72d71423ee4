"""The phase hook that a settings file asks for."""

from __future__ import annotations

from companion.phase.settings import Settings
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
