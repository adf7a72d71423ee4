"""One row late: how good a forecast is the entropy of the row before, and how loose is its ceiling.

A ceiling speaks of the row whose entropy it is computed from. While a draft is planned the newest known row is the one
before, so that the true largest probability may exceed it. With filters on, the distribution that verifies has at most
k tokens: its own entropy and V = k give a ceiling that is far closer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from companion.calibration import F64
from companion.ceiling import entropy_ceiling
from companion.experiments.phase_gap.contrasts import ALL
from companion.experiments.phase_gap.gaps import Contrast
from companion.experiments.phase_gap.signals import SIDES
from companion.metrics import by_prompt
from companion.resampling import Interval, prompt_weights
from companion.rounds import Round

LAGS = (1, 2, 4, 8)
MARGIN = 0.1


class Lag(BaseModel):
    """Rows of committed tokens of one side.

    ``broken``: share whose largest probability exceeds the ceiling of the row before, and by more than 0.1; ``own``:
    the share above its own ceiling, 0 or the bound is wrong. ``loose_*``: mean of ceiling minus largest probability, of
    the row's own distribution with V, of the one served with its k.
    """

    sampling: str
    domain: str
    side: str
    rows: int
    entropy: Contrast
    autocorrelation: dict[int, float | None]  # by lag, both rows on this side
    broken: Contrast
    broken_by_a_tenth: Contrast
    own: float | None
    loose_vocabulary: Contrast
    loose_kept: Contrast  # the served distribution, V = top-k


def lags(
    rows: Iterable[Round],
    domains: Sequence[str],
    *,
    sampling: str,
    vocab_size: int,
    top_k: int | None,
    resamples: int,
    seed: int,
) -> Iterator[Lag]:
    """Of every side, in all domains together and in each."""
    texts = [_rows(own) for own in by_prompt(rows).values()]
    strata = np.array([domains.index(domain) for domain, _, _ in texts])
    for number, name in [(None, ALL), *enumerate(domains)]:
        for side_index, side in enumerate(SIDES):
            chosen = [i for i, s in enumerate(strata) if number is None or s == number]
            own = [texts[i][1:] for i in chosen]
            used = [(s == side_index, v) for s, v in own]
            if not any(mask.any() for mask, _ in used):
                continue
            weights = prompt_weights(strata[chosen], resamples, np.random.default_rng(seed))
            yield _lag(used, weights, sampling, name, side, vocab_size, top_k)


def _rows(own: Sequence[Round]) -> tuple[str, NDArray[np.int64], F64]:
    """Domain, side of each committed token, and entropy, largest probability, and both of the served row [4, T]."""
    sides, values = [], []
    for r in own:
        sides += [2 if r.mode == "no_think" else SIDES.index(phase) for phase in r.phases]
        n = r.committed
        values.append(np.array([r.entropy[:n], r.max_p[:n], r.served_entropy[:n], r.served_max_p[:n]]))
    return str(own[0].domain), np.array(sides, dtype=np.int64), np.concatenate(values, 1)


def _lag(
    used: Sequence[tuple[NDArray[np.bool_], F64]],  # whether a row is on this side [T], its statistics [4, T]
    weights: F64,  # [B, responses]
    sampling: str,
    domain: str,
    side: str,
    vocab_size: int,
    top_k: int | None,
) -> Lag:
    counted: dict[str, list[tuple[float, int]]] = {k: [] for k in ("h", "over", "tenth", "own", "loose", "kept")}
    pairs: dict[int, list[F64]] = {lag: [] for lag in LAGS}
    for mask, (h, p, served_h, served_p) in used:
        ceiling = np.asarray(entropy_ceiling(h, vocab_size))
        both = mask[1:] & mask[:-1]
        excess = (p[1:] - ceiling[:-1])[both]
        counted["h"].append((h[mask].sum(), int(mask.sum())))
        counted["over"].append(((excess > 1e-6).sum(), len(excess)))
        counted["tenth"].append(((excess > MARGIN).sum(), len(excess)))
        counted["own"].append(((p > ceiling + 1e-4)[mask].sum(), int(mask.sum())))
        counted["loose"].append(((ceiling - p)[mask].sum(), int(mask.sum())))
        if top_k:
            kept = np.asarray(entropy_ceiling(served_h, top_k))
            counted["kept"].append(((kept - served_p)[mask].sum(), int(mask.sum())))
        else:
            counted["kept"].append((0.0, 0))
        for lag in LAGS:
            there = mask[lag:] & mask[:-lag]
            pairs[lag].append(np.stack([h[:-lag][there], h[lag:][there]]))
    parts = {name: np.array(of, dtype=np.float64) for name, of in counted.items()}
    own = parts["own"].sum(0)
    return Lag(
        sampling=sampling,
        domain=domain,
        side=side,
        rows=int(own[1]),
        entropy=_mean(parts["h"], weights),
        autocorrelation={lag: _correlation(np.concatenate(of, 1)) for lag, of in pairs.items()},
        broken=_mean(parts["over"], weights),
        broken_by_a_tenth=_mean(parts["tenth"], weights),
        own=float(own[0] / own[1]) if own[1] else None,
        loose_vocabulary=_mean(parts["loose"], weights),
        loose_kept=_mean(parts["kept"], weights),
    )


def _mean(parts: F64, weights: F64) -> Contrast:  # [R, 2], [B, R]
    total, n = parts.sum(0)
    if not n:
        return Contrast(value=None, low=None, high=None)
    drawn = weights @ parts
    with np.errstate(invalid="ignore", divide="ignore"):
        interval = Interval.of(float(total / n), np.where(drawn[:, 1] > 0, drawn[:, 0] / drawn[:, 1], np.nan))
    return Contrast(value=round(interval.value, 5), low=round(interval.low, 5), high=round(interval.high, 5))


def _correlation(pairs: F64) -> float | None:  # [2, n]
    if pairs.shape[1] < 2 or not pairs.std(1).all():
        return None
    return round(float(np.asarray(np.corrcoef(pairs))[0, 1]), 5)
