"""What a policy can see: one slot at a time, never a token before its slot is admitted for good."""

import pytest
from engine.policies import DepthFromLength, SharedBudget, Threshold

from companion.engine.frontier import DraftFrontier, verification_lengths
from companion.protocols import Draft, Policy, RequestView
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.retrospective import Retrospective

VIEWS = [RequestView(7, 10, "think", 20), RequestView(8, 30, "output", 4), RequestView(9, 5, "output", 4)]
DRAFTS = [Draft([4, 5, 6], confidence=[0.9, 0.5, 0.1]), Draft([3], confidence=[0.7]), Draft([])]


def test_slots_are_revealed_by_admitting_them():
    frontier = DraftFrontier(VIEWS, DRAFTS)
    seen = []
    while frontier.admitted(0) < frontier.drafted(0):
        seen.append((frontier.drafted(0), frontier.confidence(0), list(frontier.revealed(0))))
        frontier.admit(0)
    assert seen == [(1, 0.9, []), (2, 0.5, [4]), (3, 0.1, [4, 5])]
    assert (frontier.confidence(0), list(frontier.revealed(0))) == (None, [4, 5, 6])
    assert [frontier.admitted(row) for row in range(3)] == [3, 0, 0]


def test_admitting_more_than_was_drafted_is_an_error():
    frontier = DraftFrontier(VIEWS, DRAFTS)
    frontier.admit(1)
    for row, request in ((1, 8), (2, 9)):
        with pytest.raises(IndexError, match=f"request {request} has no drafted slot left"):
            frontier.admit(row)


def test_the_drafts_are_not_an_attribute():
    """A policy that reads ahead has to go out of its way; nothing public holds a token or a length."""
    frontier = DraftFrontier(VIEWS, DRAFTS)
    public = {name: getattr(frontier, name) for name in dir(frontier) if not name.startswith("_")}
    assert {n for n, v in public.items() if not callable(v)} == {"requests"}


@pytest.mark.parametrize(
    ("policy", "lengths"),
    [
        (FixedDepth(3), [3, 1, 0]),
        (Threshold(), [2, 1, 0]),
        (SharedBudget(), [2, 1, 0]),
        (DepthFromLength(), [0, 0, 0]),
        (Retrospective(3, lambda draft: draft.tokens.count(4)), [1, 0, 0]),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
def test_lengths_of_policies(policy, lengths):
    assert verification_lengths(policy, VIEWS, DRAFTS) == lengths


def test_fixed_depth_has_the_seam():
    assert isinstance(FixedDepth(3), Policy)
    assert not isinstance(Retrospective(3, len), Policy)
    assert FixedDepth(3).draft_depths(VIEWS) == [3, 3, 3]
    assert (FixedDepth(0).name, FixedDepth(0).draft_depths(VIEWS[:1])) == ("fixed-0", [0])
