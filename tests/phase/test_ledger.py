"""Steps are recorded as they were committed, and only what belongs together is merged."""

import pytest
from phase.origins import FIXTURE, measured
from phase.traces import steps

from companion.phase.ledger import Ledger, Step, merge
from companion.phase.origin import Synthetic
from companion.phase.report import Report


@pytest.mark.parametrize(
    ("committed", "accepted", "proposed"), [(0, 0, 3), (2, 0, 3), (1, 2, 3), (3, 4, 3), (4, 4, 3), (1, -1, 3)]
)
def test_counts_that_no_step_can_have(committed, accepted, proposed):
    with pytest.raises(ValueError, match=r"commit"):
        Step("a", ("think",) * committed, proposed, accepted)


@pytest.mark.parametrize(
    ("committed", "accepted", "proposed", "whole", "judged"),
    [
        (3, 2, 7, True, 3),  # a rejection
        (8, 7, 7, True, 7),  # all accepted, and the bonus token
        (1, 0, 0, True, 0),  # no draft at all
        (2, 2, 7, False, 2),  # cut behind its second accepted draft
    ],
)
def test_what_a_step_says_of_its_draft(committed, accepted, proposed, whole, judged):
    step = Step("a", ("think",) * committed, proposed, accepted)
    assert (step.length, step.whole, step.judged) == (committed, whole, judged)


def test_merging_adds_up():
    one, two = Ledger(FIXTURE, steps("tt oo"), discarded=1), Ledger(FIXTURE, steps("ttt o"), discarded=2)
    both = merge([one, two])
    assert both.steps == one.steps + two.steps
    assert both.discarded == 3
    assert both == one.record(two.steps, discarded=2)
    assert str(Report(both)).count("3 steps outside decoding discarded") == 1


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (measured(untrimmed=False), "untrimmed"),
        (measured(drafter="dflash", depth=5), "drafter, depth"),
        (measured(thinking=False), "thinking"),
        (FIXTURE, "origin"),
    ],
)
def test_ledgers_of_different_runs_are_not_merged(other, named):
    with pytest.raises(ValueError, match=f"differ in {named}"):
        merge([Ledger(measured()), Ledger(other)])


def test_ledgers_with_different_policies_are_not_merged():
    with pytest.raises(ValueError, match="exclude and to_think"):
        merge([Ledger(measured()), Ledger(measured(), straddle="to_think")])
    with pytest.raises(ValueError, match="no ledger"):
        merge([])


def test_a_ledger_needs_an_origin_and_a_policy_by_name():
    for origin in (None, "measured", {"harness": "companion"}):
        with pytest.raises(TypeError, match="origin"):
            Ledger(origin)
    with pytest.raises(ValueError, match="exclude, to_think, to_output, by_token"):
        Ledger(Synthetic("x"), straddle="both")


def test_domains():
    ledger = Ledger(FIXTURE, (*steps("tt oo", domain="math"), *steps("t", domain="code")))
    assert ledger.domains == ["code", "math"]
    assert [step.length for step in ledger.domain("math").steps] == [2, 2]
    assert ledger.domain("chat").steps == ()
