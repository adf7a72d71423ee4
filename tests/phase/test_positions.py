"""Acceptance along the draft by phase, and accepted length at matched places of the sequence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase.traces import PHASES, steps, two_phase_steps

from companion.metrics import conditional_by_position
from companion.phase.estimate import ratio
from companion.phase.ledger import Step
from companion.phase.positions import conditional_curve, matched_positions
from companion.phase.sources import steps_of_rounds
from companion.rounds import Round


def counts(curve):
    return [(p.accepted, p.judged) for p in curve]


def test_known_curve():
    """Drafts of 3: nothing accepted, one accepted, all accepted."""
    listed = steps("t tt tttt oo", proposed=3)
    assert counts(conditional_curve(listed, "think")) == [(2, 3), (1, 2), (1, 1)]
    assert counts(conditional_curve(listed, "output")) == [(1, 1), (0, 1)]
    assert [p.rate.value for p in conditional_curve(listed, "think")] == pytest.approx([2 / 3, 1 / 2, 1])
    assert conditional_curve(steps("oo"), "think") == []


def test_a_step_that_was_cut_judges_only_what_it_accepted():
    cut = Step("a", ("think",) * 2, 7, 2)
    assert counts(conditional_curve([cut], "think")) == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("policy", "think", "output"),
    [
        ("exclude", [], []),
        ("to_think", [(1, 1), (1, 1), (1, 1), (0, 1)], []),
        ("to_output", [], [(1, 1), (1, 1), (1, 1), (0, 1)]),
        ("by_token", [(1, 1), (1, 1)], []),  # slots 3 and 4 lie outside, behind the first two
    ],
)
def test_a_straddling_step_by_policy(policy, think, output):
    step = steps("ttoo")
    assert counts(conditional_curve(step, "think", policy)) == think
    assert counts(conditional_curve(step, "output", policy)) == output


def test_by_token_a_slot_belongs_to_what_was_committed_there():
    listed = steps("ttoo oooo")
    assert counts(conditional_curve(listed, "output", "by_token")) == [(1, 1), (1, 1), (2, 2), (0, 2)]


@given(st.lists(st.tuples(st.sampled_from("to"), st.integers(0, 5)), max_size=20))
def test_agrees_with_the_metrics_of_the_rounds_table(drawn):
    rounds = [
        Round(0, i, i, 5, 5, kept, kept < 5, True, [0] * (kept + 1), [PHASES[letter]] * (kept + 1))
        for i, (letter, kept) in enumerate(drawn)
    ]
    for phase in ("think", "output"):
        found = counts(conditional_curve(steps_of_rounds(rounds), phase))
        expected = conditional_by_position([r for r in rounds if r.phases[0] == phase])
        assert found == [pair for pair in expected if pair[1]]


def test_matching_removes_a_trend_along_the_sequence():
    """Length rises with position and both sides follow the same trend; one side comes late. The raw means differ, the
    matched ones do not."""

    def side(positions, name):
        return [Step(f"{name}{i % 5}", ("output",) * (1 + p // 40), 7, p // 40, p) for i, p in enumerate(positions)]

    late, spread = side(range(100, 280, 3), "late"), side(range(0, 280, 3), "all")
    raw = np.mean([s.length for s in late]) - np.mean([s.length for s in spread])
    assert raw > 1
    found = matched_positions(late, spread, width=10)
    assert found.difference.value == pytest.approx(0, abs=0.1)
    assert found.first_covered == 1.0
    assert 0.5 < found.second_covered < 0.8
    assert matched_positions(late, spread, width=1000).difference.value == pytest.approx(raw)  # one bin: no matching


def test_matching_keeps_a_difference_that_is_there():
    rng = np.random.default_rng(0)
    one = [s for s in two_phase_steps(rng, responses=40, inside=0.3, outside=0.7) if s.phases[0] == "output"]
    two = [s for s in two_phase_steps(rng, responses=40, inside=0.3, outside=0.4, name="x") if s.phases[0] == "output"]
    found = matched_positions(one, two, width=16)
    assert found.difference.interval().low > 0.5
    assert found.bins == 1


def test_no_place_in_common_is_no_comparison():
    early, late = steps("oo oo", start=0), steps("oo oo", start=500)
    assert matched_positions(early, late, width=50) is None
    assert matched_positions([], late, width=50) is None
    for options in ({"width": 0}, {"width": 50, "clusters": 0}):
        with pytest.raises(ValueError, match="at least one"):
            matched_positions(early, late, **options)


def test_a_bin_needs_enough_clusters_on_both_sides():
    """One response alone in a bin shows no spread there; its steps are left out, and the share says so."""
    one = steps("oo oo", start=0) + steps("ooo o", start=0, cluster="b") + steps("oooo", start=500)
    two = steps("o o", start=0, cluster="c") + steps("oo", start=0, cluster="d") + steps("o", start=500, cluster="c")
    found = matched_positions(one, two, width=50)
    assert (found.bins, found.first_covered, found.second_covered) == (1, 4 / 5, 3 / 4)
    assert found.difference.value == pytest.approx(2 - 4 / 3)
    both = matched_positions(one, two, width=50, clusters=1)
    assert both.bins == 2  # of 4 and 3 steps, and of 1 and 1: they weigh as 3 to 1
    assert both.difference.value == pytest.approx((3 * (2 - 4 / 3) + 1 * (4 - 1)) / 4)
    assert matched_positions(one, two, width=50, clusters=3) is None


def test_one_bin_of_everything_is_the_plain_difference():
    rng = np.random.default_rng(2)
    one = two_phase_steps(rng, responses=12, inside=0.3, outside=0.7, spread=0.1)
    two = two_phase_steps(rng, responses=9, inside=0.3, outside=0.4, name="x", spread=0.1)
    found = matched_positions(one, two, width=10**6).difference
    plain = ratio((s.cluster, s.length, 1.0) for s in one) - ratio((s.cluster, s.length, 1.0) for s in two)
    assert found.value == pytest.approx(plain.value)
    assert (found.standard_error, found.df) == (pytest.approx(plain.standard_error), 8)
