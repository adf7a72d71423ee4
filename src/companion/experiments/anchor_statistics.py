"""Statistics of drafters at the same anchors: acceptance by position, expected length, and the real loop beside them.

Intervals are over prompts and training seeds (`companion.resampling`); everything about one temperature and mode is
computed on the same resampled prompts, so that drafters and estimators are compared pairwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from companion.experiments import anchor_counts
from companion.experiments.anchor_counts import Counts
from companion.experiments.anchor_recording import Anchored, Recording
from companion.experiments.drafter_statistics import REACHED, Group, Study
from companion.resampling import F64, Interval, pooled
from companion.rounds import Round
from companion.training.corpus import DOMAINS, Mode

AGREE = 4.0  # standard errors within which two estimates of one number lie: one false alarm in 16,000
Run = tuple[str, int, float]  # drafter, seed of training, temperature
Seeds = Mapping[int, Recording]  # of one drafter and temperature, by seed of training
Real = Mapping[Run, Mapping[str, Sequence[Round]]]  # rounds of the real loop, by run and prompt id
Count = Callable[[Recording, Anchored], Counts]
Estimate = tuple[float, F64]  # a value, and the same in every resample
T = TypeVar("T")


class Length(BaseModel):
    """Committed tokens of a block at a uniform anchor, sampled and in expectation."""

    drafter: str
    temperature: float
    domain: str
    mode: Mode
    anchors: int
    sampled: float
    sampled_low: float
    sampled_high: float
    analytic: float
    analytic_low: float
    analytic_high: float


class Fall(BaseModel):
    """Conditional acceptance at position 1 minus that at ``last``, the last that at least `REACHED` blocks reach."""

    drafter: str
    temperature: float
    domain: str
    mode: Mode
    last: int
    judged: int
    sampled: float
    sampled_low: float
    sampled_high: float
    analytic: float
    analytic_low: float
    analytic_high: float


class Check(BaseModel):
    """Mean of sampled minus analytic acceptance over all slots, and the same in standard errors; ``control`` has the q
    of the slot behind in the analytic one, and must not pass."""

    drafter: str
    temperature: float
    mode: Mode
    slots: int
    difference: float
    errors: float | None  # None: no spread
    control: float
    control_errors: float | None

    @property
    def agrees(self) -> bool:
        if self.errors is None or self.control_errors is None:
            return False
        return abs(self.errors) <= AGREE < abs(self.control_errors)


class Comparison(BaseModel):
    """One number at uniform anchors (analytic), at the same anchors weighted as the real loop would visit them, and in
    the loop itself. ``position`` 0 is tau, else conditional acceptance there, which ``judged`` real rounds judged."""

    drafter: str
    temperature: float
    mode: Mode
    position: int
    uniform: float
    visited: float
    selection: float  # visited - uniform
    selection_low: float
    selection_high: float
    judged: int = 0
    real: float | None = None
    gap: float | None = None  # real - visited
    gap_low: float | None = None
    gap_high: float | None = None
    gap_errors: float | None = None


class AnchorStudy:
    """All drafters along the texts of one temperature and mode; ``real`` holds the rounds of their loops, if any."""

    def __init__(
        self, drafters: Mapping[str, Seeds], real: Real, temperature: float, mode: Mode, resamples: int, seed: int
    ) -> None:
        self.drafters, self.real, self.temperature, self.mode = drafters, real, temperature, mode
        some = next(iter(next(iter(drafters.values())).values()))
        sizes = [sum((r.domain, r.mode) == (domain, mode) for r in some.responses) for domain in DOMAINS]
        self.everything = np.ones(sum(sizes))  # the mask of all prompts
        self.sampled = Study(self._groups(lambda run, r: anchor_counts.sampled(r, run.stops)), sizes, resamples, seed)
        self.analytic = Study(self._groups(lambda run, r: anchor_counts.analytic(r, run.stops)), sizes, resamples, seed)
        self.visited = {g.drafter: g for g in self._groups(_visited, lambda run: run.every == 1)}
        self.looped = {g.drafter: g for g in self._groups(self._looped, lambda run: run_key(run.provenance) in real)}

    def _groups(self, count: Count, fit: Callable[[Recording], bool] = lambda run: True) -> list[Group]:
        """Each drafter whose runs are all fit, counted response by response."""
        found = []
        for name, runs in self.drafters.items():
            if all(map(fit, runs.values())):
                counts = self._table(name, count)
                columns = ([[getattr(c, of) for c in run] for run in counts] for of in Counts.__dataclass_fields__)
                group = Group(name, self.temperature, self.mode, tuple(sorted(runs)), *map(np.array, columns))
                found.append(group)
        return found

    def _table(self, name: str, count: Callable[[Recording, Anchored], T]) -> list[list[T]]:  # [S][P]
        runs = self.drafters[name]
        return [[count(runs[s], r) for r in runs[s].responses if r.mode == self.mode] for s in sorted(runs)]

    def _looped(self, run: Recording, response: Anchored) -> Counts:
        rounds = self.real[run_key(run.provenance)].get(response.prompt_id)
        if rounds is None:
            raise ValueError(
                f"the stored rounds lack prompt {response.prompt_id}, which the anchors have: decode at least as many "
                "prompts for the rounds"
            )
        return anchor_counts.real(rounds, run.depth)

    def lengths(self) -> Iterator[Length]:
        """Expected and sampled committed tokens of a block, by domain."""
        for sampled, analytic in zip(self.sampled.groups, self.analytic.groups, strict=True):
            for domain, mask in self.sampled.domains():
                if anchors := int((sampled.tau[..., 1] * mask).sum()):
                    yield Length(
                        **self._names(sampled, domain),
                        anchors=anchors,
                        **_ends("sampled", *self._estimate(sampled, sampled.tau, mask)),
                        **_ends("analytic", *self._estimate(analytic, analytic.tau, mask)),
                    )

    def falls(self) -> Iterator[Fall]:
        """How far conditional acceptance falls along the block, by domain."""
        for sampled, analytic in zip(self.sampled.groups, self.analytic.groups, strict=True):
            for domain, mask in self.sampled.domains():
                judged = (sampled.conditional[..., 1] * mask[:, None]).sum((0, 1))  # [K]
                enough = np.flatnonzero(judged >= REACHED)
                if len(enough) and enough[-1]:
                    last = int(enough[-1]) + 1
                    yield Fall(
                        **self._names(sampled, domain),
                        last=last,
                        judged=int(judged[last - 1]),
                        **_ends("sampled", *self.fall(sampled, last, mask)),
                        **_ends("analytic", *self.fall(analytic, last, mask)),
                    )

    def fall(self, group: Group, last: int, mask: F64) -> Estimate:
        """Conditional acceptance at position 1 minus that at ``last``."""
        (first, of_first), (final, of_final) = (self.rate(group, position, mask) for position in (1, last))
        return first - final, of_first - of_final

    def rate(self, group: Group, position: int, mask: F64) -> Estimate:
        """Conditional acceptance at a position; tau at position 0."""
        return self._estimate(group, _parts(group, position), mask)

    def checks(self) -> Iterator[Check]:
        """Whether sampled acceptance is the analytic one; at temperature 0 nothing is sampled."""
        for group in self.sampled.groups if self.temperature else ():
            parts: F64 = np.array(self._table(group.drafter, lambda run, r: _differences(r)))  # [S, P, 2, 2]
            found, control = (self._estimate(group, parts[:, :, i], self.everything) for i in (0, 1))
            yield Check(
                drafter=group.drafter,
                temperature=self.temperature,
                mode=self.mode,
                slots=int(parts[:, :, 0, 1].sum()),
                difference=round(found[0], 6),
                errors=_errors(*found),
                control=round(control[0], 6),
                control_errors=_errors(*control),
            )

    def comparisons(self) -> Iterator[Comparison]:
        """tau and conditional acceptance at uniform and at visited anchors, and in the real loop."""
        for uniform in self.analytic.groups:
            visited, looped = self.visited.get(uniform.drafter), self.looped.get(uniform.drafter)
            for position in range(uniform.conditional.shape[2] + 1) if visited is not None else ():
                (everywhere, of_everywhere), (there, of_there) = (
                    self.rate(group, position, self.everything) for group in (uniform, visited) if group is not None
                )
                if np.isfinite(everywhere - there):
                    yield Comparison(
                        drafter=uniform.drafter,
                        temperature=self.temperature,
                        mode=self.mode,
                        position=position,
                        uniform=round(everywhere, 5),
                        visited=round(there, 5),
                        **_ends("selection", there - everywhere, of_there - of_everywhere),
                        **({} if looped is None else self._gap(looped, position, there, of_there)),
                    )

    def _gap(self, looped: Group, position: int, there: float, of_there: F64) -> dict[str, Any]:
        """The fields of a comparison that speak of the real loop; none where it judged nothing."""
        value, draws = self.rate(looped, position, self.everything)
        if not np.isfinite(value):
            return {}
        gap = value - there, draws - of_there
        judged = int(_parts(looped, position)[..., 1].sum())
        return {"judged": judged, "real": round(value, 5), "gap_errors": _errors(*gap), **_ends("gap", *gap)}

    def _estimate(self, group: Group, parts: F64, mask: F64) -> Estimate:  # [S, P, 2], [P]
        """A pooled ratio and its value in every resample."""
        return pooled(parts * mask[:, None]), self.sampled.draws(group, parts, mask)

    def _names(self, group: Group, domain: str) -> dict[str, Any]:
        return {"drafter": group.drafter, "temperature": self.temperature, "mode": self.mode, "domain": domain}


def _visited(run: Recording, response: Anchored) -> Counts:
    return anchor_counts.along(response, int(run.provenance["settings"]["max_new_tokens"]))


def _differences(response: Anchored) -> F64:
    """Sampled minus analytic acceptance and the number of slots; the same with the wrong q. [2, 2]"""
    blocks = response.blocks
    shorter = blocks.accepted[:, :-1]
    return np.array(
        [
            [blocks.accepted.sum() - blocks.overlap.sum(), blocks.accepted.size],
            [shorter.sum() - blocks.shifted, shorter.size],
        ]
    )


def _parts(group: Group, position: int) -> F64:  # -> [S, P, 2]
    return group.conditional[:, :, position - 1] if position else group.tau


def _errors(value: float, draws: F64) -> float | None:
    """The value in standard errors; None without any spread."""
    spread = float(np.nanstd(draws))
    return round(value / spread, 3) if spread > 0 else None


def _ends(name: str, value: float, draws: F64) -> dict[str, Any]:
    found = Interval.of(value, draws)
    return {name: round(found.value, 5), f"{name}_low": round(found.low, 5), f"{name}_high": round(found.high, 5)}


def run_key(provenance: Mapping[str, Any]) -> Run:
    """Recipe, seed and temperature of a recording or of a table of rounds."""
    settings = provenance["settings"]
    return settings["drafter_name"], settings["drafter_seed"], float(provenance["sampling"]["temperature"])
