"""Depth and threshold from the past: the best point is found, the present does not move it, and nobody gets stuck."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.engine.frontier import verification_lengths
from companion.protocols import Draft, Outcome, RequestView
from companion.scheduling.capacity import Capacity, Curve
from companion.scheduling.full_draft import ALL
from companion.scheduling.lagged_threshold import LaggedThreshold

FREE = Capacity(Curve((1, 999), (1.0, 1.0)))
DEAR = Capacity(Curve((1, 999), (1.0, 999.0)))  # every token costs as much as the first


def views(count):
    return [RequestView(i, 10, "output", 50) for i in range(count)]


def seen(policy, rows, steps=1):
    for _ in range(steps):
        policy.observe([Outcome(i, row, 0, 0, False) for i, row in enumerate(rows)])
    return policy


def eager(capacity, **options):
    return LaggedThreshold(capacity, **{"lag": 1, "every": 1, "explore": 10**6} | options)


def drafted(policy, requests=1):
    return policy.draft_depths(views(requests))[0]


def admitted(policy, rows):
    return verification_lengths(policy, views(len(rows)), [Draft([0] * len(c), confidence=list(c)) for c in rows])


def restated(steps, requests, capacity):
    """All depths and all numbers of slots, tried one by one."""
    rows = [row for step in steps for row in step]
    best = requests / float(capacity.seconds(requests, requests, drafted=0)), 0
    for depth in range(1, len(rows[0]) + 1):
        slots = sorted((float(np.prod(row[:k])) for row in rows for k in range(1, depth + 1)), reverse=True)
        for m in range(1, len(slots) + 1):
            share = requests / len(rows)
            seconds = float(capacity.seconds(requests + share * m, requests, depth=depth))
            best = max(best, ((requests + share * sum(slots[:m])) / seconds, depth))
    return best


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_it_finds_the_best_depth(seed, requests, steps):
    generator = np.random.default_rng(seed)
    past = [generator.random((requests, 3)).round(2).tolist() for _ in range(steps)]
    verify = Curve(tuple(range(1, 14)), tuple((1 + generator.random(13) * 2).tolist()))
    draft = tuple(Curve((1, 3), (s, 2 * s)) for s in (0.3 * np.cumsum(generator.random(3))).tolist())
    capacity = Capacity(verify, draft, read=0.1)
    policy = eager(capacity, window=requests * steps)
    for step in past:
        seen(policy, step)
    depth, bar = policy.search(requests, capacity)
    theta, expected = restated(past, requests, capacity)
    rows = [np.cumprod(row) for step in past for row in step]
    share = requests / len(rows)
    chosen = [a for row in rows for a in row[:depth] if a >= bar]
    seconds = float(capacity.seconds(requests + share * len(chosen), requests, drafted=requests, depth=depth))
    assert depth == expected
    if depth and len(set(chosen)) == len(chosen):
        assert (requests + share * sum(chosen)) / seconds == pytest.approx(theta)


def test_before_there_is_a_past_all_is_drafted_and_verified():
    policy = LaggedThreshold(DEAR, lag=2, every=1)
    assert drafted(policy) == ALL
    assert admitted(policy, [[0.5, 0.0]]) == [2]
    assert drafted(seen(policy, [[0.5, 0.5]])) == ALL, "a step of age 1 was looked at with a lag of 2"
    assert drafted(seen(policy, [[0.5, 0.5]])) == 0


def test_free_drafting_and_verifying_is_drafted_to_the_end_and_dear_ones_not_at_all():
    assert drafted(seen(eager(FREE), [[0.9, 0.8, 0.1]])) == 3
    assert drafted(seen(eager(DEAR), [[0.9, 0.8, 0.1]])) == 0
    loop = Capacity(Curve((1, 9), (1.0, 1.0)), tuple(Curve((1,), (0.3 * d,)) for d in (1, 2, 3)))
    assert drafted(seen(eager(loop), [[0.9, 0.8, 0.1]])) == 2, "1.9 / 1.3, 2.62 / 1.6, 2.69 / 1.9"


def test_the_threshold_is_the_survival_of_the_last_slot_that_was_worth_it():
    steep = Capacity(Curve((1, 3, 9), (1.0, 1.2, 9.0)))
    policy = seen(eager(steep), [[0.9, 0.5, 0.5]])
    assert drafted(policy) == 2
    assert policy.bar == 0.45
    assert admitted(policy, [[0.9, 0.4], [0.9, 0.6], [0.4, 1.0]]) == [1, 2, 0], "every request for itself"


def test_slots_that_were_not_drafted_count_as_when_they_last_were():
    policy = seen(eager(FREE, window=1), [[0.9, 0.8, 0.7]])
    assert drafted(seen(policy, [[0.9]])) == 3
    assert policy.search(1, FREE) == (3, pytest.approx(0.9 * 0.8 * 0.7))
    assert drafted(seen(policy, [[]])) == 3, "a step that drafted nothing wiped the memory"


def test_who_drafts_less_than_the_block_looks_at_all_of_it_now_and_then():
    policy = seen(eager(DEAR, explore=4), [[0.9, 0.9]])
    assert [drafted(policy) for _ in range(9)] == [0, 0, 0, ALL, 0, 0, 0, ALL, 0]
    whole = seen(eager(FREE, explore=4), [[0.9, 0.9]])
    assert [drafted(whole) for _ in range(9)] == [2] * 9
    assert admitted(policy, [[0.95, 0.1]]) == [1], "what is drafted to look is verified where it is likely"


def test_a_search_serves_several_steps():
    policy = seen(eager(FREE, every=3, window=8), [[0.9, 0.9]])
    assert drafted(policy) == 2
    seen(policy, [[0.0, 0.0]], steps=8)
    assert [drafted(policy) for _ in range(3)] == [2, 2, 0]


def test_the_present_does_not_decide():
    """Neither depth nor threshold may hang on what the step itself drafts."""
    policy = seen(eager(Capacity(Curve((1, 3, 9), (1.0, 1.2, 9.0)))), [[0.9, 0.5, 0.5]])
    depth, bar = drafted(policy), policy.bar
    admitted(policy, [[0.1, 0.1]])
    assert (policy.depth, policy.bar) == (depth, bar)


@pytest.mark.parametrize("name", ["lag", "window", "every", "explore"])
def test_bad_settings(name):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        LaggedThreshold(FREE, **{name: 0})


@pytest.mark.parametrize("bad", [1.5, -0.1, float("nan")])
def test_confidences_that_are_no_probabilities(bad):
    with pytest.raises(ValueError, match="a probability between 0 and 1"):
        admitted(eager(FREE), [[0.9, bad]])
    assert drafted(eager(FREE), 0 + 1) == ALL
    with pytest.raises(ValueError, match="the drafter gives none"):
        verification_lengths(eager(FREE), views(1), [Draft([0])])


def test_a_drafter_that_is_too_sure_is_seen_through():
    """Each draft is called 0.9 and one in four is right: at its word the block is worth it, by its record it is not."""
    dear = Capacity(Curve((1, 9), (1.0, 2.6)))  # each token 0.2
    believed, known = eager(dear), eager(dear)
    for step in range(200):
        hit = int(step % 4 == 0)
        known.observe([Outcome(0, [0.9, 0.9], 2, hit, True)])
        believed.observe([Outcome(0, [0.9, 0.9], 0, 0, False)])
    assert (drafted(believed), drafted(known)) == (2, 1)
    assert admitted(known, [[0.9, 0.9]]) == [1]
