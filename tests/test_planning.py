"""Depth planning: the note's table, the two planners side by side, and how little is certified."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.ceiling import entropy_ceiling, spike_entropy
from companion.planning import CostModel, plan_depth, plan_depths, throughput

QWEN3_V = 151_936
TABLE_H = np.array([0.5, 2.0, 4.0, 8.0, 11.0, math.log(QWEN3_V)])


def test_the_notes_best_depths():
    assert plan_depths(entropy_ceiling(TABLE_H, QWEN3_V)).tolist() == [7, 7, 5, 2, 1, 1]


def test_seven_to_two_at_eight_nats():
    plan = plan_depth(entropy_ceiling(8.0, QWEN3_V))
    assert plan.depth == 2
    assert plan.acceptance == pytest.approx(0.385, abs=5e-4)
    assert plan.tokens_per_round == pytest.approx(1 + 0.385362 + 0.385362**2, abs=1e-5)
    assert plan.tokens_per_us == pytest.approx(plan.tokens_per_round / (900 + 2 * 65))


def test_the_certified_planner_keeps_full_depth_up_to_11_33_nats():
    edge = spike_entropy(CostModel().certified_threshold, QWEN3_V)
    assert edge == pytest.approx(11.33, abs=5e-3)
    H = np.array([0.5, 2.0, 4.0, 8.0, 11.0, 11.32, 11.34, math.log(QWEN3_V)])
    assert plan_depths(entropy_ceiling(H, QWEN3_V), planner="certified").tolist() == [7, 7, 7, 7, 7, 7, 1, 1]


costs = st.builds(
    CostModel, draft_token_us=st.floats(0, 200), verify_fixed_us=st.floats(1, 2000), verify_token_us=st.floats(0, 200)
)


@given(st.floats(0, 1), costs, st.integers(0, 3), st.integers(0, 10))
def test_the_certified_planner_is_bang_bang(a, cost, low, extra):
    depth = plan_depth(a, cost, planner="certified", min_depth=low, max_depth=low + extra).depth
    if abs(a - cost.certified_threshold) > 1e-9:
        assert depth == (low + extra if a > cost.certified_threshold else low)


@given(st.floats(0, 1), costs)
def test_iid_never_plans_deeper_than_certified(a, cost):
    """tau(a, g) <= 1 + g a: the i.i.d. planner expects later slots to fail as well."""
    iid = plan_depth(a, cost).depth
    certified = plan_depth(a, cost, planner="certified").depth
    if abs(a - cost.certified_threshold) > 1e-9:
        assert iid <= certified


@given(costs, st.sampled_from(["iid", "certified"]))
def test_depth_never_rises_with_entropy(cost, planner):
    depths = plan_depths(entropy_ceiling(np.linspace(0, math.log(QWEN3_V), 60), QWEN3_V), cost, planner=planner)
    assert (np.diff(depths) <= 0).all()


@given(st.floats(0, 1), costs)
def test_the_planned_depth_is_the_argmax(a, cost):
    plan = plan_depth(a, cost, max_depth=7)
    theta = throughput(a, np.arange(1, 8), cost)
    assert plan.tokens_per_us >= theta.max() * (1 - 1e-11)
    assert (theta[: plan.depth - 1] < plan.tokens_per_us).all()


@pytest.mark.parametrize("cost", [CostModel(), CostModel(33, 700, 16), CostModel(7, 300, 4)])
def test_smallest_depth_on_ties(cost):
    """At a = c/F all depths tie in exact arithmetic; in floating point some are ahead by one rounding error."""
    assert plan_depth(cost.certified_threshold, cost, planner="certified").depth == 1


def test_smallest_depth_where_drafting_is_free_and_useless():
    free = CostModel(draft_token_us=0, verify_fixed_us=1, verify_token_us=0)
    assert plan_depth(0.0, free).depth == 1
    assert plan_depth(0.0, free, min_depth=0).depth == 0


def test_a_small_gain_is_a_gain_and_no_tie():
    """Free drafts at a = 0.001: the third slot adds one part in 10^9, far above rounding."""
    assert plan_depth(1e-3, CostModel(draft_token_us=0, verify_fixed_us=1, verify_token_us=0), max_depth=3).depth == 3


def test_minimum_zero_can_switch_speculation_off():
    assert plan_depth(0.01, min_depth=0).depth == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan_depth(1.5), "percentage"),
        (lambda: plan_depth(0.5, planner="magic"), "unknown planner 'magic'"),
        (lambda: plan_depth(0.5, min_depth=5, max_depth=3), "min_depth"),
        (lambda: plan_depth(0.5, min_depth=-1), "min_depth"),
        (lambda: CostModel(draft_token_us=-1), "draft_token_us"),
        (lambda: CostModel(verify_token_us=float("nan")), "verify_token_us"),
        (lambda: CostModel(verify_fixed_us=0), "verify_fixed_us must be positive"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
