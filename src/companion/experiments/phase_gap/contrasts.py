"""What several training seeds of a drafter say together, and what two drafters differ by on the same prompts.

Prompts and training seeds are both resampled (`companion.resampling`): a drafter is one draw of its training. The
prompts of both conditions, and of all drafters, are the same, so that every contrast is paired by prompt.

    difference in differences   (inside - outside) of one drafter minus (inside - outside) of another
    dose response               each side's mean accepted length by the share of thinking traces in the training
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel

from companion.experiments.phase_gap.gaps import Contrast, rounded
from companion.metrics import by_prompt, conditional_by_position
from companion.phase.straddle import StraddlePolicy, shares
from companion.resampling import F64, Interval, pooled, pooled_draws, prompt_weights, seed_weights
from companion.rounds import Round, Rounds

SIDES = ("think", "output", "off")
ALL = "all"
AT_LEAST = 30  # judged slots of a point on a position curve


class Pooled(BaseModel):
    """One drafter's sides, all its training seeds together."""

    drafter: str
    think_share: float | None
    seeds: int
    sampling: str
    domain: str  # or "all", which H1 never uses
    think: Contrast
    output: Contrast
    off: Contrast
    gap: Contrast  # think - output
    think_minus_off: Contrast
    output_minus_off: Contrast
    by_seed: list[float | None]  # the gap of each


class Point(BaseModel):
    """Conditional acceptance at one draft position of one side, training seeds pooled."""

    drafter: str
    sampling: str
    domain: str
    side: str
    position: int
    rate: Contrast
    judged: int


class Difference(BaseModel):
    """The gap of ``first``, trained without thinking traces, minus that of ``second``, which differs in its share of
    them (and the seeds) alone: difference in differences."""

    first: str
    second: str
    seeds: tuple[int, int]
    sampling: str
    domain: str
    share: float  # of the second's traces
    value: Contrast


class Dose(BaseModel):
    """Least-squares slope of a side's mean accepted length in the share of thinking traces: tokens from 0 to 100 %."""

    sampling: str
    domain: str
    side: str  # or "gap"
    drafters: list[str]
    shares: list[float]
    slope: Contrast


@dataclass(frozen=True, slots=True)
class Group:
    """One drafter at one sampling, seeds of training along the first axis; seeds of sampling are summed."""

    drafter: str
    think_share: float | None
    family: str | None
    sampling: str
    seeds: tuple[int, ...]
    length: Mapping[str, F64]  # side -> [S, P, 2] committed, steps
    conditional: Mapping[str, F64]  # side -> [S, P, K, 2] kept, judged


def sampling_name(sampling: Mapping[str, object]) -> str:
    """T0, or T1 k20 p0.95 where filters are on."""
    name = f"T{sampling['temperature']:g}"
    name += f" k{sampling['top_k']}" if sampling.get("top_k") else ""
    return name + (f" p{sampling['top_p']:g}" if sampling.get("top_p", 1) != 1 else "")


def groups_of(tables: Sequence[Rounds], straddle: StraddlePolicy = "exclude") -> list[Group]:
    """Drafters by sampling. ValueError where two recordings of one drafter have other training shares."""
    found: dict[tuple[str, str], dict[int, list[Rounds]]] = {}
    trained: dict[str, tuple[float | None, str | None]] = {}
    for table in tables:
        assert table.provenance is not None
        own = table.provenance["settings"]
        training = own["think_share"], own["family"]
        if trained.setdefault(own["drafter_name"], training) != training:
            raise ValueError(
                f"two drafters are called {own['drafter_name']} and were trained differently; give them names of "
                "their own"
            )
        key = own["drafter_name"], sampling_name(table.provenance["sampling"])
        found.setdefault(key, {}).setdefault(own["drafter_seed"], []).append(table)
    groups = []
    for (drafter, sampling), of_seed in found.items():
        counted = [_add([_counts(t, straddle) for t in of_seed[seed]]) for seed in sorted(of_seed)]
        groups.append(
            Group(
                drafter=drafter,
                think_share=trained[drafter][0],
                family=trained[drafter][1],
                sampling=sampling,
                seeds=tuple(sorted(of_seed)),
                length={side: np.stack([c[0][side] for c in counted]) for side in SIDES},
                conditional={side: np.stack([c[1][side] for c in counted]) for side in SIDES},
            )
        )
    return groups


Counts = tuple[dict[str, F64], dict[str, F64]]


def _add(counts: Sequence[Counts]) -> Counts:
    lengths, conditionals = zip(*counts, strict=True)
    return tuple({s: np.sum([c[s] for c in of], 0) for s in SIDES} for of in (lengths, conditionals))  # type: ignore[return-value]


def _counts(table: Rounds, straddle: StraddlePolicy) -> Counts:
    """Of one recording: side -> [P, 2] committed and steps, side -> [P, K, 2] kept and judged."""
    assert table.provenance is not None
    settings = table.provenance["settings"]
    starts = np.cumsum([0, *settings["prompts"].values()])
    first = dict(zip(settings["prompts"], starts.tolist(), strict=False))
    length = {side: np.zeros((int(starts[-1]), 2)) for side in SIDES}
    conditional = {side: np.zeros((int(starts[-1]), settings["depth"], 2)) for side in SIDES}
    for rows in by_prompt(table).values():
        place = first[str(rows[0].domain)] + int(str(rows[0].prompt_id).rpartition("/")[2])
        for side, weighted in _sides(rows, straddle).items():
            for row, weight in weighted:
                length[side][place] += weight * row.committed, weight
            whole = [row for row, weight in weighted if weight == 1]
            for k, counts in enumerate(conditional_by_position(whole)):
                conditional[side][place, k] += counts
    return length, conditional


def _sides(rows: Sequence[Round], straddle: StraddlePolicy) -> dict[str, list[tuple[Round, float]]]:
    if rows[0].mode == "no_think":
        return {"off": [(row, 1.0) for row in rows]}
    found: dict[str, list[tuple[Round, float]]] = {"think": [], "output": []}
    for row in rows:
        for side, weight in zip(("think", "output"), shares(row.phases, straddle), strict=True):
            if weight:
                found[side].append((row, weight))
    return found


class Contrasts:
    """All statistics of the groups on one set of resampled prompts."""

    def __init__(self, groups: Sequence[Group], prompts: Mapping[str, int], resamples: int, seed: int) -> None:
        self.groups, self.resamples, self.seed = groups, resamples, seed
        self.names = list(prompts)
        self.strata = np.repeat(np.arange(len(prompts)), list(prompts.values()))  # [P]
        self.weights = prompt_weights(self.strata, resamples, np.random.default_rng(seed))

    def domains(self) -> Iterator[tuple[str, F64]]:
        """Each domain's name and its prompts as a mask; all of them last."""
        for number, name in enumerate(self.names):
            yield name, (self.strata == number).astype(float)
        yield ALL, np.ones(len(self.strata))

    def _seeds(self, group: Group) -> F64:
        """The same resampled seeds in all statistics of one drafter, others than another drafter's."""
        key = [self.seed, *group.drafter.encode()]
        return seed_weights(len(group.seeds), self.resamples, np.random.default_rng(key))

    def _of(self, group: Group, parts: F64, mask: F64) -> tuple[float, F64]:  # [S, P, 2], [P] -> [], [B]
        masked = parts * mask[:, None]
        return pooled(masked), pooled_draws(masked, self.weights, self._seeds(group))

    def _gap(self, group: Group, one: str, other: str, mask: F64) -> tuple[float, F64]:
        (a, a_draws), (b, b_draws) = (self._of(group, group.length[side], mask) for side in (one, other))
        return a - b, a_draws - b_draws

    def pooled(self) -> Iterator[Pooled]:
        for group in self.groups:
            for domain, mask in self.domains():
                each = [
                    pooled(group.length["think"][[i]] * mask[:, None])
                    - pooled(group.length["output"][[i]] * mask[:, None])
                    for i in range(len(group.seeds))
                ]
                yield Pooled(
                    drafter=group.drafter,
                    think_share=group.think_share,
                    seeds=len(group.seeds),
                    sampling=group.sampling,
                    domain=domain,
                    **{side: _contrast(*self._of(group, group.length[side], mask)) for side in SIDES},
                    gap=_contrast(*self._gap(group, "think", "output", mask)),
                    think_minus_off=_contrast(*self._gap(group, "think", "off", mask)),
                    output_minus_off=_contrast(*self._gap(group, "output", "off", mask)),
                    by_seed=[rounded(gap) if np.isfinite(gap) else None for gap in each],
                )

    def points(self) -> Iterator[Point]:
        """Position curves of every side, as far as ``AT_LEAST`` slots were judged."""
        for group in self.groups:
            for domain, mask in self.domains():
                for side in SIDES:
                    parts = group.conditional[side]
                    for k in range(parts.shape[2]):
                        judged = int((parts[:, :, k, 1] * mask).sum())
                        if judged >= AT_LEAST:
                            yield Point(
                                drafter=group.drafter,
                                sampling=group.sampling,
                                domain=domain,
                                side=side,
                                position=k + 1,
                                rate=_contrast(*self._of(group, parts[:, :, k], mask)),
                                judged=judged,
                            )

    def differences(self) -> Iterator[Difference]:
        """Of every two drafters of one family at one sampling, the first trained without thinking traces."""
        for a in self.groups:
            for b in self.groups:
                related = a.sampling == b.sampling and a.family is not None and a.family == b.family
                if related and b.think_share and a.think_share == 0:
                    for domain, mask in self.domains():
                        one, other = (self._gap(g, "think", "output", mask) for g in (a, b))
                        yield Difference(
                            first=a.drafter,
                            second=b.drafter,
                            seeds=(len(a.seeds), len(b.seeds)),
                            sampling=a.sampling,
                            domain=domain,
                            share=b.think_share,
                            value=_contrast(one[0] - other[0], one[1] - other[1]),
                        )

    def doses(self) -> Iterator[Dose]:
        """Of every family with at least three shares at one sampling."""
        families: dict[tuple[str, str], list[Group]] = {}
        for group in self.groups:
            if group.family is not None:
                families.setdefault((group.family, group.sampling), []).append(group)
        for (_, sampling), found in families.items():
            ordered = sorted(found, key=lambda g: g.think_share or 0.0)
            x = np.array([g.think_share or 0.0 for g in ordered])
            if len(set(x.tolist())) < 3:
                continue
            slope = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
            for domain, mask in self.domains():
                values = {
                    **{side: [self._of(g, g.length[side], mask) for g in ordered] for side in SIDES},
                    "gap": [self._gap(g, "think", "output", mask) for g in ordered],
                }
                for side, of in values.items():
                    yield Dose(
                        sampling=sampling,
                        domain=domain,
                        side=side,
                        drafters=[g.drafter for g in ordered],
                        shares=x.tolist(),
                        slope=_contrast(
                            float(slope @ [value for value, _ in of]), slope @ np.stack([draws for _, draws in of])
                        ),
                    )


def _contrast(value: float, draws: F64) -> Contrast:
    interval = Interval.of(value, draws)
    if not np.isfinite([interval.value, interval.low, interval.high]).all():
        return Contrast(value=rounded(value) if np.isfinite(value) else None, low=None, high=None)
    return Contrast(value=rounded(interval.value), low=rounded(interval.low), high=rounded(interval.high))
