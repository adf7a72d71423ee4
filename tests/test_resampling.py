"""The bootstrap over prompts and seeds against the width that theory gives it, and where there is nothing to see."""

from __future__ import annotations

import math

import numpy as np
import pytest

from companion.resampling import Interval, per_response, pooled, pooled_draws, prompt_weights, seed_weights


def parts(values: np.ndarray) -> np.ndarray:  # [S, P] -> [S, P, 2], ten rounds a response
    return np.stack([10 * values, np.full_like(values, 10.0)], -1)


def draws(table: np.ndarray, strata: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    prompts = prompt_weights(np.zeros(table.shape[1], int) if strata is None else strata, 4000, generator)
    return pooled_draws(table, prompts, seed_weights(len(table), 4000, generator))


def test_prompts_alone_make_the_standard_error_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(3, 1, size=200)
    table = parts(np.tile(values, (3, 1)))  # seeds that agree
    assert draws(table).std() == pytest.approx(values.std() / math.sqrt(200), rel=0.05)
    interval = Interval.of(pooled(table), draws(table))
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * values.std() / math.sqrt(200), rel=0.08)
    assert pooled(table) == pytest.approx(values.mean())
    assert interval.low < pooled(table) < interval.high


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_seeds_alone_make_the_unbiased_standard_error_however_few_they_are(seeds: int) -> None:
    values = np.linspace(3, 4, seeds)
    table = parts(np.tile(values[:, None], (1, 50)))  # prompts that agree
    assert draws(table).std() == pytest.approx(values.std(ddof=1) / math.sqrt(seeds), rel=0.05)


def test_both_add_up() -> None:
    prompt, seed = np.random.default_rng(2).normal(0, 1, size=100), np.array([-0.2, 0.0, 0.1, 0.3])
    variance = prompt.var() / 100 + seed.var(ddof=1) / 4
    assert draws(parts(3 + seed[:, None] + prompt)).var() == pytest.approx(variance, rel=0.08)


def test_prompts_are_drawn_inside_their_domain() -> None:
    """Domains that differ are no source of doubt: how many prompts each has was decided, not drawn."""
    values, strata = np.repeat([1.0, 5.0], 30), np.repeat([0, 1], 30)
    assert draws(parts(values[None]), strata).std() < 1e-12
    assert draws(parts(values[None])).std() > 0.2
    weights = prompt_weights(strata, 50, np.random.default_rng(0))
    assert set(weights[:, :30].sum(1)) == set(weights[:, 30:].sum(1)) == {30.0}


def test_one_seed_says_nothing_of_others_and_an_empty_group_nothing_at_all() -> None:
    assert draws(parts(np.full((1, 20), 3.0))).std() == 0
    empty = np.zeros((2, 20, 2))
    assert math.isnan(pooled(empty))
    assert math.isnan(Interval.of(pooled(empty), draws(empty)).low)


def test_the_mean_of_responses_leaves_out_those_without_rounds() -> None:
    table = np.array([[[6.0, 2.0], [4.0, 4.0], [0.0, 0.0]]])
    assert pooled(table) == 10 / 6
    assert pooled(per_response(table)) == (3 + 1) / 2


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Ratios of sums with 5 seeds and 60 prompts, both random: 95 % demanded; percentiles of few seeds fall short."""
    generator, hits = np.random.default_rng(3), 0
    for trial in range(200):
        values = 3 + generator.normal(0, 0.15, size=(5, 1)) + generator.normal(0, 0.8, size=(1, 60))
        table, rng = parts(values), np.random.default_rng(trial)
        weights = prompt_weights(np.zeros(60, int), 400, rng)
        interval = Interval.of(pooled(table), pooled_draws(table, weights, seed_weights(5, 400, rng)))
        hits += interval.low <= 3 <= interval.high
    assert 0.88 <= hits / 200 <= 0.99


@pytest.mark.parametrize("resamples", [-1, 0, 1])
def test_no_interval_comes_of_so_few_resamples(resamples: int) -> None:
    generator = np.random.default_rng(0)
    for draw in (
        lambda: prompt_weights(np.zeros(3, dtype=np.int64), resamples, generator),
        lambda: seed_weights(3, resamples, generator),
    ):
        with pytest.raises(ValueError, match="resamples must be at least 2 for an interval"):
            draw()
