"""What a capacity curve without the context axis gets wrong: that of one context, used at another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
from pydantic import BaseModel

from companion.experiments.capacity_tables import Cell, Table, step_errors
from companion.scheduling.capacity import CapacityTable, Curve


class ContextError(BaseModel):
    """Shares of a whole step, drafting included, over all cells measured at ``at``."""

    threads: int
    used: int  # the context whose curve is used
    at: int  # the context of the steps
    mean: float  # signed: positive where the curve says too long
    median: float  # of absolute errors
    worst: float


def context_errors(table: Table, cells: Sequence[Cell]) -> list[ContextError]:
    """For all pairs of different contexts."""
    found = []
    whole = table.capacity
    for used, at in permutations(table.contexts, 2):
        capacity = whole.at(used)
        curve = Curve(capacity.verify.sizes, capacity.verify.seconds)
        alone = CapacityTable((used,), (curve,), reads=(capacity.read,))
        errors = step_errors(alone, [c for c in cells if (c.threads, c.context) == (table.threads, at)])
        size = np.abs(errors)
        found.append(
            ContextError(
                threads=table.threads,
                used=used,
                at=at,
                mean=float(errors.mean()),
                median=float(np.median(size)),
                worst=float(size.max()),
            )
        )
    return found
