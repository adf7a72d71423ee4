"""A measured capacity as a planner's cost of a round, by depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from companion.scheduling.capacity import Capacity


@dataclass(frozen=True, slots=True)
class StepCycle:
    """Microseconds of a step in which each of ``requests`` drafts and verifies ``depth`` tokens, by ``capacity``.

    Depth 0 is a step that only decodes: no drafting. For one request that is the round's own time; with more, every
    request is planned as if all drafted alike, since they share the step.
    """

    capacity: Capacity
    requests: int = 1

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError(f"a step serves at least 1 request, got {self.requests}")

    def cycle_us(self, depth: ArrayLike) -> NDArray[np.float64]:  # [...] -> [...]
        return np.asarray(1e6 * self.capacity.seconds_by_depth(depth, self.requests))
