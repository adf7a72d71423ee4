"""Turns of a tenth of a second in an order that is drawn anew each time, for what is to be compared.

Slow spells of the machine, periodic ones too, then hit all alike. Between turns the core is left to others for a
moment: what the operating system owes them is not taken out of a step.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
TURN, PAUSE = 0.1, 0.01  # seconds


def take_turns(
    keys: Iterable[K],
    step: Callable[[K], object],
    done: Callable[[K], bool],
    order: random.Random,
    before: Callable[[K], object] | None = None,
) -> None:
    """``step`` every key until it is ``done``, one step a turn at least; ``before`` is called ahead of each turn.

    Objects that are there already are not searched through by the collector in somebody's step.
    """
    waiting = list(keys)
    gc.collect()
    gc.freeze()
    try:
        while waiting := [key for key in waiting if not done(key)]:
            for key in order.sample(waiting, len(waiting)):
                time.sleep(PAUSE)
                if before is not None:
                    before(key)
                until = time.perf_counter() + TURN
                while True:
                    step(key)
                    if done(key) or time.perf_counter() > until:
                        break
    finally:
        gc.unfreeze()
