r"""What one engine step takes: SPS(B), steps per second with B tokens in the target's forward (paper, section 3.2.2).

Kept are seconds, measured at some sizes, jagged as they come. Between two sizes time is interpolated linearly; below
the smallest it is the smallest's, since a forward reads all weights however few tokens it has; above the largest it
grows in proportion to the tokens, which is what a device does that has no idle arithmetic left. So SPS is never made
up to be better than what was measured.

A step also drafts. A drafter's time does not depend on what is verified, but it does decide how much verifying is
worth: of a step that is mostly drafting, one more verified token is a small part. So a capacity holds both,

    seconds(B, R, d) = draft_d(R) + verify(B) + R read,   SPS(B) = 1 / seconds(B, R, d)    for R requests,

where d tokens are drafted for each of them. Drafting takes no time where the curve already speaks of whole steps, as in
the paper's examples. ``read`` is what a request costs however much of it is verified: its keys and values, read once a
step. A curve that was measured holds that already, for the requests it was measured with, and ``read`` is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from companion.protocols import RequestView

F64 = NDArray[np.float64]
CONTEXT_STEP = 16  # tokens


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds over a size, at least at one size; sizes rise, gaps are fine. ValueError for what is no time."""

    sizes: tuple[int, ...]  # [n]
    seconds: tuple[float, ...]  # [n]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.seconds) or not self.sizes:
            raise ValueError(
                f"a curve needs a time for each size and one of them at least, got {len(self.sizes)} sizes and "
                f"{len(self.seconds)} times"
            )
        if any(not hasattr(size, "__index__") or size < 1 for size in self.sizes) or any(
            b <= a for a, b in zip(self.sizes, self.sizes[1:], strict=False)
        ):
            raise ValueError(f"sizes must be whole numbers from 1 on that rise, got {list(self.sizes)}")
        if not all(0.0 < s < math.inf for s in self.seconds):  # NaN compares false
            raise ValueError(f"times must be positive and finite, got {list(self.seconds)}; measure the sizes anew")

    def __call__(self, size: ArrayLike) -> F64:  # [...] -> [...] seconds
        """Interpolated in between, constant below the smallest size, proportional above the largest."""
        wanted = np.asarray(size, dtype=np.float64)
        inside = np.interp(wanted, self.sizes, self.seconds)
        return np.asarray(inside * np.maximum(wanted / self.sizes[-1], 1.0))


@dataclass(frozen=True, slots=True)
class Capacity:
    """``verify`` over the tokens in a target forward, ``draft[d - 1]`` over the requests that d tokens are drafted for
    (none: no time), and ``read`` seconds for each request. ValueError for a ``read`` that is no time."""

    verify: Curve
    draft: tuple[Curve, ...] = ()  # [D]
    read: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.read) and self.read >= 0):
            raise ValueError(f"reading a request's keys and values takes a finite time of at least 0, got {self.read}")

    @classmethod
    def of_steps(cls, steps_per_second: Mapping[int, float] | Sequence[float]) -> Capacity:
        """From SPS itself: {B: steps per second}, or a list that begins at B = 1. ValueError for zero or less."""
        table = steps_per_second
        if not isinstance(table, Mapping):
            table = dict(enumerate(table, start=1))
        if not all(np.isfinite(s) and s > 0 for s in table.values()):
            raise ValueError(
                f"steps per second must be positive and finite, got {table}; leave a size out that cannot be served"
            )
        sizes = sorted(table)
        return cls(Curve(tuple(sizes), tuple(1.0 / table[size] for size in sizes)))

    def seconds(
        self, tokens: ArrayLike, requests: int, drafted: int | None = None, depth: int | None = None
    ) -> F64:  # [...] -> [...]
        """Of a step of ``requests`` with ``tokens`` in all, anchors included, that drafts ``depth`` tokens (None: the
        whole block) for ``drafted`` of them (None: for all)."""
        drafting = self.drafting(requests if drafted is None else drafted, depth)
        return np.asarray(self.verify(tokens) + self.read * requests + drafting)

    def drafting(self, requests: int, depth: int | None = None) -> float:
        """Seconds to draft ``depth`` tokens for each of ``requests``; None, or more than is known: the whole block.
        ValueError for fewer than none."""
        if requests < 0 or (depth is not None and depth < 0):
            raise ValueError(f"drafting is for 0 requests or more and 0 tokens or more, got {requests} and {depth}")
        if not self.draft or not requests or depth == 0:
            return 0.0
        known = len(self.draft) if depth is None else min(depth, len(self.draft))
        return float(self.draft[known - 1](requests))

    def seconds_by_depth(self, depths: ArrayLike, requests: int) -> F64:  # [...] -> [...]
        """Of steps in which each of ``requests`` drafts and verifies so many tokens; at depth 0 it only decodes."""
        wanted = np.asarray(depths, dtype=np.int64)
        drafting = np.vectorize(lambda d: self.drafting(requests, int(d)), otypes=[float])(wanted)
        return np.asarray(self.seconds(requests * (1 + wanted), requests, drafted=0) + drafting)

    def __hash__(self) -> int:
        """Of a few times only: schedulers look a capacity up in every step."""
        return hash((self.verify.seconds[0], self.verify.seconds[-1], self.read, len(self.draft)))

    def steps_per_second(self, tokens: ArrayLike, requests: int) -> F64:  # [...] -> [...]
        """SPS(B)."""
        return np.asarray(1.0 / self.seconds(tokens, requests))

    def at(self, context: float) -> Capacity:
        """The curve at a mean context length: this one knows only one."""
        return self


@dataclass(frozen=True, slots=True)
class CapacityTable:
    """Curves at several mean context lengths, since attention reads what was said before.

    Between two contexts times are interpolated linearly, beyond the longest they go on along the last two (never below
    the longest's), below the shortest they are the shortest's. ``reads`` and ``drafts`` have the `Capacity.read` and
    `Capacity.draft` of each context, or nothing for none. ValueError unless contexts are whole numbers that rise and
    all curves of a kind have the same sizes.
    """

    contexts: tuple[int, ...]  # [C]
    curves: tuple[Curve, ...]  # [C] over tokens
    drafts: tuple[tuple[Curve, ...], ...] = ()  # [C][D] over requests, or none
    reads: tuple[float, ...] = ()  # [C] or none
    provenance: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        whole = all(hasattr(context, "__index__") for context in self.contexts)
        rising = whole and all(b > a for a, b in zip(self.contexts, self.contexts[1:], strict=False))
        if not self.contexts or len(self.contexts) != len(self.curves) or not rising or self.contexts[0] < 0:
            raise ValueError(f"a capacity table needs a curve for each of some rising contexts, got {self.contexts}")
        if len({curve.sizes for curve in self.curves}) > 1:
            raise ValueError("all curves of a capacity table need the same sizes")
        if self.reads and len(self.reads) != len(self.contexts):
            raise ValueError(f"got {len(self.reads)} reading times for {len(self.contexts)} contexts; give one of each")
        if not all(0.0 <= read < math.inf for read in self.reads):
            raise ValueError(f"reading times must be finite and at least 0, got {list(self.reads)}")
        depths, requests = {len(own) for own in self.drafts}, {c.sizes for own in self.drafts for c in own}
        if self.drafts and (len(self.drafts) != len(self.contexts) or len(depths) > 1 or len(requests) > 1):
            raise ValueError("every context needs drafting times of the same depths and the same numbers of requests")

    def __hash__(self) -> int:
        """Of a few times only: schedulers look a table up in every step."""
        return hash((self.contexts, self.curves[0].seconds[0], self.curves[-1].seconds[-1]))

    def at(self, context: float) -> Capacity:
        """The curve at a mean context length."""
        return _at(self, float(context))


def mean_context(requests: Sequence[RequestView]) -> float:
    """What a scheduler asks `at` for: mean text length of the requests of a step, of which there is one at least, to
    the nearest `CONTEXT_STEP`, so that most steps ask what was asked before."""
    mean = sum(view.position for view in requests) / len(requests)
    return CONTEXT_STEP * round(mean / CONTEXT_STEP)


@lru_cache(maxsize=4096)
def step_seconds(capacity: Capacity, requests: int, slots: int) -> F64:  # -> [slots + 1]
    """Of steps with 0, 1, .. ``slots`` drafted tokens of all ``requests`` in the forward. Remembered, hence read-only:
    the mean context and the number of requests change slowly, and most steps ask what was asked before."""
    seconds = capacity.seconds(np.arange(requests, requests + slots + 1), requests)
    seconds.flags.writeable = False
    return seconds


@lru_cache(maxsize=1024)  # a scheduler and whoever times it ask alike
def _at(table: CapacityTable, context: float) -> Capacity:
    count = len(table.contexts)
    reads, drafts = table.reads or (0.0,) * count, table.drafts or ((),) * count
    times = np.array(
        [
            (read, *curve.seconds, *(s for own in draft for s in own.seconds))
            for read, curve, draft in zip(reads, table.curves, drafts, strict=True)
        ]
    )  # [C, 1 + n + D m]
    x = np.array(table.contexts, dtype=np.float64)
    if context > x[-1] and len(x) > 1:
        slope = np.maximum(times[-1] - times[-2], 0.0) / (x[-1] - x[-2])
        found = times[-1] + slope * (context - x[-1])
    else:
        above = min(int(np.searchsorted(x, context)), len(x) - 1)
        below = max(above - 1, 0)
        share = (np.clip(context, x[below], x[above]) - x[below]) / max(x[above] - x[below], 1.0)
        found = times[below] + share * (times[above] - times[below])
    read, *seconds = found.tolist()
    curves = []
    for curve in (table.curves[0], *drafts[0]):
        own, seconds = seconds[: len(curve.sizes)], seconds[len(curve.sizes) :]
        curves.append(Curve(curve.sizes, tuple(own)))
    return Capacity(curves[0], tuple(curves[1:]), read)
