"""Throughput against the speed of a user, read off a sweep over concurrencies (paper, Figure 7).

A policy's curve goes through its points from the lowest to the highest concurrency, straight in between. At a demanded
speed it offers the highest throughput at which the mean user is at least as fast; at a demanded throughput it offers
the highest speed. Nothing is read off beyond the points that were simulated: where no curve reaches, there is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from companion.experiments.simulation.points import Point

STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)  # demanded speeds, in those of plain decoding for a user alone


class Agreement(BaseModel):
    """A demanded speed, and what a policy serves at it."""

    table: str
    temperature: float
    times_plain: float
    speed: float  # tokens per second of a user
    policy: str
    throughput: float | None
    over_mtp: float | None  # over that of static depth 1 at the same speed


class Matched(BaseModel):
    """The speed of a user at the throughput that static depth 1 has at this concurrency."""

    table: str
    temperature: float
    concurrency: int
    throughput: float
    policy: str
    speed: float | None
    over_mtp: float | None


def throughput_at(curve: Sequence[Point], speed: float) -> float | None:
    """Highest throughput at which users are at least so fast."""
    return _highest([p.speed.value for p in curve], [p.throughput.value for p in curve], speed)


def speed_at(curve: Sequence[Point], throughput: float) -> float | None:
    """Highest speed of users at which the system is at least so fast."""
    return _highest([p.throughput.value for p in curve], [p.speed.value for p in curve], throughput)


def _highest(x: Sequence[float], y: Sequence[float], demanded: float) -> float | None:
    """Highest y on the polyline with x >= demanded."""
    found = [b for a, b in zip(x, y, strict=True) if a >= demanded]
    for (x0, y0), (x1, y1) in zip(zip(x, y, strict=True), list(zip(x, y, strict=True))[1:], strict=False):
        if min(x0, x1) < demanded <= max(x0, x1):
            found.append(y0 + (y1 - y0) * (demanded - x0) / (x1 - x0))
    return max(found) if found else None


def agreements(points: Sequence[Point]) -> Iterator[Agreement]:
    """Every policy of every sweep at every demanded speed."""
    for curves in _sweeps(points):
        alone = curves["plain"][0].speed.value
        for times in STEPS:
            base = throughput_at(curves["fixed-1"], times * alone)
            for policy, curve in curves.items():
                found = throughput_at(curve, times * alone)
                yield Agreement(
                    table=curve[0].table,
                    temperature=curve[0].temperature,
                    times_plain=times,
                    speed=times * alone,
                    policy=policy,
                    throughput=found,
                    over_mtp=found / base if found is not None and base else None,
                )


def matched(points: Sequence[Point]) -> Iterator[Matched]:
    """Every policy of every sweep at every throughput of static depth 1."""
    for curves in _sweeps(points):
        for base in curves["fixed-1"]:
            for policy, curve in curves.items():
                found = speed_at(curve, base.throughput.value)
                yield Matched(
                    table=base.table,
                    temperature=base.temperature,
                    concurrency=base.concurrency,
                    throughput=base.throughput.value,
                    policy=policy,
                    speed=found,
                    over_mtp=None if found is None else found / base.speed.value,
                )


def _sweeps(points: Sequence[Point]) -> Iterator[dict[str, list[Point]]]:
    """The curves of each table and temperature that has plain decoding and static depth 1."""
    for table, temperature in dict.fromkeys((p.table, p.temperature) for p in points):
        own = [p for p in points if (p.table, p.temperature) == (table, temperature)]
        curves: dict[str, list[Point]] = {}
        for point in sorted(own, key=lambda p: p.concurrency):
            curves.setdefault(point.policy, []).append(point)
        if {"plain", "fixed-1"} <= curves.keys():
            yield curves
