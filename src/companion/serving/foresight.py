r"""Policies that only a simulator may run: they look at what a real scheduler must not or cannot see.

`Oracle` sees whether each draft will be accepted. With m_r accept bits in a row a step of B tokens yields at most
min(B, R + sum m_r) of them, and it takes the B with the highest min(B, R + sum m_r) SPS(B). So it verifies what fails
only where a curve falls and a fuller forward takes less time. It pays for drafting like all others: no scheduler gets
more tokens per second out of a step with these drafts. Over a whole run that is no strict bound: where a token costs
nearly as much to verify as to decode, a scheduler that verifies less in a poor step can be faster, as can one that
drafts less.

`SameStep` is the global search on the confidences of this very step: the deployed policy without its delay. What it
sees of slot k + 1 was computed from x_k, so that it changes the output's law (`scheduling.retrospective`); as a bound
on what the delay costs it is of use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from companion.protocols import Draft, Outcome, RequestView
from companion.scheduling.capacity import Capacity, CapacityTable, mean_context
from companion.scheduling.full_draft import FullDraft
from companion.scheduling.prefix import searched_lengths
from companion.scheduling.retrospective import confidence_table


@runtime_checkable
class Foresight(Protocol):
    """Like a Policy, with `lengths_seeing` in the place of `admit`. The engine has no way to run one."""

    name: str

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]: ...

    def lengths_seeing(
        self, requests: Sequence[RequestView], drafts: Sequence[Draft], leading: Sequence[int]
    ) -> Sequence[int]:
        """Verification lengths; ``leading``: the drafts of each request that would be accepted one after another."""
        ...

    def observe(self, outcomes: Sequence[Outcome]) -> None: ...


class Oracle(FullDraft):
    """Verifies what will be accepted, as much as pays; slot by slot, request by request. What fails comes last."""

    name = "oracle"

    def __init__(self, capacity: Capacity | CapacityTable, depth: int | None = None) -> None:
        super().__init__(depth)
        self.capacity = capacity

    def lengths_seeing(
        self, requests: Sequence[RequestView], drafts: Sequence[Draft], leading: Sequence[int]
    ) -> Sequence[int]:
        count = len(requests)
        capacity = self.capacity.at(mean_context(requests))
        drafted = np.array([len(draft) for draft in drafts])
        useful = np.minimum(leading, drafted)
        slots = np.arange(int(drafted.sum()) + 1)
        gained = count + np.minimum(slots, useful.sum())
        extra = int(np.argmax(gained / capacity.seconds(count + slots, count)))
        lengths = np.zeros(count, dtype=np.int64)
        while extra:
            open_rows = np.flatnonzero(lengths < (useful if (lengths < useful).any() else drafted))[:extra]
            lengths[open_rows] += 1
            extra -= len(open_rows)
        return lengths.tolist()


class SameStep(FullDraft):
    """The best point of the whole path by the present confidences. Not lossless."""

    name = "same-step"

    def __init__(self, capacity: Capacity | CapacityTable, depth: int | None = None) -> None:
        super().__init__(depth)
        self.capacity = capacity

    def lengths_seeing(
        self, requests: Sequence[RequestView], drafts: Sequence[Draft], leading: Sequence[int]
    ) -> Sequence[int]:
        capacity = self.capacity.at(mean_context(requests))
        return searched_lengths(confidence_table(drafts, max(map(len, drafts))), capacity).tolist()
