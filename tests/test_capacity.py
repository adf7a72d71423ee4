"""The capacity curve: what is measured stays, what is in between and beyond is said and not invented."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.protocols import RequestView
from companion.scheduling.capacity import Capacity, CapacityTable, Curve, mean_context


def test_measured_sizes_come_back_and_gaps_are_filled_in_time():
    capacity = Capacity.of_steps({1: 1.0, 2: 0.5, 4: 0.25, 8: 0.25})
    assert capacity.steps_per_second([1, 2, 4, 8], 1).tolist() == [1.0, 0.5, 0.25, 0.25]
    assert float(capacity.seconds(3, 1)) == 3.0  # half way between 2 s and 4 s
    assert capacity.steps_per_second([6, 7], 1).tolist() == [0.25, 0.25]


def test_beyond_the_table():
    capacity = Capacity.of_steps({4: 1.0, 8: 0.5})
    assert float(capacity.seconds(1, 1)) == 1.0, "a smaller forward was made up to be faster than any measured"
    assert float(capacity.seconds(32, 1)) == 8.0, "tokens a second above the largest size are those of the largest"


def test_one_size_is_a_curve():
    capacity = Capacity.of_steps({4: 2.0})
    assert capacity.seconds([1, 4, 8], 1).tolist() == [0.5, 0.5, 1.0]


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1e3), min_size=1), st.integers(1, 500))
def test_no_size_is_faster_than_the_fastest_measured(table, size):
    capacity = Capacity.of_steps(table)
    assert float(capacity.steps_per_second(size, 1)) <= max(table.values()) * (1 + 1e-12)
    assert all(math.isclose(float(capacity.steps_per_second(b, 1)), s) for b, s in table.items())


def test_drafting_is_part_of_a_step():
    capacity = Capacity(Curve((1, 10), (1.0, 1.0)), (Curve((1, 2), (1.0, 3.0)), Curve((1, 2), (2.0, 5.0))))
    assert capacity.seconds([1, 5], 2).tolist() == [6.0, 6.0]
    assert capacity.seconds([1], 1).tolist() == [3.0]
    assert float(capacity.verify(1)) == 1.0
    by_depth = [float(capacity.seconds(5, 2, depth=d)) for d in (0, 1, 2, 3)]
    assert by_depth == [1.0, 4.0, 6.0, 6.0], "deeper than is known is the whole block"
    assert [capacity.drafting(2, d) for d in (0, 1, 2, None)] == [0.0, 3.0, 5.0, 5.0]
    assert Capacity(Curve((1,), (1.0,))).drafting(4, 3) == 0.0


def test_drafting_has_a_context_too():
    near, far = (Curve((1, 4), (1.0, 2.0)), Curve((1, 4), (2.0, 4.0))), (Curve((1, 4), (3.0, 6.0)),) * 2
    table = CapacityTable((100, 200), (Curve((1,), (1.0,)),) * 2, drafts=(near, far))
    assert [table.at(150).drafting(4, d) for d in (1, 2)] == [4.0, 5.0]
    assert table.at(300).drafting(1, 1) == 5.0
    for drafts in ((near,), (near, far[:1]), (near, (Curve((1, 8), (1.0, 1.0)),) * 2)):
        with pytest.raises(ValueError, match="the same depths and the same numbers of requests"):
            CapacityTable((100, 200), (Curve((1,), (1.0,)),) * 2, drafts=drafts)


def test_a_scheduler_asks_for_a_round_context():
    views = [RequestView(i, at, "output", 9) for i, at in enumerate((100, 103))]
    assert mean_context(views) == 96
    assert mean_context(views[1:]) == 96
    assert mean_context([RequestView(0, 105, "output", 9)]) == 112


def test_context_as_a_second_axis():
    table = CapacityTable((100, 200), (Curve((1, 8), (1.0, 2.0)), Curve((1, 8), (3.0, 6.0))))
    at = [table.at(context).seconds([1, 8], 1).tolist() for context in (0, 100, 150, 200, 300)]
    assert at == [[1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [5.0, 10.0]]
    falling = CapacityTable((100, 200), (Curve((1,), (3.0,)), Curve((1,), (1.0,))))
    assert float(falling.at(900).seconds(1, 1)) == 1.0, "a jagged table was extended below what it holds"
    assert float(CapacityTable((64,), (Curve((1,), (3.0,)),)).at(900).seconds(1, 1)) == 3.0


def test_keys_and_values_are_read_once_a_request_and_drafting_is_for_those_that_draft():
    capacity = Capacity(Curve((1, 10), (1.0, 1.0)), (Curve((1, 2), (1.0, 3.0)),), read=0.25)
    assert float(capacity.seconds(10, 2)) == 1.0 + 0.5 + 3.0
    assert float(capacity.seconds(10, 2, drafted=1)) == 1.0 + 0.5 + 1.0
    assert float(capacity.seconds(10, 2, drafted=0)) == 1.0 + 0.5
    table = CapacityTable((100, 200), (Curve((1,), (1.0,)),) * 2, reads=(0.1, 0.3))
    assert [float(table.at(context).seconds(1, 10)) for context in (50, 150, 300)] == pytest.approx([2.0, 3.0, 6.0])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Capacity.of_steps({}), "one of them at least"),
        (lambda: Capacity.of_steps({1: 1.0, 2: 0.0}), "positive and finite"),
        (lambda: Capacity.of_steps({1: math.nan}), "positive and finite"),
        (lambda: Capacity.of_steps({0: 1.0}), "whole numbers from 1 on"),
        (lambda: Curve((2, 1), (1.0, 1.0)), "that rise"),
        (lambda: Curve((1, 1), (1.0, 1.0)), "that rise"),
        (lambda: Curve((1, 2), (1.0,)), "2 sizes and 1 times"),
        (lambda: Curve((1,), (-1.0,)), "positive and finite"),
        (lambda: Capacity(Curve((1,), (1.0,)), read=-1.0), "at least 0"),
        (lambda: CapacityTable((1, 2), (Curve((1,), (1.0,)),) * 2, reads=(1.0,)), "1 reading times for 2"),
        (lambda: CapacityTable((1, 2), (Curve((1,), (1.0,)),) * 2, reads=(0.1, -0.1)), "finite and at least 0"),
        (lambda: CapacityTable((1, 2), (Curve((1,), (1.0,)),) * 2, reads=(0.1, math.nan)), "finite and at least 0"),
        (lambda: Capacity(Curve((1,), (1.0,))).drafting(1, -1), "0 tokens or more, got 1 and -1"),
        (lambda: Capacity(Curve((1,), (1.0,))).seconds(1, 1, drafted=-1), "0 requests or more"),
        (lambda: CapacityTable((math.nan,), (Curve((1,), (1.0,)),)), "some rising contexts"),
        (lambda: CapacityTable((), ()), "some rising contexts"),
        (lambda: CapacityTable((2, 1), (Curve((1,), (1.0,)),) * 2), "some rising contexts"),
        (lambda: CapacityTable((1, 2), (Curve((1,), (1.0,)), Curve((2,), (1.0,)))), "the same sizes"),
    ],
)
def test_bad_tables(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_list_begins_at_one_token():
    assert np.allclose(Capacity.of_steps([1.0, 0.5, 0.45]).steps_per_second([1, 2, 3], 1), [1.0, 0.5, 0.45])
