"""H2: is the confidence head's forecast further off inside the span?

The forecast is the product c_1 .. c_k, the outcome whether the draft lived to slot k (`companion.calibration`): what a
prefix scheduler trusts. A side with few rounds shows an error even when nothing is wrong, so that each error stands
beside its floor: the mean error of outcomes that were drawn from the forecasts themselves. Resamples have that bias
once more, so that their quantiles would lie to one side of the estimate; an interval is the estimate plus and minus
1.96 of their standard deviations. Mean forecast minus mean outcome, the excess, has no such bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from pydantic import BaseModel

from companion.calibration import BINS, F64, bin_counts, brier, each_position, ece, reliability, survival_forecasts
from companion.experiments.phase_gap.contrasts import SIDES, sampling_name
from companion.experiments.phase_gap.gaps import Contrast, rounded
from companion.metrics import by_prompt
from companion.phase.tracker import straddles
from companion.resampling import prompt_weights
from companion.rounds import Round, Rounds

FLOOR_DRAWS = 40


class Error(BaseModel):
    """Of one side: rounds, ECE over all positions and at each, its floor, Brier score, and mean forecast minus mean
    outcome (``excess``), over all positions and at the first."""

    rounds: int
    ece: Contrast
    floor: float | None
    by_position: list[float | None]
    brier: Contrast
    excess: Contrast
    first_excess: Contrast
    diagram: list[tuple[float, float, int]]  # of the first position: forecast, outcome, rounds of each bin


class Calibration(BaseModel):
    """One recording and domain; ``difference`` is the ECE inside the span minus that outside, thinking on."""

    drafter: str
    seed: int
    think_share: float | None
    sampling: str
    domain: str
    think: Error
    output: Error
    off: Error
    difference: Contrast
    first_difference: Contrast  # at the first position alone
    excess_difference: Contrast
    first_excess_difference: Contrast


def calibration(table: Rounds, resamples: int, seed: int) -> Iterator[Calibration]:
    """Of every domain of a recording that kept its confidences; nothing where it did not."""
    if not any(r.confidence for r in table):
        return
    known = table.provenance or {}
    settings = known["settings"]
    for number, (domain, prompts) in enumerate(settings["prompts"].items()):
        counts = {side: np.zeros((prompts, settings["depth"], BINS, 4)) for side in SIDES}
        forecasts: dict[str, list[F64]] = {side: [] for side in SIDES}
        rounds = dict.fromkeys(SIDES, 0)
        for rows in by_prompt(table.where(domain=domain)).values():
            place = int(str(rows[0].prompt_id).rpartition("/")[2])
            for side, own in _sides(rows).items():
                found = survival_forecasts(own)
                counts[side][place] += bin_counts(found, settings["depth"])
                forecasts[side].append(found)
                rounds[side] += len(own)
        weights = prompt_weights(np.zeros(prompts, dtype=np.int64), resamples, np.random.default_rng([seed, number]))
        errors = {side: _scores(counts[side], weights) for side in SIDES}
        yield Calibration(
            drafter=settings["drafter_name"],
            seed=settings["drafter_seed"],
            think_share=settings["think_share"],
            sampling=sampling_name(known["sampling"]),
            domain=domain,
            **{side: _error(counts[side], weights, errors[side], forecasts[side], rounds[side]) for side in SIDES},
            difference=_between(errors, 0),
            first_difference=_between(errors, 1),
            excess_difference=_between(errors, 2),
            first_excess_difference=_between(errors, 3),
        )


def _sides(rows: Sequence[Round]) -> dict[str, list[Round]]:
    """Rounds of a response by side; those that straddle are in none."""
    if rows[0].mode == "no_think":
        return {"off": list(rows)}
    whole = [row for row in rows if not straddles(row.phases)]
    return {side: [row for row in whole if row.phases[0] == side] for side in ("think", "output")}


def _scores(counts: F64, weights: F64) -> tuple[F64, F64]:  # [P, K, BINS, 4], [B, P] -> [4], [B, 4]
    """ECE over all positions and at the first, the excess likewise, and the same in every resample."""
    whole, draws = counts.sum(0)[None], np.tensordot(weights, counts, 1)
    found = [
        np.stack([f(c[:, k]) for f in (ece, _excess) for k in (slice(None), slice(1))], -1) for c in (whole, draws)
    ]
    return found[0][0], found[1]


def _excess(counts: F64) -> F64:  # [..., K, BINS, 4] -> [...]
    n, forecasts, outcomes = (counts[..., i].sum((-1, -2)) for i in range(3))
    return np.divide(forecasts - outcomes, n, out=np.full_like(n, np.nan), where=n > 0)


def _between(errors: dict[str, tuple[F64, F64]], which: int) -> Contrast:
    (a, a_draws), (b, b_draws) = errors["think"], errors["output"]
    return _contrast(float(a[which] - b[which]), a_draws[:, which] - b_draws[:, which])


def _error(counts: F64, weights: F64, scores: tuple[F64, F64], forecasts: Sequence[F64], rounds: int) -> Error:
    whole = counts.sum(0)
    error, _, excess, first_excess = (_contrast(float(scores[0][i]), scores[1][:, i]) for i in range(4))
    bins = (column.tolist() for column in reliability(whole[0]))
    return Error(
        rounds=rounds,
        ece=error,
        floor=_number(_floor(np.concatenate([np.empty((0, 3)), *forecasts]), len(whole))),
        by_position=[_number(value) for value in ece(each_position(whole)).tolist()],
        brier=_contrast(float(brier(whole)), brier(np.tensordot(weights, counts, 1))),
        excess=excess,
        first_excess=first_excess,
        diagram=[(rounded(f), rounded(y), int(c)) for f, y, c in zip(*bins, strict=True) if c],
    )


def _floor(forecasts: F64, positions: int) -> float:  # [n, 3]
    """ECE of a head that is right, with as many rounds: outcomes drawn from its forecasts, each slot by itself."""
    if not len(forecasts):
        return float("nan")
    generator = np.random.default_rng(len(forecasts))
    drawn = forecasts.copy()
    found = []
    for _ in range(FLOOR_DRAWS):
        drawn[:, 2] = generator.random(len(drawn)) < drawn[:, 1]
        found.append(float(ece(bin_counts(drawn, positions))))
    return float(np.mean(found))


def _contrast(value: float, draws: F64) -> Contrast:
    spread = 1.96 * float(np.nanstd(draws)) if np.isfinite(draws).any() else float("nan")
    return Contrast(value=_number(value), low=_number(value - spread), high=_number(value + spread))


def _number(value: float) -> float | None:
    return rounded(value) if np.isfinite(value) else None


def of_all(tables: Iterable[Rounds], resamples: int, seed: int) -> list[Calibration]:
    """Of all recordings that kept their confidences."""
    return [found for table in tables for found in calibration(table, resamples, seed)]
