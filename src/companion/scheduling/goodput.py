r"""A goodput controller in the manner of TurboSpec (arXiv 2406.14066): one depth for the batch, from history alone.

It takes the acceptance rate a of the last rounds, assumes that every slot is accepted with it independently, and
chooses the depth g of the whole batch that maximises the tokens per second it expects,

    R tau(a, g) / seconds(R (1 + g), R, g),    tau(a, g) = (1 - a^(g+1)) / (1 - a).

It sees no confidence, so it also works with drafters that have none, and it drafts no more than it verifies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

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
        self.window, self._rounds = int(window), deque[tuple[int, int]]()  # accepted, judged
        self._accepted = self._judged = self._idle = 0  # in those rounds; steps at depth 0

    @property
    def rate(self) -> float:
        return self._accepted / self._judged if self._judged else self.prior

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for o in outcomes:
            if o.verified:
                self._count(o.accepted, o.accepted + o.rejected)

    def _count(self, accepted: int, judged: int) -> None:
        self._rounds.append((accepted, judged))
        old = self._rounds.popleft() if len(self._rounds) > self.window else (0, 0)
        self._accepted += accepted - old[0]
        self._judged += judged - old[1]

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        if not requests:
            return []
        count = len(requests)
        seconds = _seconds(self.capacity.at(mean_context(requests)), count, self.max_depth)
        depth = int(np.argmax(tau(self.rate, np.arange(len(seconds))) / seconds))
        self._idle = 0 if depth else self._idle + 1
        if self._idle == self.explore:
            depth, self._idle = 1, 0
        return [depth] * count

    def admit(self, frontier: Frontier) -> None:
        admit_all(frontier)


@lru_cache(maxsize=4096)  # steps ask alike
def _seconds(capacity: Capacity, requests: int, max_depth: int) -> NDArray[np.float64]:  # -> [max_depth + 1]
    """Of a step that drafts and verifies 0 to ``max_depth`` tokens for each of ``requests``."""
    return capacity.seconds_by_depth(np.arange(max_depth + 1), requests)
