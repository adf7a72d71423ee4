"""The tables that simulated time goes by: one a policy, since a drafter asked for fewer tokens is done sooner.

What a scheduler knows is the table itself, whose drafting is that of the whole block. A static depth d drafts d tokens
in each round, and its clock has the drafting time of d. Policies that choose depths as they go (goodput) are charged
the whole block whenever they draft.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from companion.experiments.load_policies import static_depth
from companion.scheduling.capacity import CapacityTable, Curve
from companion.scheduling.capacity_file import load_capacity
from companion.serving import AnalyticTable, roofline_table


@dataclass(frozen=True, slots=True)
class Clocks:
    """A named table. ``measured`` False: arithmetic, and no time of it was ever measured."""

    name: str
    capacity: CapacityTable
    by_depth: Mapping[int, CapacityTable] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        return not isinstance(self.capacity, AnalyticTable)

    def of(self, policy: str) -> CapacityTable:
        """What the steps of a policy take."""
        depth = static_depth(policy)
        return self.by_depth.get(depth, self.capacity) if depth else self.capacity


def cpu(path: Path, threads: int) -> Clocks:
    """A table of `companion profile`. ValueError for a file that is none, or has none of so many threads."""
    table = load_capacity(path, threads=threads, here=False)
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["threads"] == threads]
    depths = sorted({c["depth"] for c in cells} - {0})
    by_depth = {depth: replace(table, draft=_drafting(cells, depth)) for depth in depths}
    return Clocks(f"measured CPU, {threads} thread{'s' if threads > 1 else ''}", table, by_depth)


def _drafting(cells: list[dict[str, Any]], depth: int) -> Curve:
    """Median over contexts, as the table itself has it for the deepest."""
    requests = sorted({c["requests"] for c in cells})
    own = [[c["draft"]["median"] for c in cells if (c["requests"], c["depth"]) == (r, depth)] for r in requests]
    return Curve(tuple(requests), tuple(float(np.median(times)) for times in own))


def gpu(rank: int = 256, tile: int = 1, gamma: int = 7) -> Clocks:
    """The roofline of Qwen3-4B on an H200; rank 0 is DFlash, a tile makes it jagged."""
    tables = {d: roofline_table(gamma=d, rank=rank, tile=tile) for d in range(1, gamma + 1)}
    kind = (", DFlash" if not rank else "") + (f", tiles of {tile}" if tile > 1 else "")
    return Clocks(f"analytic H200{kind}", tables[gamma], tables)
