"""Bars, cells and entropy summaries of the target's evaluation, all computed from its rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel

from companion.experiments.bars import Bar, judge
from companion.experiments.target_rows import Response
from companion.metrics import wilson
from companion.training.corpus import DOMAINS, MODES, Domain, Kind, Mode

LONG_SPAN = 100  # tokens


class Proportion(BaseModel):
    """``hits`` of ``trials``, with the Wilson 95 % interval."""

    hits: int
    trials: int
    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, hits: Sequence[bool]) -> Proportion:
        n, k = len(hits), sum(hits)
        low, high = wilson(k, n) if n else (None, None)
        return cls(hits=k, trials=n, value=k / n if n else None, low=low, high=high)

    def __str__(self) -> str:
        if self.value is None:
            return "no data"
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}] ({self.hits}/{self.trials})"  # type: ignore[operator]


class Cell(BaseModel):
    """One domain, mode, temperature and held-out kind."""

    temperature: float
    domain: Domain
    mode: Mode
    kind: Kind
    right: Proportion | None
    span_ok: Proportion
    ended: Proportion
    families: dict[str, Proportion]
    mean_tokens: float
    mean_think_tokens: float
    long_spans: Proportion | None  # think spans of at least 100 tokens


class EntropySummary(BaseModel):
    """Entropy of the next-token distribution at temperature 1, nats, over all generated tokens of a phase."""

    domain: Domain
    mode: Mode
    phase: Literal["think", "output"]
    tokens: int
    mean: float
    below_005: float
    above_1: float
    above_2: float
    quantiles: dict[str, float]
    maximum: float


def cells(rows: Sequence[Response]) -> list[Cell]:
    """One summary per sampled cell, in the order in which they were sampled."""
    groups: dict[tuple[float, Domain, Mode, Kind], list[Response]] = defaultdict(list)
    for r in rows:
        groups[r.cell].append(r)
    made = []
    for (temperature, domain, mode, kind), group in groups.items():
        families: dict[str, list[bool]] = defaultdict(list)
        for r in group:
            if r.right is not None:
                families[r.family].append(r.right)
        think = mode == "think"
        made.append(
            Cell(
                temperature=temperature,
                domain=domain,
                mode=mode,
                kind=kind,
                right=None if domain == "chat" else Proportion.of([bool(r.right) for r in group]),
                span_ok=Proportion.of([r.span_ok for r in group]),
                ended=Proportion.of([r.ended for r in group]),
                families={k: Proportion.of(v) for k, v in sorted(families.items())},
                mean_tokens=float(np.mean([r.tokens for r in group])),
                mean_think_tokens=float(np.mean([r.think_tokens for r in group])),
                long_spans=Proportion.of([r.think_tokens >= LONG_SPAN for r in group]) if think else None,
            )
        )
    return made


def bars(rows: Sequence[Response], wanted: int) -> list[Bar]:
    """The demands of the model card on standard held-out prompts; fewer than ``wanted`` responses are inconclusive."""

    def pick(temperature: float, domain: Domain, mode: Mode) -> list[Response]:
        return [r for r in rows if r.cell == (temperature, domain, mode, "standard")]

    def share(name: str, threshold: float, group: list[Response], hit: Callable[[Response], bool]) -> Bar:
        p = Proportion.of([hit(r) for r in group])
        return judge(name, threshold, p.value, p.low, p.high, p.trials, enough=p.trials >= wanted)

    found = [
        share("right, math, thinking, T 0.7", 0.92, pick(0.7, "math", "think"), lambda r: bool(r.right)),
        share("right, code, thinking, T 0.7", 0.90, pick(0.7, "code", "think"), lambda r: bool(r.right)),
    ]
    on, off = pick(0.7, "math", "think"), pick(0.7, "math", "no_think")
    a, b = Proportion.of([bool(r.right) for r in on]), Proportion.of([bool(r.right) for r in off])
    gain, low, high = newcombe(a, b)
    enough = min(a.trials, b.trials) >= wanted
    found.append(judge("thinking pays, math, T 0.7", 0.25, gain, low, high, min(a.trials, b.trials), enough=enough))
    for temperature, threshold in ((0.7, 0.99), (1.0, 0.985)):
        for domain in DOMAINS:
            for mode in MODES:
                group = pick(temperature, domain, mode)
                what = "span opened and closed" if mode == "think" else "no think token"
                where = f"{domain}, {mode}, T {temperature}"
                found.append(share(f"{what}, {where}", threshold, group, lambda r: r.span_ok))
                found.append(share(f"ends by itself, {where}", threshold, group, lambda r: r.ended))
    return found


def newcombe(a: Proportion, b: Proportion) -> tuple[float | None, float | None, float | None]:
    """a - b with Newcombe's 95 % interval (method 10: the two Wilson intervals combined)."""
    if a.value is None or b.value is None:
        return None, None, None
    (a_low, a_high), (b_low, b_high) = wilson(a.hits, a.trials), wilson(b.hits, b.trials)
    gain = a.value - b.value
    low = gain - math.hypot(a.value - a_low, b_high - b.value)
    return gain, low, gain + math.hypot(a_high - a.value, b.value - b_low)


def entropies(rows: Sequence[Response]) -> list[EntropySummary]:
    """Entropy by domain, mode and phase, from the responses sampled at temperature 1."""
    made = []
    for domain in DOMAINS:
        for mode in MODES:
            group = [r for r in rows if r.cell == (1.0, domain, mode, "standard")]
            phases: dict[Literal["think", "output"], list[float]] = {
                "think": [h for r in group for h in r.entropy_think],
                "output": [h for r in group for h in r.entropy_output],
            }
            for phase, values in phases.items():
                if values:
                    made.append(_summary(domain, mode, phase, np.array(values)))
    return made


def _summary(domain: Domain, mode: Mode, phase: Literal["think", "output"], h: np.ndarray) -> EntropySummary:
    levels = (0.5, 0.75, 0.9, 0.95, 0.99)
    return EntropySummary(
        domain=domain,
        mode=mode,
        phase=phase,
        tokens=len(h),
        mean=float(h.mean()),
        below_005=float((h < 0.05).mean()),
        above_1=float((h > 1).mean()),
        above_2=float((h > 2).mean()),
        quantiles={str(q): float(v) for q, v in zip(levels, np.quantile(h, levels), strict=True)},
        maximum=float(h.max()),
    )
