"""Measured runs and rates for tests of what uses them: the numbers are made up, the description is complete."""

from __future__ import annotations

from datetime import date
from typing import Any

from companion.phase.origin import Measured
from companion.phase.rates import MeasuredRates, PhaseRate
from companion.protocols import Phase, RequestView, Sampling
from companion.resampling import Interval
from companion.scheduling.capacity import Capacity, Curve
from companion.scheduling.phase_hook import PhaseHook, Serving

FLAT = Capacity(Curve((1, 64), (1.0, 1.0)), (Curve((1,), (0.5,)),) * 7)  # drafting costs half a step, verifying nothing
DEAR = Capacity(Curve((1, 64), (1.0, 64.0)))  # a token in the forward costs a step
SERVING = Serving("table", "table-drafter", "t1", "d1")


def run_of(**changes: Any) -> Measured:
    described: dict[str, Any] = {
        "harness": "companion 0",
        "target": "table",
        "target_revision": "t1",
        "drafter": "table-drafter",
        "drafter_revision": "d1",
        "thinking": True,
        "sampling": Sampling(),
        "seeds": (0,),
        "prompt_set": "0" * 64,
        "hardware": "cpu",
        "recorded_on": date(2026, 8, 7),
        "depth": 7,
        "untrimmed": True,
    }
    return Measured(**(described | changes))


def phase_rate(a: float, curve: list[float] | None = None, width: float = 0.0) -> PhaseRate:
    """``width`` to both sides of every rate."""

    def around(value: float) -> Interval:
        return Interval(value, max(0.0, value - width), min(1.0, value + width))

    return PhaseRate(around(a), None if curve is None else tuple(around(c) for c in curve))


def rates_of(think: PhaseRate | float, output: PhaseRate | float, **run: Any) -> MeasuredRates:
    made = [rate if isinstance(rate, PhaseRate) else phase_rate(rate) for rate in (think, output)]
    return MeasuredRates(run_of(**run), made[0], made[1])


def view(
    phase: Phase = "think", entropy: float | None = None, sampling: Sampling | None = None, **fields: Any
) -> RequestView:
    return RequestView(
        0, fields.pop("position", 40), phase, 99, last_entropy=entropy, sampling=sampling or Sampling(), **fields
    )


def hook(**options: Any) -> PhaseHook:
    return PhaseHook(**({"deterministic": True} | options))


def calibrated(think: PhaseRate | float, output: PhaseRate | float, *, depth: int = 7, **options: Any) -> PhaseHook:
    return hook(rates=rates_of(think, output, depth=depth), serving=SERVING, max_depth=depth, **options)
