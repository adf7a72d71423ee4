"""Metrics against rounds counted by hand, and the traps of other definitions."""

from __future__ import annotations

import math

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


def test_wilson_interval_of_a_textbook_case() -> None:
    low, high = metrics.wilson(187, 200)
    assert (round(low, 3), round(high, 3)) == (0.892, 0.962)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30))
def test_committed_tokens_are_accepted_ones_and_one_of_the_target(pairs: list[tuple[int, int]]) -> None:
    rounds = Rounds(row(min(pair), max(pair), request=i) for i, pair in enumerate(pairs))
    assert sum(metrics.phase_counts(rounds).values()) == sum(r.committed for r in rounds)
    assert metrics.committed_per_round(rounds) == pytest.approx(metrics.accepted_per_round(rounds) + 1)
    assert 1.0 <= metrics.committed_per_round(rounds) <= 1 + max(r.verified for r in rounds)
