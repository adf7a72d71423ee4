"""Timed steps as cells, and cells as the table that a policy schedules by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy.stats import theilslopes

from companion.scheduling.capacity import CapacityTable
from companion.scheduling.capacity_file import table_of

F64 = NDArray[np.float64]


class Quartiles(BaseModel):
    """Seconds: of all timed steps the middle one and the quarters."""

    low: float
    median: float
    high: float


class Cell(BaseModel):
    """Steps of R requests that drafted and verified ``depth`` tokens each."""

    threads: int
    context: int  # as asked for
    position: float  # as it was, on average over requests and steps
    requests: int
    depth: int
    steps: int
    draft: Quartiles
    verify: Quartiles

    @property
    def tokens(self) -> int:
        """B."""
        return self.requests * (1 + self.depth)

    @property
    def seconds(self) -> float:
        return self.draft.median + self.verify.median

    @classmethod
    def of(
        cls, threads: int, context: int, requests: int, depth: int, steps: Sequence[tuple[float, float, float]]
    ) -> Cell:
        draft, verify, position = np.array(steps).T
        parts = [
            Quartiles(**dict(zip(Quartiles.model_fields, q, strict=True))) for q in map(_quartiles, (draft, verify))
        ]
        return cls(
            threads=threads,
            context=context,
            position=float(position.mean()),
            requests=requests,
            depth=depth,
            steps=len(steps),
            draft=parts[0],
            verify=parts[1],
        )


def _quartiles(seconds: F64) -> list[float]:  # [n] -> [3]
    return [float(q) for q in np.quantile(seconds, [0.25, 0.5, 0.75])]


class Drafting(BaseModel):
    requests: list[int]
    seconds: list[list[list[float]]]  # [context][depth - 1][requests]


class Table(BaseModel):
    """As `companion.scheduling.capacity_file` reads it."""

    threads: int
    contexts: list[int]
    sizes: list[int]  # B
    verify: list[list[float]]  # [context][B] seconds
    reads: list[float]  # [context] seconds a request
    draft: Drafting
    misfit: float  # how far a cell's step is off the table, as a share, median over cells
    yardstick: float | None = None  # seconds of `Yardstick` while the cells were timed, median

    @property
    def capacity(self) -> CapacityTable:
        return table_of(self.model_dump(), {})


def table_of_cells(threads: int, cells: Sequence[Cell], yardstick: float | None = None) -> Table:
    """The table of cells that have the same requests and depths at every context."""
    contexts = sorted({c.context for c in cells})
    sizes = sorted({c.tokens for c in cells})
    curves, reads = zip(*(_split([c for c in cells if c.context == at], sizes) for at in contexts), strict=True)
    requests = sorted({c.requests for c in cells})
    lines = [[_drafting([c for c in cells if (c.context, c.requests) == (at, r)]) for r in requests] for at in contexts]
    drafting = [np.array(own).T.tolist() for own in lines]  # [C][D][R]
    table = Table(
        threads=threads,
        contexts=contexts,
        sizes=sizes,
        verify=list(curves),
        reads=list(reads),
        draft=Drafting(requests=requests, seconds=drafting),
        misfit=0.0,
        yardstick=yardstick,
    )
    return table.model_copy(update={"misfit": float(np.median(np.abs(step_errors(table.capacity, cells))))})


def _split(cells: Sequence[Cell], sizes: Sequence[int]) -> tuple[list[float], float]:
    """curve(B) at every B and ``read``, by least squares with ``read`` at least 0.

    ``read`` comes from cells of equal B and different R alone, and every B weighs them by their own time, since a
    share of a millisecond step is what matters. The curve is what is left, on average over the cells of a B.
    """
    tokens = np.array([c.tokens for c in cells])
    requests = np.array([c.requests for c in cells], dtype=float)
    seconds = np.array([c.verify.median for c in cells])
    weight = 1 / seconds**2
    over = under = 0.0
    for size in sizes:
        own = tokens == size
        x, y, w = requests[own], seconds[own], weight[own]
        x, y = x - np.average(x, weights=w), y - np.average(y, weights=w)
        over, under = over + float((w * x * y).sum()), under + float((w * x * x).sum())
    most = float((seconds / requests).min()) / 2  # the curve stays positive, whatever the noise
    read = min(max(over / under, 0.0), most) if under else 0.0
    left = seconds - read * requests
    return [float(np.average(left[tokens == size], weights=weight[tokens == size])) for size in sizes], read


def _drafting(cells: Sequence[Cell]) -> list[float]:  # -> [D]
    """Seconds of drafting 1, 2, .. tokens for the requests of these cells: a straight line through the medians.

    One parallel forward and a loop over slots are a straight line; which depth is quickest must not be decided by noise
    in the time of one of them. The slope is the median of those between any two depths (Theil and Sen), so that a cell
    that was disturbed moves it little; it is at least 0.
    """
    own = sorted((c for c in cells if c.depth), key=lambda c: c.depth)
    depths, seconds = np.array([c.depth for c in own]), np.array([c.draft.median for c in own])
    slope = max(float(theilslopes(seconds, depths).slope), 0.0) if len(own) > 1 else 0.0
    start = max(float(np.median(seconds - slope * depths)), 0.0)
    return [start + slope * d for d in range(1, int(depths.max()) + 1)]


def step_errors(table: CapacityTable, cells: Sequence[Cell]) -> F64:  # -> [n]
    """How much longer than measured the table says a cell's step is, as a share of it; drafting as measured."""
    said = [float(table.at(c.context).seconds(c.tokens, c.requests, drafted=0)) + c.draft.median for c in cells]
    return np.array([s / c.seconds - 1 for s, c in zip(said, cells, strict=True)])
