r"""A prefix scheduler that also decides how deep to draft: depth and threshold from the past, no slot count at all.

Where drafting takes a good part of a step, a policy that always drafts the whole block pays for slots that it will not
verify. So the confidences of the last rounds are searched once more, over depths as well. With N rounds stacked, as if
the R of the step to come were like them, the point

    max over d, m of  (R + R/N sum of the m best survivals of slots up to d) / seconds(R + m R/N, R, d)

gives the depth d of the steps to come, and the survival of the last slot admitted there, which is the price of a place
in the target's forward, is their threshold: a slot is admitted while its survival is no less. In a large batch that is
the top K of the deployed form; in a small one it lets a good block have more slots than a bad one. Confidences are
corrected by what they turned out to be worth (`hindsight`).

Lossless, since the past alone gives depth and threshold, and whether slot k is admitted is decided by what was there
before x_k was drawn. On a curve with cliffs a count keeps to this side of one and a threshold does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from companion.protocols import Frontier, Outcome, RequestView
from companion.scheduling.capacity import Capacity, CapacityTable, mean_context
from companion.scheduling.full_draft import ALL
from companion.scheduling.hindsight import Hindsight
from companion.scheduling.ranking import Calibrate, as_drafted, survival
from companion.scheduling.threshold import Threshold


class LaggedThreshold:
    """Depths 0 to what the drafter offers, from the last ``window`` drafts that are ``lag`` steps old at least.

    A search serves ``every`` steps; until the first, which is after so many, all is drafted and verified. Slots that a
    step did not draft are taken to have the mean confidence of the last step that did. Of so many steps in a row that
    are not the whole block, number ``explore`` is.
    """

    name = "lagged-threshold"

    def __init__(
        self,
        capacity: Capacity | CapacityTable,
        calibrate: Calibrate = as_drafted,
        lag: int = 2,
        window: int = 128,
        every: int = 8,
        explore: int = 32,
    ) -> None:
        for name, value in (("lag", lag), ("window", window), ("every", every), ("explore", explore)):
            if not hasattr(value, "__index__") or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        self.capacity, self.calibrate, self.lag = capacity, Hindsight(calibrate), int(lag)
        self.every, self.explore = int(every), int(explore)
        self.depth, self.bar = ALL, 0.0  # until the first search: everything
        self._late: deque[list[list[float]]] = deque()  # too young to be looked at
        self._past: deque[list[float]] = deque(maxlen=int(window))
        self._means: list[float] = []  # of each slot, in the last step that drafted it
        self._step = self._shallow = 0

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self.calibrate.observe(outcomes)
        rows = [[self.calibrate(k, c) for k, c in enumerate(o.confidence, 1)] for o in outcomes if o.confidence]
        self._late.append(rows)
        if len(self._late) < self.lag:
            return
        if old := self._late.popleft():
            self._past.extend(old)
            columns = [[row[k] for row in old if len(row) > k] for k in range(max(map(len, old)))]
            self._means[: len(columns)] = [sum(column) / len(column) for column in columns]

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        if requests and self._past and self._step % self.every == 0:
            self.depth, self.bar = self.search(len(requests), self.capacity.at(mean_context(requests)))
        self._step += 1
        self._shallow = self._shallow + 1 if self.depth < len(self._means) else 0
        if self._shallow == self.explore:
            self._shallow = 0
            return [ALL] * len(requests)
        return [self.depth] * len(requests)

    def search(self, requests: int, capacity: Capacity) -> tuple[int, float]:
        """The best depth for so many requests, and the survival of the last slot that is worth its place.

        At depth 0, which is plain decoding, it is that of the best other depth: for steps that draft to explore.
        """
        a = survival([[*row, *self._means[len(row) :]] for row in self._past])  # [N, D]
        share = requests / len(a)  # of a slot of the past in a step to come
        order = np.argsort(-a, axis=None, kind="stable")
        best, slots = a.ravel()[order], order % a.shape[1] + 1
        alive = np.count_nonzero(best)
        verifying = capacity.seconds(requests + share * np.arange(1, alive + 1), requests, drafted=0)
        depth, bar, most = 0, 1.0, 0.0
        for d in range(1, a.shape[1] + 1):
            admitted = best[:alive][slots[:alive] <= d]
            seconds = verifying[: len(admitted)] + capacity.drafting(requests, d)
            theta = (requests + share * np.cumsum(admitted)) / seconds
            if len(theta) and theta.max() > most:
                m = int(theta.argmax())
                depth, bar, most = d, float(admitted[m]), float(theta[m])
        plain = requests / float(capacity.seconds(requests, requests, drafted=0))
        return (depth if most > plain else 0), bar

    def admit(self, frontier: Frontier) -> None:
        Threshold(self.bar, "prefix", self.calibrate).admit(frontier)
