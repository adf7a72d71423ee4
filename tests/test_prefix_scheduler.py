"""Algorithm 1 against the texts' own numbers, a plain restatement, brute force, and its form inside the engine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.engine.frontier import DraftFrontier, verification_lengths
from companion.protocols import Draft, Outcome, RequestView
from companion.scheduling.capacity import Capacity, Curve
from companion.scheduling.full_draft import FullDraft
from companion.scheduling.lagged import LaggedTopK
from companion.scheduling.prefix import (
    PrefixScheduler,
    exhaustive_lengths,
    global_tokens,
    prefix_lengths,
    throughput_path,
)
from companion.scheduling.ranking import admit_by_survival, ranked, survival
from companion.scheduling.threshold import Threshold

TWO = Capacity.of_steps({2: 1.0, 3: 0.8, 4: 0.55, 5: 0.5, 6: 0.3})
TWO_REQUESTS = [[0.9, 0.5], [0.6, 0.6]]
PAPER = Capacity.of_steps([1.0, 0.5, 0.45])


def restated(confidence, steps_per_second):
    """Algorithm 1 as the paper writes it, with plain lists."""
    a = [list(np.cumprod(row)) for row in confidence]
    order = sorted(
        ((r, j) for r, row in enumerate(a) for j in range(len(row)) if row[j] > 0), key=lambda s: (-a[s[0]][s[1]], s[1])
    )
    lengths, tokens, tau = [0] * len(a), len(a), float(len(a))
    best, chosen = tau * steps_per_second(tokens), list(lengths)
    for r, j in order:
        lengths[r], tokens, tau = j + 1, tokens + 1, tau + a[r][j]
        theta = tau * steps_per_second(tokens)
        if theta <= best:
            break
        best, chosen = theta, list(lengths)
    return chosen


def in_the_engine(policy, confidence):
    views = [RequestView(i, 10, "output", 100) for i in range(len(confidence))]
    return verification_lengths(policy, views, [Draft([0] * len(row), confidence=list(row)) for row in confidence])


def test_the_trace_of_two_requests():
    path = throughput_path(TWO_REQUESTS, TWO)
    assert path.theta == pytest.approx([2.00, 2.32, 1.925, 1.975, 1.293])
    assert path.requests.tolist() == [0, 1, 0, 1]
    assert prefix_lengths(TWO_REQUESTS, TWO).tolist() == [1, 0]
    assert in_the_engine(PrefixScheduler(TWO), TWO_REQUESTS) == [1, 0]


def test_the_trace_of_two_requests_is_not_unimodal():
    """The review calls it so; it dips to 1.925 and rises to 1.975. The early stop is optimal here nevertheless."""
    theta = throughput_path(TWO_REQUESTS, TWO).theta
    assert theta[2] < theta[3]
    assert prefix_lengths(TWO_REQUESTS, TWO).tolist() == exhaustive_lengths(TWO_REQUESTS, TWO).tolist()


def test_the_trace_of_three_requests():
    confidence = [[0.95, 0.85, 0.70], [0.80, 0.55, 0.30], [0.65, 0.25, 0.10]]
    steps = [1.0, 0.85, 0.70, 0.60, 0.42, 0.30, 0.20, 0.12, 0.07, 0.04]
    capacity = Capacity.of_steps(dict(enumerate(steps, start=3)))
    path = throughput_path(confidence, capacity)
    assert list(zip(path.requests[:4] + 1, path.survivals[:4].round(4), strict=True)) == [
        (1, 0.95),
        (1, 0.8075),
        (2, 0.8),
        (3, 0.65),
    ]
    assert path.tau[:3] == pytest.approx([3.0, 3.95, 4.7575])
    assert path.theta[:5] == pytest.approx([3.00, 3.3575, 3.33025, 3.3345, 2.60715])  # the text rounds tau: 3.331
    assert path.theta[2] < path.theta[3], "not monotone behind the stop, as the text has it"
    assert prefix_lengths(confidence, capacity).tolist() == [1, 0, 0]
    assert exhaustive_lengths(confidence, capacity).tolist() == [1, 0, 0]


def test_the_counterexample_of_the_appendix():
    for last, theta, best in ((0.9, 1.134, 2), (0.0, 0.9, 0)):
        path = throughput_path([[0.8, last]], PAPER)
        assert path.theta[:2] == pytest.approx([1.0, 0.9])
        assert path.theta[-1] == pytest.approx(theta)
        assert global_tokens([[0.8, last]], PAPER) == best
        assert prefix_lengths([[0.8, last]], PAPER).tolist() == [0]
    # the paper writes the second case with the slot of no hope verified as well: 1.8 x 0.45
    assert 1.8 * float(PAPER.steps_per_second(3, 1)) == pytest.approx(0.81)


probabilities = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.5, 0.8]))


@st.composite
def instances(draw, requests=5, slots=4):
    r, k = draw(st.integers(1, requests)), draw(st.integers(0, slots))
    c = draw(st.lists(st.lists(probabilities, min_size=k, max_size=k), min_size=r, max_size=r))
    sps = draw(st.lists(st.floats(0.01, 10), min_size=1, max_size=30))
    return np.array(c).reshape(r, k), Capacity.of_steps(sps)


@settings(max_examples=1000)
@given(instances())
def test_it_is_algorithm_1(instance):
    c, capacity = instance
    plain = restated(c, lambda b: float(capacity.steps_per_second(b, len(c))))
    mine = prefix_lengths(c, capacity).tolist()
    if mine != plain:  # tau * SPS and tau / seconds may round to the two sides of a tie
        theta = throughput_path(c, capacity).theta
        stop = min(sum(mine), sum(plain))
        assert theta[stop + 1] == pytest.approx(theta[stop], rel=1e-12)
    assert in_the_engine(PrefixScheduler(capacity), c) == mine


@pytest.mark.parametrize("last", [64, 65, 66, 320, 321, 322])
def test_a_large_batch_stops_where_the_table_says(last):
    """Admission reads times in pieces; a cliff at a seam between two of them is seen where it is."""
    rng, requests = np.random.default_rng(last), 60
    c = rng.uniform(0.9, 1.0, (requests, 7))
    cliff = requests + last
    capacity = Capacity(Curve((1, cliff - 1, cliff, 500), (1.0, 1.0, 50.0, 60.0)))
    mine = prefix_lengths(c, capacity)
    assert mine.sum() == last - 1
    assert in_the_engine(PrefixScheduler(capacity), c) == mine.tolist()


@given(instances(requests=24, slots=7), st.randoms())
def test_lists_of_any_lengths_are_searched_as_a_table_with_zeros_behind_them_is(instance, random):
    """Few slots are searched without arrays, many with; neither sees what a draft did not hold."""
    c, capacity = instance
    rows = [row[: random.randint(0, len(row))] for row in c.tolist()]
    table = np.zeros_like(c)
    for padded, row in zip(table, rows, strict=True):
        padded[: len(row)] = row
    assert global_tokens(rows, capacity) == global_tokens(table, capacity)


def test_lists_are_checked_as_tables_are():
    for wrong in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="a probability between 0 and 1"):
            global_tokens([[0.5, wrong]], PAPER)
    with pytest.raises(ValueError, match="the batch is empty"):
        global_tokens([], PAPER)


@settings(max_examples=500)
@given(instances(requests=3, slots=3))
def test_for_each_batch_size_the_greedy_set_is_best_and_the_search_finds_the_optimum(instance):
    c, capacity = instance
    path = throughput_path(c, capacity)
    lengths = exhaustive_lengths(c, capacity)
    a = survival(c)
    tau = len(c) + sum(a[r, :n].sum() for r, n in enumerate(lengths))
    best = tau / float(capacity.seconds(len(c) + lengths.sum(), len(c)))
    # a slot that cannot survive is no candidate, but on a jagged curve a larger batch may be the faster one
    hopeless = np.count_nonzero(a) < a.size
    assert path.theta.max() <= best * (1 + 1e-12)
    assert path.theta.max() >= best * (1 - 1e-12) or hopeless
    assert path.theta[global_tokens(c, capacity)] == path.theta.max()
    assert global_tokens(c.tolist(), capacity) == global_tokens(c, capacity)
    stopped = path.theta[prefix_lengths(c, capacity).sum()]
    rises = np.flatnonzero(np.diff(path.theta) <= 0)
    if not len(rises) or (np.diff(path.theta)[rises[0] :] <= 0).all():
        assert stopped == path.theta.max(), "unimodal, and the early stop missed the top"


@given(instances())
def test_the_ranking_keeps_prefixes_and_sorts(instance):
    c, _ = instance
    a = survival(c)
    rows, best = ranked(a)
    assert (np.diff(best) <= 0).all()
    assert len(best) == np.count_nonzero(a)
    seen = np.zeros(len(c), dtype=int)
    for r, value in zip(rows, best, strict=True):
        assert a[r, seen[r]] == value, "a slot came before its predecessor"
        seen[r] += 1


def test_ties_go_to_the_earlier_slot_then_to_the_earlier_request():
    rows, _ = ranked(survival([[0.8, 1.0], [0.8, 0.5]]))
    assert rows.tolist() == [0, 1, 0, 1]


def test_both_forms_break_ties_alike():
    """Slot 2 of request 0 and slot 1 of request 1 tie for the last place: the earlier slot has it."""
    confidence = [[1.0, 0.8], [0.8, 0.1]]
    rows, _ = ranked(survival(confidence))
    assert rows[:2].tolist() == [0, 1]

    class Two(FullDraft):
        name = "two"

        def admit(self, frontier):
            left = [True, True]
            admit_by_survival(frontier, lambda a: bool(left) and left.pop())

    assert in_the_engine(Two(), confidence) == [1, 1]


@settings(max_examples=300)
@given(instances(), st.data())
def test_what_follows_a_slot_does_not_decide_on_it(instance, data):
    """The hypothesis of the proof: [l_r >= k] stays the same whatever the confidences behind x_{r,k} are."""
    c, capacity = instance
    if not c.shape[1]:
        return
    r, k = data.draw(st.integers(0, len(c) - 1)), data.draw(st.integers(1, c.shape[1]))
    other = c.copy()
    other[r, k:] = data.draw(st.lists(probabilities, min_size=c.shape[1] - k, max_size=c.shape[1] - k))
    assert (prefix_lengths(c, capacity)[r] >= k) == (prefix_lengths(other, capacity)[r] >= k)


def test_and_that_property_is_not_empty():
    """The search without the stop breaks it on the paper's own example."""
    likely, hopeless = ([[0.8, last]] for last in (0.9, 0.0))
    assert global_tokens(likely, PAPER) >= 1 > global_tokens(hopeless, PAPER)


def lagged(confidences, capacity=PAPER, **options):
    """Feed past steps, then ask."""
    policy = LaggedTopK(capacity, **options)
    for step in confidences:
        policy.observe([Outcome(r, c, 0, 0, False) for r, c in step.items()])
    return policy


FLAT = Capacity.of_steps({1: 1.0, 64: 0.999})
STEEP = Capacity.of_steps({1: 1.0, 2: 0.1})


def test_before_there_is_a_past_all_is_verified():
    for steps in ([], [{0: [0.1, 0.1]}]):
        assert in_the_engine(lagged(steps, STEEP), [[0.5, 0.5]]) == [2]


def test_how_many_comes_from_two_steps_ago_and_which_from_now():
    past = [{0: [1.0, 0.0], 1: [1.0, 0.0]}, {0: [0.0, 0.0], 1: [0.0, 0.0]}]
    policy = lagged(past, FLAT)
    assert in_the_engine(policy, [[0.9, 0.8], [0.1, 0.1]]) == [2, 0]
    policy.observe([])  # one more step, and the hopeless one is two steps old
    assert in_the_engine(policy, [[0.9, 0.8], [0.1, 0.1]]) == [0, 0]


def test_requests_that_left_no_longer_count_and_new_ones_count_as_the_mean():
    past = [{7: [1.0, 1.0], 8: [0.0, 0.0], 0: [1.0, 0.0]}, {}]
    policy = lagged(past, FLAT)
    views = [RequestView(0, 10, "output", 50), RequestView(9, 10, "output", 50)]
    # request 9 counts as (2/3, 1/3): its first slot survives with 2/3, its second with 2/9
    assert policy.slots(DraftFrontier(views, [Draft([0, 0])] * 2)) == 3
    dear = lagged(past, Capacity(Curve((2, 6), (1.0, 2.0))))  # 3/1.25 < 3.667/1.5 > 3.889/1.75
    assert dear.slots(DraftFrontier(views, [Draft([0, 0])] * 2)) == 2


@pytest.mark.parametrize(
    ("policy", "lengths"),
    [
        (Threshold(0.6), [1, 3]),
        (Threshold(0.6, "prefix"), [1, 1]),
        (Threshold(0.5, "rejection"), [2, 2]),
        (Threshold(0.0), [3, 3]),
        (Threshold(1.0), [0, 0]),
        (Threshold(0.0, "rejection"), [1, 1]),
        (Threshold(1.0, "rejection"), [3, 3]),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_thresholds(policy, lengths):
    assert in_the_engine(policy, [[0.9, 0.5, 0.9], [0.7, 0.7, 0.8]]) == lengths


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_confidences_that_are_no_probabilities(bad):
    for policy in (PrefixScheduler(FLAT), LaggedTopK(FLAT), Threshold(0.5)):
        with pytest.raises(ValueError, match="a probability between 0 and 1"):
            in_the_engine(policy, [[0.9, bad]])
    with pytest.raises(ValueError, match="a probability between 0 and 1"):
        prefix_lengths([[0.9, bad]], FLAT)


def test_drafters_without_confidence_are_told_so():
    views = [RequestView(0, 10, "output", 50)]
    for policy in (PrefixScheduler(FLAT), LaggedTopK(FLAT), Threshold(0.5)):
        with pytest.raises(ValueError, match="the drafter gives none"):
            verification_lengths(policy, views, [Draft([0])])


def test_nothing_to_schedule():
    with pytest.raises(ValueError, match="the batch is empty"):
        prefix_lengths(np.empty((0, 7)), FLAT)
    with pytest.raises(ValueError, match="requests by slots"):
        prefix_lengths([0.5, 0.5], FLAT)
    assert in_the_engine(PrefixScheduler(FLAT), []) == []
    assert prefix_lengths(np.empty((3, 0)), FLAT).tolist() == [0, 0, 0]  # gamma 0: plain decoding
    assert in_the_engine(PrefixScheduler(FLAT), [[], []]) == [0, 0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LaggedTopK(FLAT, lag=0), "the present may not be searched"),
        (lambda: Threshold(2.0), "between 0 and 1"),
        (lambda: Threshold(0.5, "tokens"), "slot, prefix, rejection"),
        (lambda: PrefixScheduler(FLAT, depth=-1), "integer >= 0"),
    ],
)
def test_bad_settings(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
