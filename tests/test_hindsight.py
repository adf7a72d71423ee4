"""Confidences corrected by what became of them: right on average, quiet at first, and never from the present."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.protocols import Outcome
from companion.scheduling.hindsight import Hindsight


def halved(slot, confidence):
    return confidence / 2


def fed(rounds, **options):
    record = Hindsight(**options)
    record.observe(rounds)
    return record


def test_nothing_is_changed_before_anything_is_known():
    record = Hindsight(halved)
    assert record(1, 0.8) == 0.4
    record.observe([Outcome(0, [0.9, 0.9], 0, 0, False), Outcome(1, None, 3, 1, True)])
    assert record(1, 0.8) == 0.4, "a draft that nobody judged was taken for a failure"


def test_by_hand():
    record = fed([Outcome(0, [0.9, 0.5, 0.5], 3, 1, True)], memory=10**9, trust=1.0)
    assert record.factors == pytest.approx([2 / 1.9, 1 / 1.5])  # slot 3 was never judged
    assert record(2, 0.6) == pytest.approx(0.4)
    assert record(1, 0.99) == 1.0, "a confidence above 1 is none"
    assert record(3, 0.5) == 0.5


def test_the_record_is_of_the_calibrated_confidence():
    record = fed([Outcome(0, [0.8], 1, 1, False)], calibrate=halved, memory=10**9, trust=1.0)
    assert record.factors == pytest.approx([2 / 1.4])


def test_a_draft_cut_by_the_end_of_the_text_is_no_failure():
    record = fed([Outcome(0, [0.9, 0.5], 2, 1, False)])
    assert len(record.factors) == 1


def test_it_follows_a_drafter_that_is_too_sure_and_one_that_changes():
    rng = np.random.default_rng(0)

    def rounds(rate, count=1500):
        return [Outcome(0, [0.9], 1, int(hit), not hit) for hit in rng.random(count) < rate]

    record = fed(rounds(0.3))
    assert record(1, 0.9) == pytest.approx(0.3, abs=0.08)
    record.observe(rounds(0.9))
    assert record(1, 0.9) == pytest.approx(0.9, abs=0.05), "what was true once is held against it for ever"
    assert fed(rounds(0.9))(1, 0.9) == pytest.approx(0.9, abs=0.05)  # an honest one stays what it is


@given(st.lists(st.tuples(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.integers(0, 3)), max_size=30))
def test_what_comes_out_is_a_probability(rounds):
    record = fed([Outcome(0, c, 3, accepted, accepted < 3) for c, accepted in rounds])
    assert all(0.0 <= record(slot, c) <= 1.0 for slot in (1, 2, 3, 4) for c in (0.0, 0.3, 1.0))


def test_what_is_no_probability_is_left_for_the_scheduler_to_refuse():
    record = fed([Outcome(0, [0.9], 1, 1, False)])
    assert record(1, 1.5) == 1.5
    assert np.isnan(record(1, float("nan")))


@pytest.mark.parametrize("options", [{"memory": 0}, {"memory": 1.5}, {"trust": 0.0}, {"trust": float("nan")}])
def test_bad_settings(options):
    with pytest.raises(ValueError, match="must be"):
        Hindsight(**options)
