"""The simulator by hand: exact times and tokens; nothing is lost; queues are as theory has them."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.protocols import RequestView
from companion.scheduling.capacity import Capacity, CapacityTable, Curve
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.goodput import Goodput
from companion.scheduling.lagged import LaggedTopK
from companion.scheduling.lagged_threshold import LaggedThreshold
from companion.scheduling.prefix import PrefixScheduler
from companion.scheduling.threshold import Threshold
from companion.serving import Arrivals, Oracle, Replay, SameStep, Window, roofline_table, simulate, workload

SECOND_A_TOKEN = Capacity(Curve((1, 100), (1.0, 100.0)), (Curve((1, 100), (10.0, 10.0)),))


def replay(bits, prompt_length=1, confidence=None, **labels):
    tokens = np.arange(np.size(bits)).reshape(np.shape(bits))
    c = np.full(np.shape(bits), 0.5) if confidence is None else confidence
    return Replay.of(tokens, bits, c, prompt_length=prompt_length, **labels)


A = replay([[1, 1], [0, 1], [1, 0]], prompt_length=2)
B = replay([[0, 1], [1, 1]], prompt_length=3)


# --- by hand --------------------------------------------------------------------------------------------------------


def test_two_requests_at_depth_two():
    log = simulate(FixedDepth(2), SECOND_A_TOKEN, [A, B], Arrivals.closed_loop(2, 2))
    assert [(s.end, s.seconds, s.drafting, s.tokens, s.prompt_tokens) for s in log.steps] == [
        (5.0, 5.0, 0.0, 5, 5),  # both prompts
        (21.0, 16.0, 10.0, 6, 0),  # two anchors, four drafts, and drafting
        (34.0, 13.0, 10.0, 3, 0),
    ]
    found = [(r.step, r.request, r.anchor, r.drafted, r.verified, r.accepted, r.committed) for r in log.rounds]
    assert found == [
        (1, 0, 0, 2, 2, 2, 3),
        (1, 1, 0, 2, 2, 0, 1),
        (2, 1, 1, 2, 2, 1, 1),
    ]  # B's text ends within its draft
    assert [(r.joined, r.first, r.finished) for r in log.requests] == [(0.0, 5.0, 21.0), (0.0, 5.0, 34.0)]
    load = Window.whole(log).load()
    assert load.throughput == 7 / 34
    assert load.mean_speed == 5 / (16 + 16 + 13)
    assert (load.budget, load.accepted, load.wasted, load.committed) == (3.0, 1.0, 1.0, 5 / 3)
    assert load.drafting_share == 20 / 34
    assert math.isnan(load.wait_mean), "in a closed loop nobody waits"


def test_plain_decoding_does_not_pay_for_drafting():
    log = simulate(FixedDepth(0), SECOND_A_TOKEN, [A, B], Arrivals.closed_loop(2, 2))
    assert [s.end for s in log.steps] == [5.0, 7.0, 9.0, 10.0]
    assert [r.finished for r in log.requests] == [10.0, 9.0]


def test_a_shallow_draft_is_charged_as_one():
    by_depth = Capacity(Curve((1, 100), (1.0, 100.0)), (Curve((1,), (10.0,)), Curve((1,), (30.0,))))
    pool = [replay([[1, 1], [1, 1], [0, 0], [0, 0]], confidence=[[0.9, 0.9]] * 4)]
    steps = [
        simulate(FixedDepth(d), by_depth, pool, Arrivals.closed_loop(1, 1), prefill=False).steps[0] for d in (0, 1, 2)
    ]
    assert [step.drafting for step in steps] == [0.0, 10.0, 30.0]
    assert [step.seconds for step in steps] == [1.0, 12.0, 33.0]


def test_prompts_read_elsewhere():
    log = simulate(FixedDepth(0), SECOND_A_TOKEN, [A, B], Arrivals.closed_loop(2, 2), prefill=False)
    assert [s.end for s in log.steps] == [2.0, 4.0, 5.0]


def test_a_trace_of_ones_own_and_who_waits():
    arrivals = Arrivals.trace([3.0, 1.0], max_batch=1)
    log = simulate(FixedDepth(0), SECOND_A_TOKEN, [A, B], arrivals)
    assert [(r.arrived, r.joined, r.waited, r.finished) for r in log.requests] == [
        (1.0, 1.0, 0.0, 6.0),  # two for the prompt, then three tokens
        (3.0, 6.0, 3.0, 11.0),
    ]
    late = simulate(FixedDepth(0), SECOND_A_TOKEN, [A, B], Arrivals.trace([1.0, 30.0], max_batch=2))
    assert [r.joined for r in late.requests] == [1.0, 30.0], "an idle machine does not wait for its clock"
    load = Window.whole(late).load()
    assert (load.throughput, load.seconds) == (7 / 34, 34.0), "from the first request on, the idle spell included"
    assert (load.concurrency, load.step_seconds) == (1.0, 10 / 7)


def test_who_joins_as_a_window_opens_has_waited_in_it():
    """Whatever the rounding of sums: 0.1 + 0.2 - 0.2 is more than 0.1."""
    tenths, pool = Capacity(Curve((1, 2), (0.1, 0.2))), [replay([[0]], limit=2), replay([[0]] * 2)]
    log = simulate(FixedDepth(1), tenths, pool, Arrivals.trace([0.0, 0.05], 1), prefill=False)
    assert log.requests[1].joined == log.steps[0].end == 0.1 < log.steps[1].end - log.steps[1].seconds
    assert Window(log, 1, 3).load().wait_mean == pytest.approx(0.05)


def test_the_context_is_the_mean_over_those_that_decode():
    table = CapacityTable((0, 100), (Curve((1, 100), (1.0, 1.0)), Curve((1, 100), (101.0, 101.0))), reads=(0.0, 100.0))
    log = simulate(FixedDepth(0), table, [A, B], Arrivals.closed_loop(2, 2))
    means = [0.0, (3 + 4) / 2, (4 + 5) / 2, 5.0]  # prompt and response so far, the anchor included
    assert [s.seconds for s in log.steps] == pytest.approx(
        [1 + m + n * m for m, n in zip(means, (2, 2, 2, 1), strict=True)]
    )


def test_the_cap_cuts_the_draft_like_the_engine_does():
    short = replay([[1, 1, 1]] * 3, limit=4)  # one token is out: 3 may follow, so 2 are drafted
    log = simulate(FixedDepth(3), SECOND_A_TOKEN, [short], Arrivals.closed_loop(1, 1))
    assert [(r.drafted, r.accepted, r.committed) for r in log.rounds] == [(2, 2, 3)]


# --- what holds for any policy --------------------------------------------------------------------------------------

TABLE = Capacity(Curve((1, 4, 9, 64), (1.0, 1.1, 1.9, 9.0)), (Curve((1, 8), (0.1, 0.3)),))
POLICIES = [
    lambda: FixedDepth(0),
    lambda: FixedDepth(2),
    lambda: PrefixScheduler(TABLE),
    lambda: LaggedTopK(TABLE),
    lambda: Threshold(0.4, "prefix"),
    lambda: Goodput(TABLE, max_depth=3),
    lambda: LaggedThreshold(TABLE, lag=1, every=1, explore=3),
    lambda: LaggedThreshold(TABLE, lambda slot, c: c / slot, lag=1, every=1, explore=3),
    lambda: SameStep(TABLE),
    lambda: Oracle(TABLE),
]


def random_pool(seed, count=6, depth=3):
    generator = np.random.default_rng(seed)
    pool = []
    for i in range(count):
        confidence = generator.random((int(generator.integers(1, 9)), depth))
        bits = generator.random(confidence.shape) < confidence
        limit = len(bits) + 1 + i if i < 3 else None  # the cap of some cuts their last drafts, down to none
        labels = {"domain": "even" if i % 2 else "odd", "limit": limit}
        pool.append(replay(bits, int(generator.integers(1, 5)), confidence, **labels))
    return pool


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.booleans(), st.sampled_from(POLICIES))
def test_every_token_is_committed_once(seed, max_batch, prefill, make):
    pool = random_pool(seed)
    log = simulate(make(), TABLE, pool, Arrivals.closed_loop(max_batch, len(pool)), prefill=prefill)
    for request in log.requests:
        own = [r for r in log.rounds if r.request == request.number]
        assert sum(r.committed for r in own) == request.replay.length - 1
        assert all(r.accepted <= r.verified <= r.drafted <= 3 and 1 <= r.committed <= r.accepted + 1 for r in own)
        assert request.finished >= request.first >= request.joined >= request.arrived
    assert all(
        s.tokens == s.decoding + s.prompt_tokens + sum(r.verified for r in log.rounds if r.step == i)
        for i, s in enumerate(log.steps)
    )
    assert sum(s.seconds for s in log.steps) == pytest.approx(log.steps[-1].end)
    assert all(s.requests <= max_batch for s in log.steps)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7))
def test_the_oracle_wastes_nothing_and_no_step_of_the_same_drafts_yields_more(seed, batch):
    generator = np.random.default_rng(seed)
    pool = random_pool(seed, batch)
    views = [RequestView(i, 5, "output", 50) for i in range(batch)]
    drafts, leading = [r.draft(0, 3) for r in pool], [r.leading[0] for r in pool]
    lengths = np.array(Oracle(TABLE).lengths_seeing(views, drafts, leading))
    assert (lengths <= leading).all()
    rate = (batch + lengths.sum()) / float(TABLE.seconds(batch + lengths.sum(), batch))
    for _ in range(50):
        other = generator.integers(0, 4, batch)
        gained = batch + np.minimum(other, leading).sum()
        assert gained / float(TABLE.seconds(batch + other.sum(), batch)) <= rate * (1 + 1e-12)


def test_the_oracle_verifies_all_that_will_be_accepted_where_it_is_free():
    free = Capacity(Curve((1, 100), (1.0, 1.0)))
    views = [RequestView(i, 5, "output", 50) for i in range(2)]
    assert list(Oracle(free).lengths_seeing(views, [A.draft(0, 2), B.draft(0, 2)], [2, 0])) == [2, 0]
    dear = Capacity(Curve((1, 2, 3, 100), (1.0, 1.0, 9.0, 99.0)))
    assert list(Oracle(dear).lengths_seeing(views, [A.draft(0, 2), B.draft(0, 2)], [2, 0])) == [0, 0]


def test_the_same_step_search_jumps_a_cliff_that_stops_algorithm_1():
    cliff = Capacity(Curve((1, 2, 3), (1.0, 2.0, 2.0)))  # the second slot is free once the first is paid
    sure = [replay([[1, 1]], confidence=[[0.9, 0.9]])]
    arrivals = Arrivals.closed_loop(1, 1)
    stopped, jumped = (
        simulate(p, cliff, sure, arrivals, prefill=False) for p in (PrefixScheduler(cliff), SameStep(cliff))
    )
    assert [r.verified for r in stopped.rounds] == [0]
    assert [r.verified for r in jumped.rounds] == [2]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_no_lengths_at_all_yield_more_than_the_oracles_where_a_curve_falls(seed, batch):
    generator = np.random.default_rng(seed)
    jagged = Capacity(Curve(tuple(range(1, 13)), tuple(generator.uniform(0.5, 3.0, 12).tolist())))
    pool = random_pool(seed, batch)
    views = [RequestView(i, 5, "output", 50) for i in range(batch)]
    drafts = [r.draft(0, int(generator.integers(0, 4))) for r in pool]
    leading = [r.leading[0] for r in pool]

    def rate(lengths):
        gained = batch + sum(map(min, lengths, leading))
        return gained / float(jagged.seconds(batch + sum(lengths), batch))

    found = list(Oracle(jagged).lengths_seeing(views, drafts, leading))
    assert all(length <= len(draft) for length, draft in zip(found, drafts, strict=True))
    every = product(*(range(len(draft) + 1) for draft in drafts))
    assert rate(found) == pytest.approx(max(map(rate, every)))


class Slowly:
    """A policy in disguise, so that nothing is known of it and it goes through the Frontier."""

    def __init__(self, policy):
        self.policy, self.name = policy, policy.name

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def draft_depths(self, requests):
        return self.policy.draft_depths(requests)

    def admit(self, frontier):
        self.policy.admit(frontier)

    def observe(self, outcomes):
        self.policy.observe(outcomes)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from(POLICIES[:8]), st.booleans())
def test_the_fast_way_to_the_lengths_is_the_engines(seed, max_batch, make, saturated):
    pool = random_pool(seed, 12)
    if saturated:  # ties, and slots that cannot survive
        pool = [r.with_confidence(np.round(r.confidence)) for r in pool]
    arrivals = Arrivals.closed_loop(max_batch, len(pool))
    fast, slow = (simulate(policy, TABLE, pool, arrivals) for policy in (make(), Slowly(make())))
    assert fast.rounds == slow.rounds
    assert fast.steps == slow.steps


# --- queues, workloads, windows -------------------------------------------------------------------------------------


def test_poisson_arrivals_wait_as_long_as_theory_says():
    """M/D/1: mean wait = rho S / (2 (1 - rho)) for a service of S seconds, rho = rate S."""
    one = replay([[0]])  # a prompt of one token and two tokens of text: S = 2 s plain
    clock = Capacity(Curve((1, 9), (1.0, 9.0)))
    arrivals = Arrivals.poisson(0.25, 12_000, max_batch=1, seed=3)
    assert np.diff(arrivals.times).mean() == pytest.approx(4.0, rel=0.03)
    assert np.diff(arrivals.times).std() == pytest.approx(4.0, rel=0.05), (
        "an exponential gap spreads as wide as its mean"
    )
    log = simulate(FixedDepth(0), clock, [one] * 12_000, arrivals)
    assert Window.whole(log).load().wait_mean == pytest.approx(1.0, rel=0.12)


def test_batching_shortens_the_queue():
    pool = random_pool(0) * 30
    waits = [
        Window.whole(simulate(FixedDepth(2), TABLE, pool, Arrivals.poisson(0.3, len(pool), size))).load().wait_mean
        for size in (1, 2, 8)
    ]
    assert waits[0] > waits[1] > waits[2]


def test_a_workload_follows_its_mix_and_its_seed():
    pool = random_pool(1)
    drawn = workload(pool, 4000, seed=0, mix={("odd", ""): 3, ("even", ""): 1})
    assert np.mean([r.domain == "odd" for r in drawn]) == pytest.approx(0.75, abs=0.03)
    assert workload(pool, 50, seed=5) == workload(pool, 50, seed=5)
    assert workload(pool, 50, seed=5) != workload(pool, 50, seed=6)
    assert len({id(r) for r in workload(pool, 500, seed=0)}) < len(pool), "the pool itself is resampled"
    assert workload(pool, 8, seed=None) == [*pool, *pool[:2]]


def test_a_steady_window_leaves_out_how_a_run_begins_and_ends():
    pool = random_pool(2) * 20
    log = simulate(FixedDepth(2), TABLE, pool, Arrivals.closed_loop(4, len(pool)))
    window = Window.steady(log, 8)
    assert {s.requests for s in log.steps[window.first : window.last]} == {4}
    assert window.load().concurrency == pytest.approx(4.0)
    assert {s.requests for s in log.steps} > {4}


def test_who_starves():
    hopeless = replay([[0]] * 6, confidence=[[0.01]] * 6)
    sure = replay([[0]] * 6, confidence=[[0.99]] * 6)
    one_slot = Capacity(Curve((1, 3, 4, 9), (1.0, 1.0, 5.0, 50.0)))  # room for one draft beside two anchors
    log = simulate(PrefixScheduler(one_slot), one_slot, [hopeless, sure], Arrivals.closed_loop(2, 2), prefill=False)
    found = Window.whole(log).fairness()
    assert found.share.tolist() == [0.0, 1.0]
    assert found.starved.tolist() == [6, 0]
    assert found.need.tolist() == pytest.approx([0.01, 0.99])


def test_a_slot_ends_a_spell_without():
    now_and_then = replay([[0]] * 6, confidence=[[0.01], [0.9], [0.01], [0.01], [0.9], [0.01]])
    middling = replay([[0]] * 6, confidence=[[0.5]] * 6)
    one_slot = Capacity(Curve((1, 3, 4, 9), (1.0, 1.0, 5.0, 50.0)))
    log = simulate(
        PrefixScheduler(one_slot), one_slot, [now_and_then, middling], Arrivals.closed_loop(2, 2), prefill=False
    )
    assert [r.verified for r in log.rounds if r.request == 0] == [0, 1, 0, 0, 1, 0]
    assert Window.whole(log).fairness().starved.tolist() == [2, 1]


# --- a table by arithmetic ------------------------------------------------------------------------------------------


def test_the_roofline_says_that_it_is_none_of_a_measurement():
    table = roofline_table()
    assert type(table).__name__ == "AnalyticTable"
    assert table.provenance["kind"] == "analytic roofline, not measured"
    weights = 36 * 2560 * (2 * 4096 + 2 * 1024 + 3 * 9728) + 151_936 * 2560
    assert float(table.at(0).seconds(1, 1, drafted=0)) == pytest.approx(2 * weights / 4.8e12)
    assert float(table.at(0).seconds(4096, 1, drafted=0)) == pytest.approx(2 * weights * 4096 / 989e12)
    assert float(table.at(1000).seconds(1, 1, drafted=0) - table.at(0).seconds(1, 1, drafted=0)) == pytest.approx(
        1000 * 2 * 36 * 8 * 128 * 2 / 4.8e12
    )
    assert float(table.at(0).seconds(206, 1, 0)) == float(table.at(0).seconds(1, 1, 0))
    assert float(table.at(0).seconds(208, 1, 0)) > float(table.at(0).seconds(1, 1, 0))
    tiles = roofline_table(tile=128).at(0)
    assert float(tiles.verify(257)) == pytest.approx(float(tiles.verify(384)))
    assert float(tiles.verify(384)) < float(tiles.verify(385))


def test_drafting_by_hand_at_every_number_of_requests():
    """The whole block through five layers; the head and the Markov head over d slots, the latter one by one."""
    layers, head, factor = 5 * 2560 * (2 * 4096 + 2 * 1024 + 3 * 9728), 151_936 * 2560, 256 * 151_936
    capacity = roofline_table().at(0)

    def seconds(rows, weights):
        return max(2 * rows * weights / 989e12, 2 * weights / 4.8e12)

    for requests in range(1, 1025):
        for d in (1, 3, 7):
            by_hand = seconds(7 * requests, layers) + seconds(d * requests, head) + d * seconds(requests, factor)
            assert capacity.drafting(requests, d) == pytest.approx(by_hand, rel=1e-12)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Arrivals.trace([], 1), "this one is empty"),
        (lambda: Arrivals.trace([0.0, -1.0], 1), "from 0 on, got -1.0"),
        (lambda: Arrivals.trace([math.nan], 1), "from 0 on, got nan"),
        (lambda: Arrivals((2.0, 1.0), 1), "sort the trace"),
        (lambda: Arrivals.closed_loop(0, 3), "max_batch"),
        (lambda: Arrivals.poisson(0.0, 3, 1), "rate must be a positive"),
        (lambda: Replay.of([[1]], [[True]], [[1.5]], name="x"), "response 'x': confidences must be probabilities"),
        (lambda: Replay.of([[1]], [[True]], [[math.nan]]), "confidences must be probabilities"),
        (lambda: Replay.of([[1]], [[True, False]]), "tables of anchors by slots"),
        (lambda: Replay.of(np.empty((0, 3)), np.empty((0, 3))), "tables of anchors by slots"),
        (lambda: Replay.of([[1]], [[True]], limit=1), "a limit that it fits in"),
        (lambda: Replay.of([[1]], [[True]], phases=["output"]), "needs 2 phases, got 1"),
        (lambda: roofline_table(gamma=-1), "must be >= 0"),
        (lambda: roofline_table(bytes_per_weight=0), "at least 1"),
        (lambda: workload([], 3), "responses to replay"),
        (lambda: workload([A], 3, mix={("math", "think"): 1.0}), "the mix asks for"),
        (lambda: workload([A], 3, mix={("", ""): 0.0}), "not all 0"),
        (lambda: simulate(FixedDepth(1), TABLE, [A], Arrivals.closed_loop(1, 2)), "each arrival needs a response"),
        (lambda: simulate(7, TABLE, [A], Arrivals.closed_loop(1, 1)), "policy must say"),
        (lambda: Capacity.of_steps({1: 2.0, 2: 0.0}), "positive and finite"),
        (lambda: roofline_table(tile=0), "at least 1 row"),
        (lambda: Window.steady(simulate(FixedDepth(1), TABLE, [A], Arrivals.closed_loop(1, 1)), 1), "serve more"),
    ],
)
def test_bad_input(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("make", [PrefixScheduler, LaggedTopK, SameStep])
def test_a_recording_without_confidences_has_no_scheduler(make):
    bare = Replay.of([[1, 2]], [[True, True]])
    with pytest.raises(ValueError, match="schedules by confidence"):
        simulate(make(TABLE), TABLE, [bare, bare, bare], Arrivals.closed_loop(1, 3))
