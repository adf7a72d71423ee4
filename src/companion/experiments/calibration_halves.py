"""Temperatures from one half of the prompts, used on the other: other domains, phases, samplings, the real loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel

from companion.calibration import GRID, Temperatures, ece, fit, group_counts
from companion.experiments.calibration_blocks import ALL, PHASES, Judged
from companion.experiments.calibration_cells import Evaluation, numbers
from companion.resampling import F64, Interval
from companion.training.corpus import DOMAINS

PAPER = "sts"
MIX, OFF = "mix", "off"
LABEL = "1"  # the sampling that the head's label speaks of


class Config(BaseModel):
    resamples: int = 1000
    seed: int = 0


class Shift(BaseModel):
    """ECE over all positions when temperatures fitted on ``fitted_on`` are used on ``used_on``."""

    what: str  # domain, phase or sampling (which for the real loop is `loop` and its temperature)
    method: str
    fitted_on: str
    used_on: str
    ece: float
    low: float
    high: float
    analytic: float | None
    gain: float  # ECE without temperatures minus this one, on the same resampled prompts
    gain_low: float
    gain_high: float


class Limit(BaseModel):
    """Position 1 of a domain inside the span: what no temperature gets below, however it is fitted.

    ``best`` is the least ECE over the whole grid on the very blocks it is judged by, ``least`` that of T without bound,
    where every forecast is one half; both on chances. ``positive`` is the share of blocks with a positive logit.
    """

    domain: str
    blocks: int
    outcome: float
    positive: float
    outcome_of_positive: float
    before: float
    best_temperature: float
    best: float
    least: float


class Halves:
    """The blocks of each sampling, halved by prompt: even numbers to fit on, odd ones to score."""

    def __init__(self, blocks: Mapping[str, Judged], shares: F64, config: Config, drafter: Mapping[str, Any]) -> None:
        self.blocks, self.shares, self.config, self.drafter = blocks, shares, config, drafter
        self.temperatures: dict[str, list[float]] = {}
        self._fitted: dict[str, Temperatures] = {}
        self._scored: dict[tuple[str, str, str], Evaluation] = {}

    def fit(self, method: str, sampling: str, phase: str = OFF, domain: str = MIX, half: int = 0) -> Temperatures:
        """Temperatures from one half of the prompts; ValueError where that half has no blocks."""
        key = f"{sampling} {phase} {domain} {method} {'even' if half == 0 else 'odd'}"
        if key not in self._fitted:
            own = self.blocks[sampling].of(phase, ALL if domain == MIX else domain)
            own = own.where(own.prompt % 2 == half)
            if domain == MIX:
                own = own.where(self._in_mix(own))
            self._fitted[key] = fit(method, own.logits, own.accepted, own.judged, drafter=self.drafter)
            self.temperatures[key] = [round(t, 2) for t in self._fitted[key].values]
        return self._fitted[key]

    def _in_mix(self, blocks: Judged) -> Any:  # -> [n]
        """So many prompts of each domain as its share of the training traces says."""
        kept = np.zeros(len(blocks.prompt), dtype=bool)
        for domain, share in enumerate(self.shares):
            own = np.unique(blocks.prompt[blocks.domain == domain])
            kept |= np.isin(blocks.prompt, own[: round(len(own) * float(share / self.shares.max()))])
        return kept

    def phases(self) -> list[str]:
        """Those that are there at the sampling of the label, in both halves."""
        blocks = self.blocks[LABEL]
        seen = [blocks.prompt[blocks.phase == i] % 2 for i in range(len(PHASES))]
        return [phase for phase, halves in zip(PHASES, seen, strict=True) if {0, 1} <= set(halves.tolist())]

    def score(self, sampling: str, phase: str = OFF, domain: str = ALL) -> Evaluation:
        """The held-out half."""
        key = sampling, phase, domain
        if key not in self._scored:
            own = self.blocks[sampling].of(phase, domain)
            odd = own.where(own.prompt % 2 == 1)
            self._scored[key] = Evaluation(odd, self.shares, domain == ALL, self.config.resamples, self.config.seed)
        return self._scored[key]


def shifts(halves: Halves) -> Iterator[Shift]:
    """One thing changed at a time, at the sampling of the label: the domain, the phase, the sampling itself."""
    for method in (PAPER, "nll", "nll-pull"):
        for used in DOMAINS:
            for fitted in (MIX, *DOMAINS):
                t = halves.fit(method, LABEL, OFF, fitted)
                yield _shift("domain", halves.score(LABEL, OFF, used), t, fitted, used)
        for phase in halves.phases():
            for other in halves.phases():
                t = halves.fit(method, LABEL, other, MIX)
                yield _shift("phase", halves.score(LABEL, phase), t, other, phase)
        for sampling in halves.blocks:
            for source in halves.blocks:
                yield _shift("sampling", halves.score(sampling), halves.fit(method, source), source, sampling)


def _shift(what: str, e: Evaluation, t: Temperatures, fitted_on: str, used_on: str) -> Shift:
    """Scored beside no temperatures at all."""
    before, after = e.error(Temperatures.ones(t.positions)), e.error(t)
    analytic = e.score(ece, e.counts(e.forecasts(t), e.blocks.expected))[0][0]
    own, gain = (
        Interval.of(float(value), draws)
        for value, draws in ((after[0][0], after[1][:, 0]), (before[0][0] - after[0][0], (before[1] - after[1])[:, 0]))
    )
    return Shift(
        what=what,
        method=t.method,
        fitted_on=fitted_on,
        used_on=used_on,
        ece=round(own.value, 5),
        low=round(own.low, 5),
        high=round(own.high, 5),
        analytic=numbers(analytic[None])[0],
        gain=round(gain.value, 5),
        gain_low=round(gain.low, 5),
        gain_high=round(gain.high, 5),
    )


def limits(halves: Halves) -> Iterator[Limit]:
    """Of all domains inside the span, and of each."""
    for domain in (ALL, *DOMAINS):
        blocks = halves.blocks[LABEL].of("span", domain)
        if not len(blocks.logits):
            continue
        everyone = np.zeros(len(blocks.logits), dtype=np.int64)

        def error(forecast: F64, blocks: Judged = blocks, group: Any = everyone) -> float:  # [n]
            one = slice(0, 1)
            counts = group_counts(forecast[:, None], blocks.expected[:, one], blocks.judged[:, one], group, 1)
            return float(ece(counts[0]))

        first = blocks.logits[:, 0]
        errors = [error(Temperatures("any", (float(t),)).of_logits(first[:, None])[:, 0]) for t in GRID]
        positive = first > 0
        yield Limit(
            domain=domain,
            blocks=len(first),
            outcome=round(float(blocks.expected[:, 0].mean()), 5),
            positive=round(float(positive.mean()), 5),
            outcome_of_positive=round(float(blocks.expected[positive, 0].mean()), 5),
            before=round(error(Temperatures.ones(1).of_logits(first[:, None])[:, 0]), 5),
            best_temperature=round(float(GRID[int(np.argmin(errors))]), 2),
            best=round(min(errors), 5),
            least=round(error(np.full(len(first), 0.5)), 5),
        )
