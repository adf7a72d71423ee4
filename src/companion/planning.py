r"""Draft depth from one acceptance figure: the note's throughput proxy (its section 6) under two readings of it.

    Theta(g) = E[tokens per round | depth g] / (F + c g),     F = verify_fixed_us,  c = draft_token_us + verify_token_us

* ``iid``: every slot is accepted with probability a, independently; E = tau(a, g). This is the note's planner.
* ``certified``: only the first slot is bounded, c_1 <= a, and the later ones may all be perfect; E = 1 + g a. This is
  all that Cor. 5 proves when a is a ceiling, since it speaks of one row.

The certified planner is bang-bang. Write Theta(g) = (1 + g a) / (F + c g): its derivative in g has the sign of
a F - c, whatever g is, so the depth is the largest allowed if a > c / F and the smallest otherwise. At the default
costs c / F = 65 / 900 = 0.0722, which for V = 151,936 means full depth up to H = 11.33 nats. Every intermediate depth
in the note's table is the i.i.d. assumption's word, not the theorem's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from companion.accepted_length import certified_tau, tau

F64 = NDArray[np.float64]
Planner = Literal["iid", "certified"]

_EXPECTED_TOKENS: dict[Planner, Callable[[ArrayLike, ArrayLike], F64]] = {"iid": tau, "certified": certified_tau}
_TIE = 1e-12  # relative: equal in exact arithmetic, told apart only by rounding


class Cycle(Protocol):
    """What a round takes, by its depth: the note's line below, or what a machine was measured to take."""

    def cycle_us(self, depth: ArrayLike) -> F64:  # [D] -> [D]
        """Microseconds of a round that drafts and verifies ``depth`` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class CostModel:
    """Time of one round as a line in its depth. The defaults are the note's placeholders: they order depths sensibly
    and measure no hardware; put your own in before believing a depth."""

    draft_token_us: float = 40.0
    verify_fixed_us: float = 900.0
    verify_token_us: float = 25.0

    def __post_init__(self) -> None:
        for name in ("draft_token_us", "verify_fixed_us", "verify_token_us"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be a finite number of microseconds >= 0, got {value}")
        if self.verify_fixed_us <= 0.0:
            raise ValueError("verify_fixed_us must be positive: even an empty draft costs one target forward")

    @property
    def token_us(self) -> float:
        """c: what one more drafted token adds."""
        return self.draft_token_us + self.verify_token_us

    def cycle_us(self, depth: ArrayLike) -> F64:
        """F + c g, microseconds."""
        return np.asarray(self.verify_fixed_us + self.token_us * np.asarray(depth, dtype=np.float64))

    @property
    def certified_threshold(self) -> float:
        """c / F: below or at this acceptance the certified planner answers the smallest depth."""
        return self.token_us / self.verify_fixed_us


@dataclass(frozen=True, slots=True)
class Plan:
    depth: int
    planner: Planner
    acceptance: float
    tokens_per_round: float  # expected (iid) or at most (certified)
    tokens_per_us: float  # Theta at that depth


def expected_tokens(
    acceptance: ArrayLike,  # [...]
    depths: ArrayLike,  # [D]
    planner: Planner = "iid",
) -> F64:  # [..., D]
    """Tokens of a round for every acceptance and every depth: tau (iid), or the most that may come (certified)."""
    if planner not in get_args(Planner):
        raise ValueError(f"unknown planner {planner!r}; choose one of {', '.join(get_args(Planner))}")
    rate = np.asarray(acceptance, dtype=np.float64)[..., None]
    return np.asarray(_EXPECTED_TOKENS[planner](rate, np.asarray(depths, dtype=np.float64)))


def throughput(
    acceptance: ArrayLike,  # [...]
    depths: ArrayLike,  # [D]
    cost: Cycle | None = None,
    planner: Planner = "iid",
) -> F64:  # [..., D] tokens per microsecond
    """Theta for every acceptance and every depth."""
    return np.asarray(expected_tokens(acceptance, depths, planner) / (cost or CostModel()).cycle_us(depths))


def best_index(theta: F64) -> NDArray[np.int64]:  # [..., D] -> [...]
    """Where Theta is largest: the first of those that are equal to 1e-12."""
    best = theta.max(-1, keepdims=True)
    return np.asarray((theta >= best * (1.0 - _TIE)).argmax(-1))


def plan_depths(
    acceptance: ArrayLike,  # [...]
    cost: Cycle | None = None,
    *,
    planner: Planner = "iid",
    min_depth: int = 1,
    max_depth: int = 7,
) -> NDArray[np.int64]:  # [...]
    """argmax of Theta over min_depth..max_depth for each acceptance; the smallest depth on ties (equal to 1e-12)."""
    if not 0 <= min_depth <= max_depth:
        raise ValueError(f"expected 0 <= min_depth <= max_depth, got {min_depth} and {max_depth}")
    return np.asarray(
        min_depth + best_index(throughput(acceptance, np.arange(min_depth, max_depth + 1), cost, planner))
    )


def plan_depth(
    acceptance: float,
    cost: Cycle | None = None,
    *,
    planner: Planner = "iid",
    min_depth: int = 1,
    max_depth: int = 7,
) -> Plan:
    """`plan_depths` for one request, with the figures behind the answer."""
    depth = int(plan_depths(acceptance, cost, planner=planner, min_depth=min_depth, max_depth=max_depth))
    theta = float(throughput(acceptance, [depth], cost, planner)[0])
    return Plan(depth, planner, acceptance, float(_EXPECTED_TOKENS[planner](acceptance, depth)), theta)
