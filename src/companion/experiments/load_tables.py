"""The tables that simulated time goes by: one a policy, since a drafter asked for fewer tokens is done sooner.

What a scheduler knows is the table itself, whose drafting is that of the whole block at a middling context. Time goes
by what was measured: a static depth d drafts d tokens in each round, and its clock has the drafting time of d; every
clock has that of the context which the served responses have on average. Policies that choose depths as they go
(goodput) are charged the whole block whenever they draft.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from companion.experiments.load_policies import DEPLOYED, static_depth
from companion.scheduling.capacity import CapacityTable, Curve
from companion.scheduling.capacity_file import load_capacity
from companion.serving import AnalyticTable, Replay, roofline_table


@dataclass(frozen=True, slots=True)
class Clocks:
    """A named table. ``measured`` False: arithmetic, and no time of it was ever measured."""

    name: str
    capacity: CapacityTable
    by_depth: Mapping[int, CapacityTable] = field(default_factory=dict)  # of a drafter asked for so many tokens

    @property
    def measured(self) -> bool:
        return not isinstance(self.capacity, AnalyticTable)

    def of(self, policy: str) -> CapacityTable:
        """What the steps of a policy take."""
        depth = static_depth(policy)
        return self.by_depth.get(max(self.by_depth, default=0) if depth is None else depth, self.capacity)

    def whole_block(self) -> Clocks:
        """The same where every depth is charged the whole block."""
        return replace(self, by_depth=dict.fromkeys(self.by_depth, self.of(DEPLOYED)))


def cpu(path: Path, threads: int, served: Sequence[Replay]) -> Clocks:
    """A table of `companion profile`. ValueError for a file that is none, or has none of so many threads."""
    table = load_capacity(path, threads=threads, here=False)
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["threads"] == threads]
    context = mean_context(served)
    depths = sorted({c["depth"] for c in cells} - {0})
    by_depth = {d: replace(table, draft=_drafting([c for c in cells if c["depth"] == d], context)) for d in depths}
    return Clocks(f"measured CPU, {threads} thread{'s' if threads > 1 else ''}", table, by_depth)


def mean_context(served: Sequence[Replay]) -> float:
    """Prompt and response so far, over all anchors."""
    anchors = sum(r.length - 1 for r in served)
    return sum((r.length - 1) * (r.prompt_length + r.length / 2) for r in served) / anchors


def _drafting(cells: Sequence[Mapping[str, Any]], context: float) -> Curve:
    """Of one depth over requests, interpolated between the measured contexts."""
    requests = sorted({c["requests"] for c in cells})
    times = []
    for count in requests:
        own = np.array(sorted((c["position"], c["draft"]["median"]) for c in cells if c["requests"] == count))
        times.append(float(np.interp(context, own[:, 0], own[:, 1])))
    return Curve(tuple(requests), tuple(times))


def gpu(rank: int = 256, tile: int = 1, gamma: int = 7) -> Clocks:
    """The roofline of Qwen3-4B on an H200; rank 0 is DFlash, a tile makes it jagged."""
    tables = {d: roofline_table(gamma=d, rank=rank, tile=tile) for d in range(1, gamma + 1)}
    kind = (", DFlash" if not rank else "") + (f", tiles of {tile}" if tile > 1 else "")
    return Clocks(f"analytic H200{kind}", tables[gamma], tables)
