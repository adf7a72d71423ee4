r"""One fixed total order of drafted slots, which every policy that ranks them goes through.

Survival of slot j of request r is a_{r,j} = c_{r,1} .. c_{r,j}, in fp64 whatever the confidences came in. Slots are
ranked by

    survival, high first;  then the slot, low first;  then the request, in the order of the batch.

The second key is not a matter of taste. Confidences saturate (in bf16 a sigmoid is exactly 1 from logit 6.25 on), and
then a slot ties with the one before it. An order that puts the deeper slot first lets what was drawn at slot j decide
whether slot j is verified, and the output is no longer the target's: `tests/engine/test_ties.py` has it at 0.85 for
0.7. Here the order keeps prefixes, and no key depends on a drawn token beyond those already revealed.

Two forms of the same order. `admit_by_survival` walks a Frontier, where a slot's confidence cannot be seen before the
slots in front of it are admitted: it is what the engine runs, and a policy on top of it is only a rule for when to
stop. `ranked` sorts whole blocks at once, for replays, simulators and engines that keep confidences in an array.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
from numpy.typing import ArrayLike, NDArray

from companion.protocols import Frontier

F64 = NDArray[np.float64]
Calibrate = Callable[[int, float], float]  # slot (from 1) and confidence -> confidence


def as_drafted(slot: int, confidence: float) -> float:
    """No calibration: the confidence as the drafter gave it."""
    return confidence


def survival(confidence: ArrayLike) -> F64:  # [R, K] -> [R, K]
    """a_{r,j}, the running product of a request's confidences. ValueError for what is no probability."""
    c = np.asarray(confidence, dtype=np.float64)
    if c.ndim != 2:
        raise ValueError(f"confidences are a table of requests by slots, got shape {list(c.shape)}")
    if not ((c >= 0.0) & (c <= 1.0)).all():  # NaN compares false
        wrong = c[~((c >= 0.0) & (c <= 1.0))][0]
        raise ValueError(f"a confidence is a probability between 0 and 1, got {wrong}")
    return np.asarray(np.cumprod(c, axis=1))


def ranked(survivals: F64) -> tuple[NDArray[np.intp], F64]:  # [R, K] -> [n] requests, [n] survivals
    """All slots that can survive at all, best first. Requests appear once for each of their slots, from slot 1 on."""
    by_slot = survivals.T.ravel()  # slot by slot, so that a stable sort breaks ties by slot and then by request
    order = np.argsort(-by_slot, kind="stable")
    alive = np.count_nonzero(by_slot)  # survivals are never negative
    order = order[:alive]
    return order % len(survivals) if len(survivals) else order, by_slot[order]


def admit_by_survival(frontier: Frontier, keep: Callable[[float], bool], calibrate: Calibrate = as_drafted) -> None:
    """Offer slots from the most likely to survive on; admit each that ``keep(survival)`` wants, stop at the first no.

    ValueError where the drafter gives no confidence, or one that is no probability.
    """
    heap: list[tuple[float, int, int]] = []

    def offer(row: int, slot: int, before: float) -> None:
        if slot > frontier.drafted(row):
            return
        a = before * checked(frontier, row, slot, calibrate)
        if a > 0.0:
            heappush(heap, (-a, slot, row))

    for row in range(len(frontier.requests)):
        offer(row, frontier.admitted(row) + 1, 1.0)
    while heap:
        a, slot, row = heappop(heap)
        if not keep(-a):
            return
        frontier.admit(row)
        offer(row, slot + 1, -a)


def checked(frontier: Frontier, row: int, slot: int, calibrate: Calibrate = as_drafted) -> float:
    """The calibrated confidence of the next slot of ``row``; ValueError where there is none or no probability."""
    drafted = frontier.confidence(row)
    if drafted is None:
        raise ValueError(
            "this policy schedules by confidence and the drafter gives none: use a drafter with a confidence head, "
            "such as dspark, or a fixed depth"
        )
    c = calibrate(slot, drafted)
    if not 0.0 <= c <= 1.0:
        raise ValueError(f"a confidence is a probability between 0 and 1, got {c} for slot {slot}")
    return c
