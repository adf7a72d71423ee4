"""How fast the machine is at this moment: the time of one forward that never changes.

A machine that others share is a different one every hour. What was timed in one hour and what was timed in another can
be compared through the yardstick of both.
"""

from __future__ import annotations

import time

from companion.engine.target import ragged
from companion.protocols import Target

REQUESTS, CONTEXT, TOKENS = 4, 96, 8


class Yardstick:
    """Seconds of a forward of 8 tokens for each of 4 requests behind 96 tokens of text."""

    def __init__(self, target: Target) -> None:
        self.target, self.cache = target, target.new_cache(REQUESTS, CONTEXT + TOKENS)
        rows = range(REQUESTS)
        target.forward(ragged([(r, 0, [1] * CONTEXT) for r in rows], target.device), self.cache)
        self.batch = ragged([(r, CONTEXT, [1] * TOKENS) for r in rows], target.device)

    def __call__(self) -> float:
        started = time.perf_counter()
        float(self.target.forward(self.batch, self.cache).logits[0, 0])  # a device has to be done with it
        seconds = time.perf_counter() - started
        for slot in range(REQUESTS):
            self.cache.rollback(slot, CONTEXT)
        return seconds
