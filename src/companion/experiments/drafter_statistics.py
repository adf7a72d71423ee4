"""Drafters that answered the same prompts, several seeds each: their accepted length and acceptance by position.

Intervals resample prompts, and seeds of training where several are pooled (`companion.resampling`); two drafters are
compared on the same resampled prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from companion.metrics import by_prompt, conditional_by_position, survival_by_position
from companion.resampling import F64, Interval, per_response, pooled, pooled_draws, prompt_weights, seed_weights
from companion.rounds import Rounds
from companion.training.corpus import DOMAINS, MODES, Mode

ALL = "all"
COMPARISONS = (
    ("dspark", "dflash"),
    ("dspark", "eagle3"),
    ("dflash", "eagle3"),
    ("dspark-rnn", "dspark"),
    ("dspark-think-50", "dspark"),
)
REACHED = 300  # rounds that must have judged the last position of a decay


class Cell(BaseModel):
    """tau of one group of rounds; ``seed`` None: the seeds pooled. ``per_response``: mean of the responses' own tau."""

    drafter: str
    seed: int | None
    temperature: float
    domain: str  # or "all"
    mode: Mode
    responses: int
    rounds: int
    tau: float | None
    low: float | None
    high: float | None
    per_response: float | None
    per_response_low: float | None
    per_response_high: float | None


class Position(BaseModel):
    """Acceptance at one draft position, seeds pooled. Conditional: of the rounds whose slot was judged, all earlier
    ones accepted; survival: of the rounds that verified the slot and were not cut before it."""

    drafter: str
    temperature: float
    domain: str
    mode: Mode
    position: int
    conditional: float | None
    low: float | None
    high: float | None
    judged: int
    survival: float | None
    survival_low: float | None
    survival_high: float | None
    verified: int


class Difference(BaseModel):
    """tau of ``first`` minus ``second`` on the same prompts. ``seeds_apart``: every seed of the one with the larger tau
    is above every seed of the other. The Welch interval takes the seeds' pooled tau as its only sample."""

    first: str
    second: str
    seeds: tuple[int, int]
    temperature: float
    domain: str
    mode: Mode
    prompts: int
    value: float | None
    low: float | None
    high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    welch_low: float | None
    welch_high: float | None
    seeds_apart: bool


class Fall(BaseModel):
    """Conditional acceptance at position 1 minus that at ``last``, the last position that enough rounds reached."""

    drafter: str
    temperature: float
    domain: str
    mode: Mode
    last: int
    judged: int
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """What the seeds of one drafter did on the prompts of one mode; a response without rounds is all zeros."""

    drafter: str
    temperature: float
    mode: Mode
    seeds: tuple[int, ...]
    tau: F64  # [S, P, 2] committed, rounds
    conditional: F64  # [S, P, K, 2] kept, judged
    survival: F64  # [S, P, K, 2] kept, verified

    def only(self, seed: int) -> Group:
        """Of one seed, by its place."""
        s = slice(seed, seed + 1)
        return replace(
            self, seeds=self.seeds[s], tau=self.tau[s], conditional=self.conditional[s], survival=self.survival[s]
        )


def settings(table: Rounds) -> dict[str, Any]:
    """The settings in a table's provenance; ValueError for a table without."""
    if not table.provenance:
        raise ValueError("a table of rounds has no provenance, so it cannot be compared with others")
    found: dict[str, Any] = table.provenance["settings"]
    return found


def groups_of(tables: Sequence[Rounds], prompts: int) -> list[Group]:
    """Drafters by temperature and mode; ``prompts`` in each domain. Several seeds of one drafter become one group."""
    runs: dict[tuple[str, float, Mode], dict[int, tuple[F64, F64, F64]]] = {}
    for table in tables:
        own = settings(table)
        temperature = float(table.provenance["sampling"]["temperature"])  # type: ignore[index]
        for mode in MODES:
            of_seeds = runs.setdefault((own["drafter_name"], temperature, mode), {})
            of_seeds[own["drafter_seed"]] = _counts(table.where(mode=mode), prompts)
    return [
        Group(*key, tuple(sorted(of)), *map(_stack, zip(*(of[s] for s in sorted(of)), strict=True)))
        for key, of in runs.items()
    ]


def _counts(rounds: Rounds, prompts: int) -> tuple[F64, F64, F64]:
    """Of one run and mode: [P, 2] for tau, [P, K, 2] for conditional acceptance and for survival."""
    deepest = max((r.verified for r in rounds), default=0)
    size = len(DOMAINS) * prompts
    tau, conditional, survival = np.zeros((size, 2)), np.zeros((size, deepest, 2)), np.zeros((size, deepest, 2))
    for rows in by_prompt(rounds).values():
        domain, _, number = str(rows[0].prompt_id).split("/")
        place = DOMAINS.index(domain) * prompts + int(number)
        tau[place] += sum(r.committed for r in rows), len(rows)
        for counts, found in ((conditional, conditional_by_position(rows)), (survival, survival_by_position(rows))):
            counts[place, : len(found)] += np.reshape(found, (-1, 2))
    return tau, conditional, survival


def _stack(counts: Sequence[F64]) -> F64:
    """Seeds along the first axis; the shallower padded with positions that nothing reached."""
    deepest = max(c.shape[1] for c in counts)
    return np.stack([np.pad(c, [(0, 0), (0, deepest - c.shape[1]), *[(0, 0)] * (c.ndim - 2)]) for c in counts])


class Study:
    """All statistics of the groups, on one set of resampled prompts; ``prompts`` in every domain, or in each."""

    def __init__(
        self, groups: Sequence[Group], prompts: int | Sequence[int], resamples: int = 2000, seed: int = 0
    ) -> None:
        self.groups, self.resamples, self.seed = groups, resamples, seed
        self.strata = np.repeat(np.arange(len(DOMAINS)), prompts)  # [P] domain of each prompt
        self.weights = prompt_weights(self.strata, resamples, np.random.default_rng(seed))

    def domains(self) -> Iterator[tuple[str, F64]]:
        """Each domain's name and its prompts as a mask; all of them first."""
        yield ALL, np.ones(len(self.strata))
        for number, domain in enumerate(DOMAINS):
            yield domain, (self.strata == number).astype(float)

    def _seeds(self, group: Group) -> F64:
        """The resampled seeds of one drafter: the same in all its statistics, others than another drafter's."""
        key = [self.seed, *group.drafter.encode()]
        return seed_weights(len(group.seeds), self.resamples, np.random.default_rng(key))

    def draws(self, group: Group, parts: F64, mask: F64) -> F64:  # [S, P, 2], [P] -> [B]
        return pooled_draws(parts * mask[:, None], self.weights, self._seeds(group))

    def _interval(self, group: Group, parts: F64, mask: F64) -> Interval:
        return Interval.of(pooled(parts * mask[:, None]), self.draws(group, parts, mask))

    def cells(self) -> Iterator[Cell]:
        for group in self.groups:
            each = [(s, group.only(i)) for i, s in enumerate(group.seeds)]
            for seed, part in [(None, group), *each]:
                for domain, mask in self.domains():
                    tau = self._interval(part, part.tau, mask)
                    mean = self._interval(part, per_response(part.tau), mask)
                    rounds = part.tau[..., 1] * mask
                    yield Cell(
                        drafter=group.drafter,
                        seed=seed,
                        temperature=group.temperature,
                        domain=domain,
                        mode=group.mode,
                        responses=int((rounds > 0).sum()),
                        rounds=int(rounds.sum()),
                        **_ends("tau", "", tau),
                        **_ends("per_response", "per_response_", mean),
                    )

    def positions(self) -> Iterator[Position]:
        for group in self.groups:
            for domain, mask in self.domains():
                for k in range(group.conditional.shape[2]):
                    judged, verified = ((x[:, :, k, 1] * mask).sum() for x in (group.conditional, group.survival))
                    conditional = self._interval(group, group.conditional[:, :, k], mask)
                    survival = self._interval(group, group.survival[:, :, k], mask)
                    yield Position(
                        drafter=group.drafter,
                        temperature=group.temperature,
                        domain=domain,
                        mode=group.mode,
                        position=k + 1,
                        judged=int(judged),
                        verified=int(verified),
                        **_ends("conditional", "", conditional),
                        **_ends("survival", "survival_", survival),
                    )

    def falls(self) -> Iterator[Fall]:
        for group in self.groups:
            for domain, mask in self.domains():
                judged = (group.conditional[..., 1] * mask[:, None]).sum((0, 1))  # [K]
                enough = np.flatnonzero(judged >= REACHED)
                if not len(enough) or enough[-1] == 0:
                    continue
                last = int(enough[-1])
                first, final = group.conditional[:, :, 0], group.conditional[:, :, last]
                value = pooled(first * mask[:, None]) - pooled(final * mask[:, None])
                fall = Interval.of(value, self.draws(group, first, mask) - self.draws(group, final, mask))
                yield Fall(
                    drafter=group.drafter,
                    temperature=group.temperature,
                    domain=domain,
                    mode=group.mode,
                    last=last + 1,
                    judged=int(judged[last]),
                    **_ends("value", "", fall),
                )

    def differences(self, pairs: Iterable[tuple[str, str]] = COMPARISONS) -> Iterator[Difference]:
        """tau of each first minus its second, where both were measured."""
        known = {(g.drafter, g.temperature, g.mode): g for g in self.groups}
        for first, second in pairs:
            for (name, temperature, mode), a in known.items():
                b = known.get((second, temperature, mode))
                if name == first and b is not None:
                    for domain, mask in self.domains():
                        yield self._difference(a, b, domain, mask)

    def _difference(self, a: Group, b: Group, domain: str, mask: F64) -> Difference:
        tau = [pooled(g.tau * mask[:, None]) for g in (a, b)]
        draws = [self.draws(g, g.tau, mask) for g in (a, b)]
        by_seed = [[pooled(g.tau[i : i + 1] * mask[:, None]) for i in range(len(g.seeds))] for g in (a, b)]
        low, high = _welch(*by_seed)
        return Difference(
            first=a.drafter,
            second=b.drafter,
            seeds=(len(a.seeds), len(b.seeds)),
            temperature=a.temperature,
            domain=domain,
            mode=a.mode,
            prompts=int(mask.sum()),
            **_ends("value", "", Interval.of(tau[0] - tau[1], draws[0] - draws[1])),
            **_ends("ratio", "ratio_", Interval.of(tau[0] / tau[1], draws[0] / draws[1])),
            welch_low=low,
            welch_high=high,
            seeds_apart=min(by_seed[0]) > max(by_seed[1]) or max(by_seed[0]) < min(by_seed[1]),
        )


def _ends(name: str, prefix: str, interval: Interval) -> dict[str, Any]:
    """An interval as three fields; nan, nothing to divide by, as None."""
    fields = {name: interval.value, f"{prefix}low": interval.low, f"{prefix}high": interval.high}
    return {key: round(value, 5) if np.isfinite(value) else None for key, value in fields.items()}


def _welch(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % interval of the difference of two means of few values; None with fewer than two of either."""
    from scipy.stats import ttest_ind

    if min(len(a), len(b)) < 2 or len({*a}) == len({*b}) == 1:
        return None, None
    found = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return round(float(found.low), 5), round(float(found.high), 5)
