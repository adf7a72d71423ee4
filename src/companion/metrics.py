"""Every metric's one definition, computed from committed tokens; the denominator is in the name.

With R rounds, a_r accepted drafts and t_r committed tokens of round r:

    tau  committed per round       sum t_r / R          the field's accepted length: the target-made token is included
         accepted per round        sum a_r / R          without it
         accepted per drafted      sum a_r / sum drafted
         accepted per verified     sum a_r / sum verified
         committed per slot        sum t_r / sum (verified + 1)   DeepSpec's verify_rate, the note's token acceptance
         rate
    survival at k                  rounds with a_r >= k / rounds that verified k and were not cut before it
    conditional at k               rounds with a_r >= k / rounds whose slot k was judged (paper, figure 2)

Pooled over rounds is the primary form (a ratio of sums); `mean_over_prompts` averages a metric prompt by prompt.
Nothing to divide by gives nan, never 0: a check that compared nothing is inconclusive.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from companion.rounds import Round, Rounds

Metric = Callable[[Iterable[Round]], float]


def committed_per_round(rounds: Iterable[Round]) -> float:
    """tau: committed tokens per round, the target-made token included; plain decoding has 1."""
    rows = list(rounds)
    return _ratio(sum(r.committed for r in rows), len(rows))


def accepted_per_round(rounds: Iterable[Round]) -> float:
    """Accepted draft tokens per round, without the target-made token."""
    rows = list(rounds)
    return _ratio(sum(r.accepted for r in rows), len(rows))


def accepted_per_drafted(rounds: Iterable[Round]) -> float:
    """Accepted over really drafted tokens (recorded counts, not depth times rounds)."""
    rows = list(rounds)
    return _ratio(sum(r.accepted for r in rows), sum(r.drafted for r in rows))


def accepted_per_verified(rounds: Iterable[Round]) -> float:
    """Accepted over verified draft tokens."""
    rows = list(rounds)
    return _ratio(sum(r.accepted for r in rows), sum(r.verified for r in rows))


def committed_per_slot(rounds: Iterable[Round]) -> float:
    """Committed tokens over slots of the verification batch, (accepted + bonus) / (verified + 1)."""
    rows = list(rounds)
    return _ratio(sum(r.committed for r in rows), sum(r.verified + 1 for r in rows))


def survival_by_position(rounds: Iterable[Round]) -> list[tuple[int, int]]:
    """(rounds with at least k accepted, rounds in which k was verified) for k = 1, 2, ...

    A round that a stop token or the cap ended before slot k was judged is no evidence about k and is left out.
    """
    rows = list(rounds)
    deepest = max((r.verified for r in rows), default=0)
    return [
        (
            sum(r.accepted >= k for r in rows),
            sum(r.verified >= k and (r.rejected or r.accepted >= k) for r in rows),
        )
        for k in range(1, deepest + 1)
    ]


def conditional_by_position(rounds: Iterable[Round]) -> list[tuple[int, int]]:
    """(rounds with at least k accepted, rounds whose slot k was judged), k = 1, 2, ...: all earlier slots accepted."""
    rows = list(rounds)
    deepest = max((r.verified for r in rows), default=0)
    return [
        (sum(r.accepted >= k for r in rows), sum(r.verified >= k and r.reached(k) for r in rows))
        for k in range(1, deepest + 1)
    ]


def phase_counts(rounds: Iterable[Round]) -> dict[str, int]:
    """Committed tokens in each phase; the two sum to all committed tokens."""
    counts = {"think": 0, "output": 0}
    for row in rounds:
        for phase in row.phases:
            counts[phase] += 1
    return counts


def straddle_rate(rounds: Iterable[Round]) -> float:
    """Share of rounds whose committed tokens lie in both phases."""
    rows = list(rounds)
    return _ratio(sum(len(set(r.phases)) == 2 for r in rows), len(rows))


def by_prompt(rounds: Iterable[Round]) -> dict[tuple[str | None, int, int], list[Round]]:
    """Rounds grouped by response: (prompt id, request, and which response of these two in the order of the rows).

    Tables of several runs number their requests alike; what follows a response's end belongs to another one.
    """
    groups: dict[tuple[str | None, int, int], list[Round]] = {}
    latest: Counter[tuple[str | None, int]] = Counter()
    for row in rounds:
        name = row.prompt_id, row.request
        response = groups.get((*name, latest[name]))
        if response and (response[-1].ended or row.round < response[-1].round):
            latest[name] += 1
        groups.setdefault((*name, latest[name]), []).append(row)
    return groups


def mean_over_prompts(metric: Metric, rounds: Iterable[Round]) -> float:
    """The metric of each response, averaged; responses without a value are left out."""
    values = [v for rows in by_prompt(rounds).values() if not math.isnan(v := metric(rows))]
    return _ratio(sum(values), len(values))


def bootstrap_interval(
    metric: Metric, rounds: Rounds | Iterable[Round], *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of a pooled metric; whole responses are resampled, whose rounds depend on each other.

    (nan, nan) with fewer than two responses. Resamples in which the metric has no value are left out.
    """
    groups = list(by_prompt(rounds).values())
    if len(groups) < 2:
        return math.nan, math.nan
    generator = np.random.default_rng(seed)
    draws = [
        metric([row for i in generator.integers(len(groups), size=len(groups)) for row in groups[i]])
        for _ in range(resamples)
    ]
    low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def ratio_interval(
    parts: Sequence[tuple[float, float]], *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of sum(numerators) / sum(denominators), one pair a response, responses resampled.

    The same draws as `bootstrap_interval`, for a metric that is known as a ratio of sums; resamples without a
    denominator are left out.
    """
    if len(parts) < 2:
        return math.nan, math.nan
    generator, values = np.random.default_rng(seed), np.array(parts, dtype=float)
    draws = np.array([values[generator.integers(len(values), size=len(values))].sum(0) for _ in range(resamples)])
    ratios = draws[draws[:, 1] > 0]
    if not len(ratios):
        return math.nan, math.nan
    low, high = np.quantile(ratios[:, 0] / ratios[:, 1], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion; (nan, nan) without trials."""
    from scipy.stats import binomtest

    if trials == 0:
        return math.nan, math.nan
    interval = binomtest(successes, trials).proportion_ci(level, method="wilson")
    return float(interval.low), float(interval.high)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
