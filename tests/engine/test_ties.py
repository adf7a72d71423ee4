"""Ties are not harmless. Two requests, K = 1, a_11 = a_21 = 0.8, and c_12 = 1 iff request 1 drafted A.

Then a_12 ties with a_11. An order that puts the deeper slot of equals first gives the one place to request 1 if it
drafted A and to request 2 otherwise (0.85 for 0.7); the fixed order of `companion.scheduling.ranking` gives it to
request 1 in both cases.
"""

import pytest

from companion.engine.frontier import DraftFrontier
from companion.exact.laws import distance, engine_law, product
from companion.exact.tables import TableDrafter, TableTarget
from companion.protocols import Draft, RequestView, Sampling
from companion.scheduling.capacity import Capacity
from companion.scheduling.full_draft import FullDraft
from companion.scheduling.prefix import PrefixScheduler
from companion.scheduling.ranking import admit_by_survival
from companion.scheduling.retrospective import DeeperSlotFirst, DeeperSlotFirstPrefix

A, SEVEN = 0, [0.7, 0.3]
PROMPTS, CAPS = [(0,), (1,)], (4, 3)
FULL = Capacity.of_steps({1: 1.0, 2: 1.0, 3: 0.9, 4: 0.3})  # one slot is worth its place, a second one is not


def saturating(text):
    """c_1 = 0.8; behind it 1 where request 1 drafted A, else 0. The first token of each text came from the prefill."""
    if len(text) == 2:
        return 0.8
    return 1.0 if text[0] == 0 and text[2] == A else 0.0


class OneSlot(FullDraft):
    """The best slot of the batch and no other."""

    name = "one slot"

    def admit(self, frontier):
        left = [True]
        admit_by_survival(frontier, lambda a: bool(left) and left.pop())


def joint(policy):
    target = TableTarget(2, lambda text: SEVEN)
    drafter = TableDrafter(2, lambda text: [0.5, 0.5], max_depth=2, confidence=saturating)
    return engine_law(target, drafter, policy, PROMPTS, Sampling(), CAPS, allow_lossy=True)


def second_token(law):
    """P(A) of the first token that a draft of request 1 can touch."""
    return sum(mass for texts, mass in law.items() if texts[0][1] == A)


@pytest.mark.parametrize("policy", [OneSlot(), PrefixScheduler(FULL)], ids=lambda p: p.name)
def test_the_fixed_order_is_lossless_on_ties(policy):
    law = joint(policy)
    assert second_token(law) == pytest.approx(0.7, abs=1e-12)
    assert distance(law, product(lambda text: SEVEN, PROMPTS, CAPS)) < 1e-12


@pytest.mark.parametrize("policy", [DeeperSlotFirst(1, 2), DeeperSlotFirstPrefix(FULL, 2)], ids=lambda p: p.name)
def test_the_deeper_slot_first_is_not(policy):
    """Top-K and Algorithm 1 alike, although both turn the chosen slots into lengths by counting them."""
    law = joint(policy)
    assert second_token(law) == pytest.approx(0.85, abs=1e-12)
    assert distance(law, product(lambda text: SEVEN, PROMPTS, CAPS)) > 1e-2


def test_behind_a_frontier_the_wrong_order_cannot_be_written():
    """The deeper slot of a tie has no confidence to be seen before the slot in front of it is admitted."""
    views = [RequestView(i, 10, "output", 50) for i in range(2)]
    frontier = DraftFrontier(views, [Draft([A, A], confidence=[0.8, 1.0]), Draft([A, A], confidence=[0.8, 0.0])])
    assert [frontier.confidence(row) for row in (0, 1)] == [0.8, 0.8]
    frontier.admit(0)
    assert [frontier.confidence(row) for row in (0, 1)] == [1.0, 0.8]
