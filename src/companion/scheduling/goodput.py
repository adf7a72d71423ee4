r"""A goodput controller in the manner of TurboSpec (arXiv 2406.14066): one depth for the batch, from history alone.

It takes the acceptance rate a of the last rounds, assumes that every slot is accepted with it independently, and
chooses the depth g of the whole batch that maximises the tokens per second it expects,

    R tau(a, g) / seconds(R (1 + g), R, g),    tau(a, g) = (1 - a^(g+1)) / (1 - a).

It sees no confidence, so it also works with drafters that have none, and it drafts no more than it verifies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from companion.accepted_length import tau
from companion.protocols import Frontier, Outcome, RequestView
from companion.scheduling.capacity import Capacity, CapacityTable, mean_context
from companion.scheduling.fixed import admit_all


class Goodput:
    """Depths 0 to ``max_depth``.

    The rate is accepted drafts over judged ones in the last ``window`` rounds of requests, and ``prior`` before there
    is any. ``explore``: of so many steps in a row at depth 0 the last is drafted at depth 1, or the rate would never be
    heard of again.
    """

    name = "goodput"

    def __init__(
        self,
        capacity: Capacity | CapacityTable,
        max_depth: int = 7,
        window: int = 256,
        prior: float = 0.7,
        explore: int = 16,
    ) -> None:
        for name, value in (("max_depth", max_depth), ("window", window), ("explore", explore)):
            if not hasattr(value, "__index__") or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if not 0.0 <= prior <= 1.0:
            raise ValueError(f"prior is an acceptance rate between 0 and 1, got {prior}")
        self.capacity, self.max_depth, self.prior, self.explore = capacity, int(max_depth), float(prior), int(explore)
        self._rounds: deque[tuple[int, int]] = deque(maxlen=int(window))  # accepted, judged
        self._idle = 0

    @property
    def rate(self) -> float:
        judged = sum(j for _, j in self._rounds)
        return sum(a for a, _ in self._rounds) / judged if judged else self.prior

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._rounds.extend((o.accepted, o.accepted + o.rejected) for o in outcomes if o.verified)

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        if not requests:
            return []
        count = len(requests)
        capacity = self.capacity.at(mean_context(requests))
        depths = np.arange(self.max_depth + 1)
        drafting = np.array([capacity.drafting(count, int(d)) for d in depths])
        seconds = capacity.seconds(count * (1 + depths), count, drafted=0) + drafting
        depth = int(np.argmax(tau(self.rate, depths) / seconds))
        self._idle = 0 if depth else self._idle + 1
        if self._idle == self.explore:
            depth, self._idle = 1, 0
        return [depth] * count

    def admit(self, frontier: Frontier) -> None:
        admit_all(frontier)
