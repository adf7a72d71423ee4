"""Losslessness with DSpark as a theorem about this code: every branch of every random choice, in fp64."""

import pytest
from drafters.micro import micro
from engine.policies import Threshold

from companion.drafters.dspark.drafter import DSparkDrafter
from companion.exact.laws import distance, engine_law, plain_law, product
from companion.exact.tables import TableTarget, random_law
from companion.protocols import Sampling
from companion.scheduling.fixed import FixedDepth

EXACT = 1e-12
PROMPT = (0, 1, 0)
KINDS = ["dflash", "vanilla", "gated", "rnn"]


@pytest.mark.parametrize("proposal", ["sampled", "greedy"])
@pytest.mark.parametrize("kind", KINDS)
def test_output_has_the_law_of_plain_sampling(kind, proposal):
    p = random_law(2, 17)
    target = TableTarget(2, p)
    law = engine_law(target, micro(kind, 2, proposal=proposal), FixedDepth(2), [PROMPT], Sampling(), 4)
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4)) < EXACT
    assert target.deepest == 3, "no block of the full depth was ever verified"


def test_with_filters_on_both_sides():
    """Top-k of three tokens, by the same processing of p and q."""
    p, sampling = random_law(3, 23), Sampling(0.8, top_k=2)
    law = engine_law(TableTarget(3, p), micro("rnn", 3), FixedDepth(2), [PROMPT], sampling, 4)
    assert distance(law, plain_law(p, PROMPT, sampling, 4)) < EXACT
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4)) > 1e-3, "the filter changed nothing: a vacuous case"


def test_two_requests_under_a_confidence_threshold():
    """The joint law: the confidences of Eq. 7 decide how much is verified, slot by slot."""
    p = random_law(2, 61)
    prompts = [(0, 1), (1, 1, 0)]
    law = engine_law(TableTarget(2, p), micro("rnn", 2), Threshold(), prompts, Sampling(), 3)
    assert distance(law, product(p, prompts, 3)) < EXACT


class ParallelOnly(DSparkDrafter):
    """Wrong: judges drafts by the backbone's distribution, and not by the corrected one they were drawn from."""

    def propose(self, contexts, depths):
        drafts = super().propose(contexts, depths)
        markov, self._markov, draws = self._markov, None, [c.draws for c in contexts]
        try:
            for c in contexts:
                c.draws = _First()
            parallel = super().propose(contexts, depths)
        finally:
            self._markov = markov
            for c, own in zip(contexts, draws, strict=True):
                c.draws = own
        for draft, other in zip(drafts, parallel, strict=True):
            draft.probs = other.probs
        return drafts


class _First:
    def token(self, probs, purpose, position):
        return 0


def test_the_uncorrected_q_is_caught():
    made = micro("vanilla", 2)
    made.__class__, made._confidence = ParallelOnly, None
    p = random_law(2, 17)
    law = engine_law(TableTarget(2, p), made, FixedDepth(2), [PROMPT], Sampling(), 4)
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4)) > 1e-3
