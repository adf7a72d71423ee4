"""Metrics against rounds counted by hand, and the traps of other definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion import metrics
from companion.protocols import Phase
from companion.rounds import Round, Rounds


def row(
    accepted: int,
    verified: int,
    *,
    drafted: int | None = None,
    request: int = 0,
    ended: str | None = None,
    cut: int = 0,
) -> Round:
    """A round that accepted ``accepted`` of ``verified``; ``cut`` > 0: a stop token ended it after so many."""
    kept = cut or accepted
    bonus = not cut
    tokens = list(range(kept + bonus))
    phases: list[Phase] = ["output"] * len(tokens)
    return Round(
        request=request,
        round=1,
        position=10,
        drafted=verified if drafted is None else drafted,
        verified=verified,
        accepted=kept,
        rejected=bonus and accepted < verified,
        bonus=bonus,
        tokens=tokens,
        phases=phases,
        ended=ended,  # type: ignore[arg-type]
    )


HAND = [row(3, 4, drafted=5), row(0, 4), row(4, 4), row(3, 4, cut=2, ended="stop")]


def test_counts_by_hand() -> None:
    assert metrics.committed_per_round(HAND) == (4 + 1 + 5 + 2) / 4
    assert metrics.accepted_per_round(HAND) == (3 + 0 + 4 + 2) / 4
    assert metrics.accepted_per_drafted(HAND) == 9 / 17  # recorded drafts, not depth times rounds
    assert metrics.accepted_per_verified(HAND) == 9 / 16
    assert metrics.committed_per_slot(HAND) == 12 / 20


def test_plain_decoding_has_accepted_length_one() -> None:
    assert metrics.committed_per_round([row(0, 0), row(0, 0)]) == 1.0
    assert math.isnan(metrics.accepted_per_verified([row(0, 0)]))


def test_a_round_that_a_stop_ended_is_no_evidence_about_later_slots() -> None:
    assert metrics.conditional_by_position(HAND) == [(3, 4), (3, 3), (2, 2), (1, 2)]
    assert metrics.survival_by_position(HAND) == [(3, 4), (3, 4), (2, 3), (1, 3)]


def test_conditional_rates_multiply_to_survival_without_cuts() -> None:
    rounds = [row(a, 5) for a in (0, 1, 1, 2, 4, 5, 5)]
    product = 1.0
    pairs = zip(metrics.conditional_by_position(rounds), metrics.survival_by_position(rounds), strict=True)
    for (kept, judged), (survived, rounds_at_k) in pairs:
        product *= kept / judged
        assert survived / rounds_at_k == pytest.approx(product)


def test_nothing_to_divide_by_is_nan_and_not_zero() -> None:
    assert math.isnan(metrics.committed_per_round([]))
    assert math.isnan(metrics.mean_over_prompts(metrics.committed_per_round, []))
    assert all(math.isnan(bound) for bound in metrics.bootstrap_interval(metrics.committed_per_round, [row(1, 2)]))
    assert all(math.isnan(bound) for bound in metrics.wilson(0, 0))


def test_pooled_and_per_prompt_means_differ_where_responses_do() -> None:
    rounds = [row(4, 4, request=0), *[row(0, 4, request=1)] * 3]
    assert metrics.committed_per_round(rounds) == 2.0
    assert metrics.mean_over_prompts(metrics.committed_per_round, rounds) == 3.0


def test_the_bootstrap_resamples_responses_and_not_rounds() -> None:
    clustered = [row(4 if request % 2 else 0, 4, request=request) for request in range(20) for _ in range(30)]
    mixed = [row(4 if i % 2 else 0, 4, request=request) for request in range(20) for i in range(30)]
    low, high = metrics.bootstrap_interval(metrics.committed_per_round, clustered)
    narrow_low, narrow_high = metrics.bootstrap_interval(metrics.committed_per_round, mixed)
    assert low < 3.0 < high
    assert high - low > 1.0  # 20 independent responses
    assert narrow_high - narrow_low < 1e-12  # responses that do not differ leave no doubt


@pytest.mark.parametrize(("level", "z"), [(0.95, 1.95996), (0.8, 1.28155)])
def test_the_bootstrap_is_as_wide_as_the_theory_says(level: float, z: float) -> None:
    """400 responses of equal length, tau 1 or 5: a standard error of 2 / sqrt(400); half the width would be wrong."""
    rounds = [row(4 if request % 2 else 0, 4, request=request) for request in range(400) for _ in range(2)]
    low, high = metrics.bootstrap_interval(metrics.committed_per_round, rounds, level=level)
    assert high - low == pytest.approx(2 * z * 2 / math.sqrt(400), rel=0.1)
    assert (low + high) / 2 == pytest.approx(3.0, abs=0.03)


def test_the_interval_of_a_ratio_is_the_bootstrap_of_the_same_metric() -> None:
    rounds = [row((7 * i + request) % 5, 4, request=request) for request in range(15) for i in range(1 + request % 4)]
    responses = metrics.by_prompt(rounds).values()
    parts = [(sum(r.committed for r in rows), len(rows)) for rows in responses]
    assert metrics.ratio_interval(parts) == metrics.bootstrap_interval(metrics.committed_per_round, rounds)
    assert all(math.isnan(v) for v in metrics.ratio_interval([(1, 2)]) + metrics.ratio_interval([(0, 0), (0, 0)]))


def test_requests_of_two_runs_are_two_responses() -> None:
    """Request numbers start again in every run, and prompts are asked again: neither alone names a response."""
    rounds = [replace(row(1, 2, request=request), prompt_id=prompt) for prompt in "ab" for request in (0, 1)]
    assert sorted(map(len, metrics.by_prompt(rounds).values())) == [1, 1, 1, 1]


def test_only_rounds_in_both_phases_straddle() -> None:
    both: list[Phase] = ["think", "output"]
    rounds = [row(1, 1), replace(row(1, 1), phases=both), replace(row(1, 1), phases=["think", "think"]), row(0, 1)]
    assert metrics.straddle_rate(rounds) == 1 / 4


def test_wilson_interval_of_a_textbook_case() -> None:
    low, high = metrics.wilson(187, 200)
    assert (round(low, 3), round(high, 3)) == (0.892, 0.962)
    n, p, z = 200, 187 / 200, 1.6448536  # 90 %, by its formula
    middle, half = (
        (p + z * z / (2 * n)) / (1 + z * z / n),
        z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)),
    )
    assert metrics.wilson(187, 200, 0.9) == pytest.approx((middle - half, middle + half), abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_committed_tokens_are_accepted_ones_and_one_of_the_target(pairs: list[tuple[int, int]]) -> None:
    rounds = Rounds(row(min(pair), max(pair), request=i) for i, pair in enumerate(pairs))
    assert sum(metrics.phase_counts(rounds).values()) == sum(r.committed for r in rounds)
    assert metrics.committed_per_round(rounds) == pytest.approx(metrics.accepted_per_round(rounds) + 1)
    assert 1.0 <= metrics.committed_per_round(rounds) <= 1 + max(r.verified for r in rounds)
