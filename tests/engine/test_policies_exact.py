"""Losslessness of every scheduling policy: all branches of the real engine, several requests in one batch, fp64.

A request's confidences depend on what it drafted, so that each policy's decisions depend on random tokens, its own and
its neighbours'. Compared is the joint law of all texts, since the texts of a batch could each be right and yet lean on
one another.
"""

import numpy as np
import pytest
from phase_runs import SERVING, rates_of

from companion.exact.laws import decode, distance, engine_law, exact_law, product
from companion.exact.tables import TableDrafter, TableTarget, noise, random_law, sparse_law
from companion.planning import CostModel
from companion.protocols import Sampling
from companion.scheduling.capacity import Capacity, CapacityTable, Curve
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.goodput import Goodput
from companion.scheduling.lagged import LaggedTopK
from companion.scheduling.lagged_threshold import LaggedThreshold
from companion.scheduling.phase_hook import PhaseHook
from companion.scheduling.prefix import PrefixScheduler
from companion.scheduling.retrospective import RetrospectiveSearch
from companion.scheduling.threshold import Threshold

EXACT = 1e-12
PROMPTS, CAPS = [(0, 1), (1, 1, 0)], (4, 3)
DIP = Capacity.of_steps([1.0, 0.9, 0.6, 0.5, 0.5, 0.5])  # two requests: Theta falls behind B = 2, may rise behind B = 4
CLIFF = Capacity.of_steps([1.0, 0.9, 0.72, 0.45, 0.7, 0.65])
GENTLE = Capacity.of_steps([1.0, 0.95, 0.8, 0.7, 0.5, 0.3])
CONTEXTS = CapacityTable((2, 6), (GENTLE.verify, CLIFF.verify), drafts=((Curve((1,), (0.3,)),),) * 2)
CHEAP = Capacity(GENTLE.verify, (Curve((1,), (0.02,)), Curve((1,), (0.25,))))

# A wrong word on the drafter, which samples here, may cost speed: the law must stand all the same.
HOOKED = {"deterministic": True, "min_depth": 0, "max_depth": 2, "vocab_size": 2, "costs": CostModel(100, 300, 30)}


def halves(slot, confidence):
    """A calibration that is none of the identity."""
    return confidence / slot


POLICIES = {
    "fixed 2": lambda: FixedDepth(2),
    "fixed 1": lambda: FixedDepth(1),
    "slot threshold": lambda: Threshold(0.5),
    "prefix threshold": lambda: Threshold(0.4, "prefix"),
    "rejection threshold": lambda: Threshold(0.5, "rejection"),
    "prefix, gentle": lambda: PrefixScheduler(GENTLE),
    "prefix, cliff": lambda: PrefixScheduler(CLIFF),
    "prefix, calibrated, by context": lambda: PrefixScheduler(CONTEXTS, halves),
    "lagged 2": lambda: LaggedTopK(CLIFF),
    "lagged 1": lambda: LaggedTopK(GENTLE, halves, lag=1),
    "lagged threshold": lambda: LaggedThreshold(CHEAP, lag=1, window=1, every=1, explore=3),
    "lagged threshold, calibrated": lambda: LaggedThreshold(CONTEXTS, halves, lag=2, window=2, every=2, explore=2),
    "goodput": lambda: Goodput(CLIFF, max_depth=2, window=4, explore=2),
    "phase hook": lambda: PhaseHook(2, **HOOKED),
    "phase hook, calibrated": lambda: PhaseHook(1, **HOOKED, rates=rates_of(0.2, 0.9, depth=2), serving=SERVING),
}


def law_of(make, target, drafter, prompts=PROMPTS, caps=CAPS, **options):
    """The joint law, with a new policy on each branch, so that what it learns on one is unknown on the next; and the
    lengths that were verified."""
    used = set()

    def run(branch):
        requests = decode(branch, target, drafter, make(), prompts, Sampling(), caps, **options)
        used.update(row.verified for r in requests for row in r.rounds if row.drafted)
        return tuple(tuple(r.emitted) for r in requests)

    return exact_law(run)[0], used


def telling(text):
    """Behind the prompt and its first token 0.6; further on it depends on the token before, which was drafted."""
    if len(text) - len(PROMPTS[0] if text[:2] == PROMPTS[0] else PROMPTS[1]) == 1:
        return 0.6
    return 0.95 if text[-1] == 0 else 0.05


@pytest.mark.parametrize("name", POLICIES)
def test_two_requests_in_one_batch(name):
    p, q = sparse_law(2, 101, 0.8), sparse_law(2, 201, 0.8)
    drafter = TableDrafter(2, q, max_depth=2, confidence=lambda text: noise(text, 1) ** 0.5)
    law, used = law_of(POLICIES[name], TableTarget(2, p), drafter)
    assert distance(law, product(p, PROMPTS, CAPS)) < EXACT
    if not name.startswith("fixed"):
        assert len(used) > 1, "the policy always decided the same: a vacuous case"


@pytest.mark.parametrize(
    "name", ["slot threshold", "prefix, cliff", "lagged 1", "lagged threshold", "goodput", "phase hook"]
)
def test_confidences_that_tell_what_was_drafted(name):
    """The setting in which the search of the present fails, below."""
    p, q = random_law(2, 101), random_law(2, 201)
    law, _ = law_of(POLICIES[name], TableTarget(2, p), TableDrafter(2, q, max_depth=2, confidence=telling))
    assert distance(law, product(p, PROMPTS, CAPS)) < EXACT


def test_the_search_of_the_present_fails_the_same_test():
    """Where Theta dips along the path. Where it does not, the search stops where Algorithm 1 does, and is lossless."""
    p, q = random_law(2, 101), random_law(2, 201)
    target, drafter = TableTarget(2, p), TableDrafter(2, q, max_depth=2, confidence=telling)

    def searched(capacity):
        return law_of(lambda: RetrospectiveSearch(capacity, 2), target, drafter, allow_lossy=True)[0]

    assert distance(searched(DIP), product(p, PROMPTS, CAPS)) > 1e-3
    unimodal = Capacity.of_steps(1 / np.exp(np.arange(6)))  # each token costs e times more: nothing is ever worth it
    assert distance(searched(unimodal), product(p, PROMPTS, CAPS)) < EXACT


@pytest.mark.parametrize("name", ["prefix, cliff", "lagged 2", "lagged threshold", "goodput", "prefix threshold"])
def test_three_requests_join_and_leave(name):
    p, q = sparse_law(2, 71, 0.7), sparse_law(2, 72, 0.7)
    prompts, stops = [(0, 1), (1, 1, 0), (0,)], frozenset({1})
    target, drafter = TableTarget(2, p), TableDrafter(2, q, max_depth=2)
    law, _ = law_of(POLICIES[name], target, drafter, prompts, (4, 4, 4), stops=stops, max_batch=2)
    assert distance(law, product(p, prompts, 4, stops)) < EXACT


@pytest.mark.parametrize("name", ["prefix, gentle", "lagged 1", "rejection threshold"])
def test_five_tokens_and_one_long_request(name):
    p, q = sparse_law(5, 5, 0.8), sparse_law(5, 6, 0.8)
    target, drafter = TableTarget(5, p), TableDrafter(5, q, max_depth=3)
    law, _ = law_of(POLICIES[name], target, drafter, [(0, 2, 1)], (5,))
    assert distance(law, product(p, [(0, 2, 1)], 5)) < EXACT


def test_a_policy_hears_what_became_of_each_round():
    everything = []

    class Listening(Threshold):
        def observe(self, outcomes):
            heard.extend(outcomes)

    p, q = sparse_law(2, 101, 0.8), sparse_law(2, 201, 0.8)
    target, drafter = TableTarget(2, p), TableDrafter(2, q, max_depth=2)

    def run(branch):
        heard.clear()
        requests = decode(branch, target, drafter, Listening(0.3), PROMPTS, Sampling(), CAPS)
        rows = sorted((row for r in requests for row in r.rounds), key=lambda row: (row.round, row.request))
        seen = [(o.request, o.confidence, o.verified, o.accepted, o.rejected) for o in heard]
        assert seen == [(r.request, r.confidence, r.verified, r.accepted, r.rejected) for r in rows]
        everything.extend(rows)
        return None

    heard = []
    exact_law(run)
    assert {(r.accepted, r.rejected) for r in everything} >= {(0, True), (1, False), (1, True), (2, False)}
    assert any(r.verified < r.drafted for r in everything)


def test_each_branch_begins_with_the_policy_as_it_was_given():
    p, q = sparse_law(2, 101, 0.6), sparse_law(2, 201, 0.6)
    target, drafter = TableTarget(2, p), TableDrafter(2, q, max_depth=2)
    policy = POLICIES["goodput"]()
    law = engine_law(target, drafter, policy, PROMPTS, Sampling(), CAPS)
    assert law == law_of(POLICIES["goodput"], target, drafter)[0]
    assert policy.rate == policy.prior, "what was learnt on a branch stayed"


def test_the_papers_counterexample_in_the_engine():
    """p = (0.7, 0.3), q = (0.5, 0.5), c_1 = 0.8, c_2 = 0.9 behind A and 0 behind B: 0.85 for 0.7."""

    def confidence(text):
        return 0.8 if len(text) == 2 else 0.9 if text[2] == 0 else 0.0

    target = TableTarget(2, lambda text: [0.7, 0.3])
    drafter = TableDrafter(2, lambda text: [0.5, 0.5], max_depth=2, confidence=confidence)
    capacity = Capacity.of_steps([1.0, 0.5, 0.45])

    def second_token(make):
        law, _ = law_of(make, target, drafter, [(0,)], (4,), allow_lossy=True)
        return sum(mass for (text,), mass in law.items() if text[1] == 0)

    assert second_token(lambda: RetrospectiveSearch(capacity, 2)) == pytest.approx(0.85, abs=1e-12)
    assert second_token(lambda: PrefixScheduler(capacity)) == pytest.approx(0.7, abs=1e-12)
    assert second_token(lambda: LaggedTopK(capacity)) == pytest.approx(0.7, abs=1e-12)
