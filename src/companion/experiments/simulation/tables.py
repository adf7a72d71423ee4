"""The tables that simulated time goes by, which are also what the policies know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from companion.scheduling.capacity import CapacityTable
from companion.scheduling.capacity_file import load_capacity
from companion.serving import AnalyticTable, roofline_table


@dataclass(frozen=True, slots=True)
class Clock:
    """A named table. ``measured`` False: arithmetic, and no time of it was ever measured."""

    name: str
    capacity: CapacityTable

    @property
    def yardstick(self) -> float | None:
        """Seconds of the yardstick when the table was measured, where that is known."""
        return self.capacity.provenance.get("yardstick")

    @property
    def measured(self) -> bool:
        return not isinstance(self.capacity, AnalyticTable)

    def whole_block(self) -> Clock:
        """The same where every depth is charged the whole block."""
        return replace(self, capacity=replace(self.capacity, drafts=tuple(own[-1:] for own in self.capacity.drafts)))


def cpu(path: Path, threads: int) -> Clock:
    """A table of `companion profile`. ValueError for a file that is none, or has none of so many threads."""
    table = load_capacity(path, threads=threads, here=False)
    return Clock(f"measured CPU, {threads} thread{'s' if threads > 1 else ''}", table)


def gpu(rank: int = 256, tile: int = 1) -> Clock:
    """The roofline of Qwen3-4B on an H200; rank 0 is DFlash, a tile makes it jagged."""
    kind = (", DFlash" if not rank else "") + (f", tiles of {tile}" if tile > 1 else "")
    return Clock(f"analytic H200{kind}", roofline_table(rank=rank, tile=tile))
