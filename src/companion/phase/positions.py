"""Acceptance along the draft, and accepted length along the sequence, each phase by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from companion.phase.estimate import Estimate, from_residuals, ratio
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


def matched_positions(
    first: Iterable[Step], second: Iterable[Step], *, width: int, clusters: int = 2
) -> Matched | None:
    """Mean accepted length of ``first`` minus ``second``, compared only where both have steps in the sequence.

    Positions fall into bins of ``width`` tokens; a bin counts if each side has steps of ``clusters`` clusters in it,
    and weighs as the smaller of its two step counts. So output steps with thinking on, which come late, are held
    against those with thinking off that come as late. None where no bin counts; ValueError for a width or a number of
    clusters below 1.
    """
    if width < 1 or clusters < 1:
        raise ValueError(f"a bin is at least one token wide and needs at least one cluster, got {width} and {clusters}")
    one, two = _by_bin(first, width), _by_bin(second, width)
    shared = [
        place
        for place in sorted(one.keys() & two.keys())
        if min(len({s.cluster for s in side[place]}) for side in (one, two)) >= clusters
    ]
    weights = {place: min(len(one[place]), len(two[place])) for place in shared}
    a, b = _weighted_mean(one, weights), _weighted_mean(two, weights)
    if a is None or b is None:
        return None
    covered = [sum(len(side[place]) for place in shared) / sum(map(len, side.values())) for side in (one, two)]
    return Matched(a - b, len(shared), *covered)


def _by_bin(steps: Iterable[Step], width: int) -> dict[int, list[Step]]:
    found: defaultdict[int, list[Step]] = defaultdict(list)
    for step in steps:
        found[step.position // width].append(step)
    return dict(found)


def _weighted_mean(bins: Mapping[int, Sequence[Step]], weights: Mapping[int, int]) -> Estimate | None:
    """Mean length of each bin, averaged with ``weights``; a cluster's term gathers its part in every bin."""
    total, value = sum(weights.values()), 0.0
    residuals: defaultdict[str, float] = defaultdict(float)
    for place, weight in weights.items():
        mean = sum(step.length for step in bins[place]) / len(bins[place])
        value += weight / total * mean
        for step in bins[place]:
            residuals[step.cluster] += weight / total * (step.length - mean) / len(bins[place])
    return from_residuals(value, residuals) if residuals else None
