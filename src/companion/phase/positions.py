"""Acceptance along the draft, and accepted length along the sequence, each phase by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from companion.phase.estimate import Estimate, combination, ratio
from companion.phase.ledger import Step
from companion.phase.straddle import StraddlePolicy, shares
from companion.phase.tracker import straddles
from companion.protocols import Phase


@dataclass(frozen=True, slots=True)
class Position:
    """Conditional acceptance at one draft position: accepted / judged, uncertain by response."""

    accepted: int
    judged: int
    rate: Estimate


def conditional_curve(steps: Iterable[Step], phase: Phase, policy: StraddlePolicy = "exclude") -> list[Position]:
    """Conditional acceptance c_k at draft positions k = 1, 2, ... of one phase, as far as any draft was judged.

    c_k = steps that accepted k / steps whose slot k was judged. With ``by_token`` a slot belongs to the phase of the
    token that was committed there; the other policies place whole steps.
    """
    parts: defaultdict[int, list[tuple[str, float, float]]] = defaultdict(list)
    for step in steps:
        for k in range(1, step.judged + 1):
            if _belongs(step, k, phase, policy):
                parts[k].append((step.cluster, float(k <= step.accepted), 1.0))
    curve = []
    for k in range(1, max(parts, default=0) + 1):
        rate = ratio(parts[k])
        if rate is None:  # by token, a phase may begin behind the first slots; a curve begins at the first
            break
        curve.append(Position(int(sum(n for _, n, _ in parts[k])), len(parts[k]), rate))
    return curve


def _belongs(step: Step, k: int, phase: Phase, policy: StraddlePolicy) -> bool:
    if policy == "by_token" and straddles(step.phases):
        return step.phases[k - 1] == phase
    return bool(shares(step.phases, policy)[phase == "output"])


@dataclass(frozen=True, slots=True)
class Matched:
    """Difference in mean accepted length at matched positions, and how much of either side it rests on."""

    difference: Estimate
    bins: int
    first_covered: float  # share of the first side's steps that lie in a bin of both
    second_covered: float


def matched_positions(first: Iterable[Step], second: Iterable[Step], *, width: int) -> Matched | None:
    """Mean accepted length of ``first`` minus ``second``, compared only where both have steps in the sequence.

    Positions fall into bins of ``width`` tokens; a bin weighs as the smaller of its two step counts. So output steps
    with thinking on, which come late, are held against those with thinking off that come as late. None where no bin has
    steps of both; ValueError unless the width is at least 1.
    """
    if width < 1:
        raise ValueError(f"the width of a bin must be at least one token, got {width}")
    one, two = _by_bin(first, width), _by_bin(second, width)
    shared = sorted(one.keys() & two.keys())
    if not shared:
        return None
    total = sum(min(len(one[b]), len(two[b])) for b in shared)
    means = {b: (ratio(_lengths(one[b])), ratio(_lengths(two[b]))) for b in shared}
    return Matched(
        difference=combination(
            (min(len(one[b]), len(two[b])) / total, a - c)
            for b, (a, c) in means.items()
            if a is not None and c is not None
        ),
        bins=len(shared),
        first_covered=sum(len(one[b]) for b in shared) / sum(map(len, one.values())),
        second_covered=sum(len(two[b]) for b in shared) / sum(map(len, two.values())),
    )


def _by_bin(steps: Iterable[Step], width: int) -> dict[int, list[Step]]:
    found: defaultdict[int, list[Step]] = defaultdict(list)
    for step in steps:
        found[step.position // width].append(step)
    return dict(found)


def _lengths(steps: Iterable[Step]) -> list[tuple[str, float, float]]:
    return [(step.cluster, step.length, 1.0) for step in steps]
