r"""The deployed form of the prefix scheduler (paper, section 5.2): how much from the past, what from the present.

So that scheduling costs no time between drafting and verifying, the number of slots K of a step is computed from the
confidences of the step two before it, by a search over the whole of the path and without the early stop; the K best
slots by the *present* confidences are then verified. It is lossless because K is known before any token of the step is
drafted, and because the present ranking keeps prefixes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from companion.protocols import Frontier, Outcome
from companion.scheduling.capacity import Capacity, CapacityTable, mean_context
from companion.scheduling.full_draft import ALL, FullDraft
from companion.scheduling.prefix import global_tokens
from companion.scheduling.ranking import Calibrate, admit_by_survival, as_drafted


class LaggedTopK(FullDraft):
    """K from confidences ``lag`` steps old, the current top K.

    The batch of the past is not that of the present. Requests that have left since no longer count, and one that was
    not there yet counts with the mean confidence of those that were. Before there is any past, and where the step in
    question drafted nothing, all is verified.
    """

    def __init__(
        self,
        capacity: Capacity | CapacityTable,
        calibrate: Calibrate = as_drafted,
        lag: int = 2,
        depth: int | None = None,
    ) -> None:
        super().__init__(depth)
        if not hasattr(lag, "__index__") or lag < 1:
            raise ValueError(f"lag must be an integer of at least 1 step, got {lag!r}: the present may not be searched")
        self.capacity, self.calibrate, self.lag = capacity, calibrate, int(lag)
        self.name = f"lagged-top-k-{lag}"
        self._past: deque[dict[int, Sequence[float]]] = deque(maxlen=self.lag)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._past.append({o.request: o.confidence for o in outcomes if o.confidence})

    def admit(self, frontier: Frontier) -> None:
        left = self.slots(frontier)

        def fits(_: float) -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        admit_by_survival(frontier, fits, self.calibrate)

    def slots(self, frontier: Frontier) -> int:
        """K of this step."""
        views = frontier.requests
        old = self._past[0] if len(self._past) == self.lag else {}
        if not views or not old:
            return ALL
        past = {request: [self.calibrate(k, c) for k, c in enumerate(row, start=1)] for request, row in old.items()}
        newcomer: list[float] | None = None
        table = []
        for view in views:
            given = past.get(view.request)
            if given is None:
                given = newcomer = newcomer or _means(list(past.values()))
            table.append(given)
        return global_tokens(table, self.capacity.at(mean_context(views)))


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Of every slot over the requests that have it."""
    columns = [[row[k] for row in rows if len(row) > k] for k in range(max(map(len, rows)))]
    return [sum(column) / len(column) for column in columns]
