r"""Algorithm 1: which drafted slots of a whole batch are worth a place in the target's forward (paper, section 3.2.2).

With lengths l_r the forward has B = sum_r (1 + l_r) tokens and is expected to yield tau = sum_r (1 + sum_{j<=l_r}
a_{r,j}) of them, at SPS(B) steps a second: the throughput is

    Theta = tau SPS(B).

For each B the best set is the B - R slots of highest survival, since a request's survivals never rise (the ranking
keeps prefixes). Algorithm 1 admits slots in that order as long as Theta rises, and stops at the first that does not
raise it. The stop makes it lossless: whether slot k is admitted is decided before anything that follows x_k is looked
at. It is optimal wherever the greedy path rises to its maximum without a dip before it, and only its loss depends on
the curve; `global_tokens` is the search without the stop, for the past (`lagged`) and for the counterexample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from companion.protocols import Frontier
from companion.scheduling.capacity import Capacity, CapacityTable, mean_context, step_seconds
from companion.scheduling.full_draft import FullDraft
from companion.scheduling.ranking import Calibrate, admit_by_survival, as_drafted, ranked, survival

F64 = NDArray[np.float64]
FEW = 128  # slots that lists are quicker with than arrays


class PrefixScheduler(FullDraft):
    """Algorithm 1 in the engine. ``calibrate`` maps (slot, confidence) to a calibrated confidence."""

    name = "prefix"

    def __init__(
        self, capacity: Capacity | CapacityTable, calibrate: Calibrate = as_drafted, depth: int | None = None
    ) -> None:
        super().__init__(depth)
        self.capacity, self.calibrate = capacity, calibrate

    def admit(self, frontier: Frontier) -> None:
        views = frontier.requests
        if not views:
            return
        capacity = self.capacity.at(mean_context(views))
        seconds = _seconds(capacity, len(views))
        tau = float(len(views))
        best = tau / next(seconds)

        def raises_throughput(a: float) -> bool:
            nonlocal tau, best
            tau += a
            theta = tau / next(seconds)
            if theta <= best:
                return False
            best = theta
            return True

        admit_by_survival(frontier, raises_throughput, self.calibrate)


def _seconds(capacity: Capacity, requests: int) -> Iterator[float]:
    """The time of a step with B = R, R + 1, .. tokens."""
    known, slots = 0, 64
    while True:
        yield from step_seconds(capacity, requests, slots)[known:].tolist()
        known, slots = slots + 1, 4 * slots


@dataclass(frozen=True, slots=True)
class ThroughputPath:
    """Theta along the greedy order: entry m is with the m best slots admitted."""

    requests: NDArray[np.intp]  # [n] which request gets its next slot as the m-th, m = 1..n
    survivals: F64  # [n]
    tau: F64  # [n + 1] expected tokens
    theta: F64  # [n + 1] expected tokens per second

    def lengths(self, admitted: int, requests: int) -> NDArray[np.int64]:  # -> [R]
        """Slots of each request among the first ``admitted``."""
        return np.bincount(self.requests[:admitted], minlength=requests)[:requests].astype(np.int64)


def throughput_path(confidence: ArrayLike, capacity: Capacity) -> ThroughputPath:  # [R, K]
    """ValueError for confidences that are no probabilities."""
    a = survival(confidence)
    rows, best = ranked(a)
    tau = np.cumsum(np.concatenate([[float(len(a))], best]))
    return ThroughputPath(rows, best, tau, tau / step_seconds(capacity, len(a), a.size)[: len(tau)])


def prefix_lengths(confidence: ArrayLike, capacity: Capacity) -> NDArray[np.int64]:  # [R, K] -> [R]
    """Algorithm 1 on a table of confidences: stop at the first slot that does not raise Theta.

    The same lengths as `PrefixScheduler`, which sees the confidences one by one. ValueError for an empty batch or
    confidences that are no probabilities.
    """
    path = throughput_path(_batch(confidence), capacity)
    stalls = np.flatnonzero(path.theta[1:] <= path.theta[:-1])
    return path.lengths(int(stalls[0]) if len(stalls) else len(path.survivals), len(np.asarray(confidence)))


def global_tokens(confidence: Sequence[Sequence[float]] | F64, capacity: Capacity) -> int:  # [R, <= K]
    """How many slots the best point of the whole path admits; the fewest on a tie. Rows may be of any lengths.

    To be asked of past confidences only: on those of the drafts that it is to decide on it is the counterexample of the
    paper's appendix.
    """
    if not isinstance(confidence, np.ndarray):
        slots = sum(map(len, confidence))
        if confidence and slots <= FEW:
            return _best_of_few(confidence, step_seconds(capacity, len(confidence), slots).tolist())
        table = np.zeros((len(confidence), max(map(len, confidence), default=0)))
        for row, given in zip(table, confidence, strict=True):
            row[: len(given)] = given
        confidence = table
    return int(np.argmax(throughput_path(_batch(confidence), capacity).theta))


def _best_of_few(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> int:
    """The same without arrays, whose calls take longer than a few slots do: between two forwards nothing of NumPy is
    in a processor's cache."""
    survivals = []
    for row in rows:
        a = 1.0
        for c in row:
            if not 0.0 <= c <= 1.0:
                raise ValueError(f"a confidence is a probability between 0 and 1, got {c}")
            a *= c
            survivals.append(a)
    survivals.sort(reverse=True)
    tau, admitted = float(len(rows)), 0
    best = tau / seconds[0]
    for m, a in enumerate(survivals, start=1):
        if a == 0.0:
            break
        tau += a
        if tau / seconds[m] > best:
            best, admitted = tau / seconds[m], m
    return admitted


def searched_lengths(confidence: ArrayLike, capacity: Capacity) -> NDArray[np.int64]:  # [R, K] -> [R]
    """The lengths at that best point. On confidences of the present this is the counterexample itself."""
    path = throughput_path(_batch(confidence), capacity)
    return path.lengths(int(np.argmax(path.theta)), len(np.asarray(confidence)))


def exhaustive_lengths(confidence: ArrayLike, capacity: Capacity) -> NDArray[np.int64]:  # [R, K] -> [R]
    """The lengths of highest Theta among all (1 + K)^R, by trying them: what the fast ways are held against."""
    a = survival(_batch(confidence))
    gain = np.concatenate([np.zeros((len(a), 1)), np.cumsum(a, axis=1)], axis=1)
    lengths = np.array(list(product(range(gain.shape[1]), repeat=len(a))))  # [N, R]
    tau = len(a) + gain[np.arange(len(a)), lengths].sum(1)
    theta = tau / capacity.seconds(len(a) + lengths.sum(1), len(a))
    return np.asarray(lengths[int(np.argmax(theta))], dtype=np.int64)


def _batch(confidence: ArrayLike) -> F64:
    table = np.asarray(confidence, dtype=np.float64)
    if not len(table):
        raise ValueError("there is nothing to schedule: the batch is empty")
    return table
