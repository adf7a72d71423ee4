"""When requests arrive: a fixed number at all times, at random, or when a file says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Times in seconds that never fall, and how many requests run at once; the others wait in order.

    ``closed``: a new request comes when another one leaves, so that waiting means nothing. ValueError without a
    request, for negative or falling times, and for less than one at once.
    """

    times: tuple[float, ...]
    max_batch: int
    closed: bool = False

    def __post_init__(self) -> None:
        times = np.asarray(self.times, dtype=np.float64)
        if not len(times):
            raise ValueError("a trace of arrivals needs one request at least, this one is empty")
        if not np.isfinite(times).all() or times.min() < 0:
            raise ValueError(f"arrival times are seconds from 0 on, got {times[~(times >= 0) | np.isinf(times)][0]}")
        if (np.diff(times) < 0).any():
            raise ValueError("arrival times must not fall: sort the trace")
        if not hasattr(self.max_batch, "__index__") or self.max_batch < 1:
            raise ValueError(f"max_batch must be an integer of at least 1, got {self.max_batch!r}")

    @classmethod
    def closed_loop(cls, concurrency: int, requests: int) -> Arrivals:
        """``concurrency`` users, each of whom asks anew as soon as answered, until ``requests`` have been asked."""
        return cls((0.0,) * requests, concurrency, closed=True)

    @classmethod
    def poisson(cls, rate: float, requests: int, max_batch: int, seed: int = 0) -> Arrivals:
        """Independent exponential gaps, ``rate`` requests a second. ValueError for a rate that is not positive."""
        if not (np.isfinite(rate) and rate > 0):
            raise ValueError(f"the rate must be a positive number of requests a second, got {rate}")
        gaps = np.random.default_rng(seed).exponential(1.0 / rate, requests)
        return cls(tuple(np.cumsum(gaps).tolist()), max_batch)

    @classmethod
    def trace(cls, times: Sequence[float], max_batch: int) -> Arrivals:
        """Times of one's own; those of a log may come unsorted."""
        return cls(tuple(sorted(float(t) for t in times)), max_batch)
