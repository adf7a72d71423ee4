"""Negative controls: rules that look right and are not, put through the exact test, which must see each of them."""

import numpy as np
import pytest
from engine.policies import DepthFromLength

from companion.acceptance import residual, step_law
from companion.engine.decode import Engine
from companion.engine.frontier import DraftFrontier
from companion.exact.laws import decode, distance, engine_law, exact_law, plain_law, product
from companion.exact.tables import TableDrafter, TableTarget, random_law
from companion.protocols import Draft, Sampling
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.retrospective import Retrospective

PROMPT = (0,)
TWO, HALF = [0.7, 0.3], [0.5, 0.5]


def table(row):
    return lambda text: row


def second_token(law):
    """The law of the token after the prefill's own, the first one that a draft can touch."""
    width = 1 + max(max(text) for text in law)
    return [sum(mass for text, mass in law.items() if text[1] == v) for v in range(width)]


def test_the_right_rule_gives_the_targets_seven_tenths():
    law = engine_law(TableTarget(2, table(TWO)), TableDrafter(2, table(HALF)), FixedDepth(1), [PROMPT], Sampling(), 3)
    assert second_token(law) == pytest.approx(TWO, abs=1e-12)


def test_a_forgotten_residual_gives_0_64(monkeypatch):
    """After a rejection the token is drawn from p itself instead of max(p - q, 0)."""
    monkeypatch.setattr("companion.engine.verify.residual", lambda p, q: p)
    law = engine_law(TableTarget(2, table(TWO)), TableDrafter(2, table(HALF)), FixedDepth(1), [PROMPT], Sampling(), 3)
    assert second_token(law) == pytest.approx([0.64, 0.36], abs=1e-12)
    assert second_token(law) == pytest.approx(step_law(np.array(TWO), np.array(HALF), resample=np.array(TWO)).tolist())


def test_a_soft_q_with_an_argmax_proposal_is_biased():
    """The proposal is the drafter's argmax, the ratio uses its soft distribution."""
    p, q = [0.4, 0.3, 0.2, 0.1], [0.25, 0.2, 0.3, 0.25]
    law = engine_law(
        TableTarget(4, table(p)), TableDrafter(4, table(q), "argmax, soft q"), FixedDepth(1), [PROMPT], Sampling(), 3
    )
    wrong = step_law(np.array(p), np.array(q), drawn_from=np.eye(4)[2])
    assert second_token(law) == pytest.approx(wrong.tolist(), abs=1e-12)
    assert max(abs(wrong - p)) > 0.1
    assert distance(law, plain_law(table(p), PROMPT, Sampling(), 3)) > 0.01


def test_a_retrospective_depth_gives_0_85():
    """Token 0 is verified, token 1 is thrown away unseen by the rule: the paper's counterexample."""
    policy = Retrospective(1, lambda draft: int(draft.tokens[:1] == [0]))
    target, drafter = TableTarget(2, table(TWO)), TableDrafter(2, table(HALF))
    law = engine_law(target, drafter, policy, [PROMPT], Sampling(), 3, allow_lossy=True)
    assert second_token(law) == pytest.approx([0.85, 0.15], abs=1e-12)


def test_dropping_drafts_of_low_q_after_drawing_them():
    """Confidence truncation that looks at the token's own probability under the drafter."""
    p, q = [0.4, 0.3, 0.2, 0.1], [0.1, 0.1, 0.4, 0.4]

    def keep_likely(draft: Draft) -> int:
        return int(len(draft) > 0 and float(draft.probs[0, draft.tokens[0]]) >= 0.3)

    target, drafter = TableTarget(4, table(p)), TableDrafter(4, table(q))
    law = engine_law(target, drafter, Retrospective(1, keep_likely), [PROMPT], Sampling(), 3, allow_lossy=True)
    # kept: q min(1, p/q) on tokens 2 and 3, the rejected half from the residual; dropped: a fifth of the time, p
    assert second_token(law) == pytest.approx([0.38, 0.26, 0.24, 0.12], abs=1e-12)


def test_accepting_iff_the_target_drew_the_same_token_is_no_bug(monkeypatch):
    """A public report calls this rule biased. It is exact, what goes out being the target's own sample; it accepts
    sum_v q p instead of sum_v min(q, p) and so is slower."""

    def coupled(tokens, q, p, draws, position):
        for k, token in enumerate(tokens):
            drawn = draws.token(p[k], "target", position + k)
            if drawn != token:
                return k, drawn
        return len(tokens), draws.token(p[len(tokens)], "target", position + len(tokens))

    p, q = random_law(3, 95), random_law(3, 96)
    target, drafter = TableTarget(3, p), TableDrafter(3, q)

    def accepted():
        def run(branch):
            (request,) = decode(branch, target, drafter, FixedDepth(2), [PROMPT], Sampling(), 4)
            return sum(row.accepted for row in request.rounds)

        return sum(count * mass for count, mass in exact_law(run)[0].items())

    usual = accepted()
    monkeypatch.setattr("companion.engine.judge.verify_block", coupled)
    law = engine_law(target, drafter, FixedDepth(2), [PROMPT], Sampling(), 4)
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4)) < 1e-12
    assert accepted() < usual - 0.1


def test_the_engine_refuses_the_retrospective_policy_unless_asked():
    policy = Retrospective(1, len)
    with pytest.raises(ValueError, match="allow_lossy"):
        Engine(TableTarget(2, table(TWO)), TableDrafter(2, table(HALF)), policy)


class PeeksAtTheNeighbour(Retrospective):
    """Verify the first request's draft iff the second's token is 0, and the second's iff the first's is 0."""

    def __init__(self) -> None:
        super().__init__(1, len)

    def lengths(self, drafts):
        first = [draft.tokens[0] if draft.tokens else 1 for draft in drafts]
        return [int(bool(draft.tokens) and first[1 - i] == 0) for i, draft in enumerate(drafts)]


def test_mutual_peeking_keeps_each_law_and_breaks_the_joint_one():
    """Non-anticipation of each slot's own token is not enough: only one order for the whole batch is."""
    p, prompts = table(TWO), [(0,), (1,)]
    target, drafter = TableTarget(2, p), TableDrafter(2, table(HALF))
    law = engine_law(target, drafter, PeeksAtTheNeighbour(), prompts, Sampling(), 3, allow_lossy=True)
    alone = plain_law(p, (0,), Sampling(), 3)
    for request in (0, 1):
        marginal = {text: sum(m for texts, m in law.items() if texts[request] == text) for text in alone}
        assert distance(marginal, alone) < 1e-12
    assert distance(law, product(p, prompts, 3)) > 1e-3


def test_a_frontier_that_tells_the_length_of_a_draft_is_not_safe(monkeypatch):
    """With the whole length in view, a drafter that ends after token 0 gives its tokens away."""
    monkeypatch.setattr(DraftFrontier, "drafted", lambda self, row: len(self._DraftFrontier__drafts[row]))
    p, q = random_law(2, 81), random_law(2, 82)
    law = engine_law(TableTarget(2, p), TableDrafter(2, q, ends_after=0), DepthFromLength(), [PROMPT], Sampling(), 4)
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4)) > 1e-3


def test_the_residual_is_what_makes_the_difference(monkeypatch):
    """A residual one part in a million off is seen by the exact test (and by no simulation)."""
    monkeypatch.setattr("companion.engine.verify.residual", lambda p, q: 0.999999 * residual(p, q) + 1e-6 * p)
    p, q = random_law(3, 91), random_law(3, 92)
    law = engine_law(TableTarget(3, p), TableDrafter(3, q), FixedDepth(2), [PROMPT], Sampling(), 3)
    assert 1e-12 < distance(law, plain_law(p, PROMPT, Sampling(), 3)) < 1e-6
