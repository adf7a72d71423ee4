"""The goodput controller: the depth follows what was accepted and what the machine can carry."""

import pytest

from companion.protocols import Outcome, RequestView
from companion.scheduling.capacity import Capacity, Curve
from companion.scheduling.goodput import Goodput

FLAT = Capacity(Curve((1, 64), (1.0, 1.0)))  # another token costs nothing
FULL = Capacity(Curve((1, 64), (1.0, 64.0)))  # every token costs as much as the first


def views(count):
    return [RequestView(i, 10, "output", 50) for i in range(count)]


def fed(capacity, accepted, rejected, **options):
    policy = Goodput(capacity, **options)
    policy.observe([Outcome(0, None, 7, accepted, rejected)] * 40)
    return policy


def test_free_verification_drafts_all_and_dear_verification_nothing():
    assert fed(FLAT, 3, True).draft_depths(views(3)) == [7, 7, 7]
    assert fed(FULL, 3, True).draft_depths(views(3)) == [0, 0, 0]
    assert Goodput(FLAT).draft_depths([]) == []


def test_the_rate_is_accepted_over_judged():
    assert fed(FLAT, 3, True).rate == 0.75
    assert fed(FLAT, 7, False).rate == 1.0  # nothing was turned down
    assert Goodput(FLAT, prior=0.4).rate == 0.4
    policy = fed(FLAT, 0, True, window=10)
    policy.observe([Outcome(0, None, 7, 7, False)] * 10)
    assert policy.rate == 1.0, "rounds that left the window still count"
    policy = fed(FLAT, 6, True, window=10)
    policy.observe([Outcome(0, None, 7, 1, True)] * 10)
    assert policy.rate == 0.5, "what rounds that left had accepted still counts"
    policy.observe([Outcome(0, None, 7, 7, False)] * 10)
    policy.observe([Outcome(0, None, 0, 0, False)] * 20)
    assert policy.rate == 1.0, "rounds without a draft say nothing"


def test_the_depth_falls_with_load_and_with_the_rate():
    capacity = Capacity(Curve((1, 8, 256), (1.0, 1.2, 20.0)))
    by_load = [fed(capacity, 7, True).draft_depths(views(n))[0] for n in (1, 4, 16, 32)]
    assert by_load == sorted(by_load, reverse=True)
    assert by_load[0] > by_load[-1]
    by_rate = [fed(capacity, accepted, True).draft_depths(views(1))[0] for accepted in (0, 1, 7)]
    assert by_rate == sorted(by_rate)
    assert by_rate[0] < by_rate[-1]


def test_the_time_of_drafting_counts_unless_nothing_is_drafted():
    slow = Capacity(Curve((1, 64), (1.0, 1.0)), draft=(Curve((1,), (50.0,)),))
    assert fed(slow, 1, True).draft_depths(views(1)) == [0]
    assert fed(slow, 1000, True).draft_depths(views(1)) == [0], "8 tokens in 51 s are slower than one in a second"
    loop = Capacity(Curve((1, 64), (1.0, 1.0)), tuple(Curve((1,), (0.2 + 0.4 * d,)) for d in range(1, 8)))
    assert fed(loop, 3, True).draft_depths(views(1)) == [2], "tau / seconds: 1.75 / 1.6, 2.31 / 2, 2.73 / 2.4"


def test_a_controller_that_gave_up_tries_again():
    policy = fed(FULL, 0, True, explore=4)
    assert [policy.draft_depths(views(1))[0] for _ in range(9)] == [0, 0, 0, 1, 0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({name: value}, name) for name, value in (("max_depth", 0), ("window", 0), ("prior", 1.2), ("explore", 0))],
)
def test_bad_settings(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Goodput(FLAT, **options)
