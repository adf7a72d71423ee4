r"""What a log of the simulator says, each number with one definition. A window leaves out how a run begins and ends.

throughput        committed tokens / time of the window, idle spells included        tokens a second, all users
speed             of one user: committed tokens / time of the steps it took part in, its first token not counted
mean speed        the same ratio over all users together; p10 is over users with `ENOUGH` rounds in the window
budget            tokens in the target's forward a round, the anchor included: 1 + verified (paper, Figure 8)
starved           the longest run of rounds in a row in which a request was given no slot though it had drafted
share             verified / drafted of a request; need: its expected drafts by confidence, as a share of drafted
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from companion.serving.simulator import Log

F64 = NDArray[np.float64]
ENOUGH = 4  # rounds of a user in the window, for a speed of its own


@dataclass(frozen=True, slots=True)
class Load:
    """Numbers of a window. Times in seconds; nan where there was nothing to divide by."""

    throughput: float
    mean_speed: float
    p10_speed: float
    concurrency: float  # requests a step, weighted by time
    budget: float
    drafted: float  # a round, as all below
    verified: float
    accepted: float
    wasted: float  # verified and not committed
    committed: float
    step_seconds: float
    drafting_share: float  # of the time of all steps
    wait_mean: float
    wait_p95: float
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fairness:
    """Who gets the slots. Arrays over requests with `ENOUGH` rounds in the window."""

    share: F64  # [n]
    need: F64  # [n] nan without confidences
    accepted: F64  # [n] accepted / drafted: what the share was worth
    starved: NDArray[np.int64]  # [n]
    speed: F64  # [n]
    domain: list[str]  # [n]


@dataclass(frozen=True, slots=True)
class Window:
    """Steps ``first`` to ``last`` of a log, the latter not included."""

    log: Log
    first: int
    last: int

    @classmethod
    def whole(cls, log: Log) -> Window:
        return cls(log, 0, len(log.steps))

    @classmethod
    def steady(cls, log: Log, warm: int) -> Window:
        """From where request number ``warm`` joins to where the last one does. ValueError where that is nothing."""
        ends = np.array([step.end for step in log.steps])
        begin = log.requests[min(warm, len(log.requests) - 1)].joined
        first, last = (int(np.searchsorted(ends, at, side="right")) for at in (begin, log.requests[-1].joined))
        if last <= first:
            raise ValueError(
                f"of {len(log.requests)} requests {warm} are to warm up, and nothing is left to measure: serve more"
            )
        return cls(log, first, last)

    def load(self) -> Load:
        """The numbers of this window."""
        steps = self.log.steps[self.first : self.last]
        seconds = np.array([step.seconds for step in steps])
        total, rows = float(seconds.sum()), self._rows()
        step, committed, verified = rows["step"], rows["committed"], rows["verified"]
        first_tokens = sum(step.requests - step.decoding for step in steps)
        tokens, times = self._by_request(committed), self._by_request(seconds[(step - self.first).astype(int)])
        enough = self._by_request(np.ones_like(step)) >= ENOUGH
        own = tokens[enough] / times[enough]
        before, ended = self.log.steps[self.first - 1].end if self.first else 0.0, steps[-1].end
        lasted = ended - (steps[0].end - steps[0].seconds)
        waits = np.array([r.waited for r in self.log.requests if before <= r.joined < ended and not self.log.closed])
        return Load(
            throughput=(float(committed.sum()) + first_tokens) / lasted,
            mean_speed=_ratio(tokens.sum(), times.sum()),
            p10_speed=float(np.quantile(own, 0.1)) if len(own) else float("nan"),
            concurrency=float((seconds * [s.requests for s in steps]).sum() / total),
            budget=1 + _mean(verified),
            drafted=_mean(rows["drafted"]),
            verified=_mean(verified),
            accepted=_mean(rows["accepted"]),
            wasted=_mean(verified) - _mean(rows["accepted"]),
            committed=_mean(committed),
            step_seconds=total / len(steps),
            drafting_share=sum(s.drafting for s in steps) / total,
            wait_mean=_mean(waits),
            wait_p95=float(np.quantile(waits, 0.95)) if len(waits) else float("nan"),
            rounds=len(step),
            seconds=lasted,
        )

    def fairness(self) -> Fairness:
        """Of each request with enough rounds: slots, what they were worth, and how long it went without."""
        rows = self._rows()
        steps, seconds = rows["step"], np.array([step.seconds for step in self.log.steps])
        enough = np.flatnonzero(self._by_request(np.ones_like(steps)) >= ENOUGH)
        drafted = np.maximum(self._by_request(rows["drafted"])[enough], 1.0)
        longest = np.zeros(len(self.log.requests), dtype=np.int64)
        run = np.zeros_like(longest)
        for request, had, given in zip(rows["request"].astype(int), rows["drafted"], rows["verified"], strict=True):
            run[request] = run[request] + 1 if had and not given else 0
            longest[request] = max(longest[request], run[request])
        times = self._by_request(seconds[steps.astype(int)])[enough]
        return Fairness(
            share=self._by_request(rows["verified"])[enough] / drafted,
            need=self._by_request(self._expected(rows))[enough] / drafted,
            accepted=self._by_request(rows["accepted"])[enough] / drafted,
            starved=longest[enough],
            speed=self._by_request(rows["committed"])[enough] / times,
            domain=[self.log.requests[i].replay.domain for i in enough],
        )

    def _rows(self) -> dict[str, F64]:
        """Columns of the rounds in the window."""
        step = self.log.column("step")
        inside = (step >= self.first) & (step < self.last)
        names = ("step", "request", "anchor", "drafted", "verified", "accepted", "committed")
        return {name: self.log.column(name)[inside] for name in names}

    def _expected(self, rows: dict[str, F64]) -> F64:  # -> [rounds]
        """Drafts of each round that its confidences expect to be accepted, were all verified; nan without any."""
        tables: dict[int, F64] = {}
        for i in np.unique(rows["request"]).astype(int):
            confidence = self.log.requests[i].replay.confidence
            if confidence is not None:
                survivals = np.cumsum(np.cumprod(confidence, axis=1), axis=1)
                tables[i] = np.concatenate([np.zeros((len(survivals), 1)), survivals], axis=1)
        which = zip(*(rows[name].astype(int).tolist() for name in ("request", "anchor", "drafted")), strict=True)
        return np.array([tables[r][at, depth] if r in tables else np.nan for r, at, depth in which])

    def _by_request(self, values: F64) -> F64:  # [rounds of the window] -> [requests]
        requests = self._rows()["request"].astype(int)
        return np.asarray(np.bincount(requests, values, len(self.log.requests)), dtype=np.float64)


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator else float("nan")


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else float("nan")
