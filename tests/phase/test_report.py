"""Reports of hand-made traces, every figure worked out by hand, and properties of any trace."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase.origins import FIXTURE, measured
from phase.traces import report, steps, two_phase_steps

from companion.accepted_length import tau
from companion.metrics import committed_per_round, committed_per_slot, straddle_rate
from companion.phase.ledger import Ledger, merge
from companion.phase.report import Report, between_domain_gap
from companion.phase.sources import steps_of_rounds
from companion.phase.straddle import POLICIES
from companion.rounds import Round

CLEAN = "t tt t tt oooo ooo oooo ooo"
AMBIGUOUS = "t tt t tt " + "tooo" + " ooo oooo ooo"
WORDS = st.lists(st.sampled_from(["t", "tt", "ttt", "o", "oo", "ooooo", "to", "ttoo", "tooo"]), max_size=25)


def test_clean_boundary():
    found = report(CLEAN)
    assert (found.think.steps, found.output.steps) == (4, 4)
    assert found.think.mean_length.value == 1.5
    assert found.output.mean_length.value == 3.5
    assert found.think.token_acceptance.value == 6 / (4 * 8)
    assert found.output.token_acceptance.value == 14 / (4 * 8)
    assert found.think.accepted_per_judged.value == 2 / 6
    assert found.output.accepted_per_judged.value == 10 / 14
    assert found.think.standard_deviation == pytest.approx(math.sqrt(1 / 3))
    assert found.test.difference == -2.0
    assert found.test.cohens_d == pytest.approx(-2 / math.sqrt(1 / 3))
    assert found.straddles.straddling == 0
    assert found.verdict(0.0) == "supported"
    assert found.verdict(2.0) == "within_domain_variation"


@pytest.mark.parametrize(
    ("policy", "think", "output"),
    [
        ("exclude", (4, 6, 28), (3, 10, 21)),
        ("to_think", (5, 10, 35), (3, 10, 21)),
        ("to_output", (4, 6, 28), (4, 14, 28)),
        ("by_token", (4.25, 7, 28 + 1.75), (3.75, 13, 21 + 5.25)),  # one token of four is inside the span
    ],
)
def test_ambiguous_boundary(policy, think, output):
    found = report(AMBIGUOUS, policy)
    assert (found.straddles.straddling, found.straddles.steps) == (1, 8)
    for arm, (count, tokens, proposed) in ((found.think, think), (found.output, output)):
        assert arm.steps == pytest.approx(count)
        assert arm.mean_length.value == pytest.approx(tokens / count)
        assert arm.token_acceptance.value == pytest.approx(tokens / (proposed + count))
    assert found.verdict(0.0) == "straddle_stop_line"  # 1 of 8 steps is more than 5 %, whatever the policy
    assert "straddling: 1 of 8 steps (12.50 %)" in str(found)


@pytest.mark.parametrize(("text", "empty"), [("tt t ttt", "output"), ("oo o ooo", "think")])
def test_an_empty_arm_gives_none_and_not_zero(text, empty):
    found = report(text)
    arm = found.arm(empty)
    assert arm.steps == 0
    for figure in (arm.mean_length, arm.token_acceptance, arm.standard_deviation, arm.solved_rate, arm.moments):
        assert figure is None
    assert arm.accepted_per_judged is None
    assert found.curve(empty) == []
    assert found.test is found.gap is found.interval() is found.interval("responses") is None
    assert found.verdict(0.0) == found.verdict(0.0, "responses") == "insufficient_data"
    assert f"{empty}: no steps" in str(found)


@pytest.mark.parametrize("text", ["t oo ooo", "tt tt oo oo", ""])
def test_too_little_for_a_test(text):
    assert report(text).verdict(0.0) == "insufficient_data"
    assert "no test" in str(report(text))


def test_the_verdict_by_response_needs_two_responses():
    """One response has no spread between responses, however many steps it has."""
    assert report(CLEAN).verdict(0.0, "steps") == "supported"
    assert report(CLEAN).verdict(0.0, "responses") == "insufficient_data"
    two = Report(Ledger(FIXTURE, steps(CLEAN) + steps(CLEAN.replace("tt t", "ttt t"), cluster="b")))
    assert two.interval("responses") is not None


def test_opposite_and_unresolved():
    assert report("oo o oo o tttt ttt tttt ttt").verdict(9.0) == "opposite_direction"
    assert report("oo o oooo o tt ttt t tt").verdict(9.0) == "no_resolvable_gap"


@given(WORDS, st.sampled_from(POLICIES))
def test_nothing_is_counted_twice_and_little_left_out(words, policy):
    found = report(" ".join(words), policy)
    across = found.straddles.straddling
    recorded = len(words) - (across if policy == "exclude" else 0)
    assert found.think.steps + found.output.steps == pytest.approx(recorded)
    tokens = sum(
        arm.mean_length.value * arm.steps for arm in (found.think, found.output) if arm.mean_length is not None
    )
    left_out = found.straddles.straddling_tokens if policy == "exclude" else 0
    assert tokens == pytest.approx(sum(map(len, words)) - left_out)


@given(WORDS.filter(lambda words: not any("to" in word for word in words)))
def test_policies_agree_where_nothing_straddles(words):
    reports = [report(" ".join(words), policy) for policy in POLICIES]
    assert len({(r.think.steps, r.output.steps, r.test) for r in reports}) == 1


@given(WORDS, WORDS)
def test_the_order_of_recording_is_all_the_same(one, other):
    first, second = Ledger(FIXTURE, steps(" ".join(one))), Ledger(FIXTURE, steps(" ".join(other), cluster="b"))
    a, b = Report(merge([first, second])), Report(merge([second, first]))
    for x, y in ((a.think, b.think), (a.output, b.output)):
        assert x.steps == y.steps
        assert (x.mean_length and x.mean_length.value) == pytest.approx(y.mean_length and y.mean_length.value)


@given(st.lists(st.tuples(st.sampled_from(["think", "output"]), st.integers(0, 5)), min_size=1, max_size=20))
def test_agrees_with_the_metrics_of_the_rounds_table(drawn):
    """tau and DeepSpec's verify_rate have one definition; the ledger's figures are the same numbers."""
    rounds = [
        Round(0, i, 10 + i, 5, 5, kept, kept < 5, True, [0] * (kept + 1), [phase] * (kept + 1))
        for i, (phase, kept) in enumerate(drawn)
    ]
    found = Report(Ledger(FIXTURE, steps_of_rounds(rounds)))
    assert found.straddles.rate == straddle_rate(rounds) == 0
    for arm in (found.think, found.output):
        rows = [r for r in rounds if r.phases[0] == arm.phase]
        if rows:
            assert arm.mean_length.value == pytest.approx(committed_per_round(rows))
            assert arm.token_acceptance.value == pytest.approx(committed_per_slot(rows))


def test_difference_in_differences_pairs_the_prompts():
    """Two drafters on the same prompts: what makes a prompt easy for both cancels, and the contrast is resolved."""
    rng = np.random.default_rng(0)
    plain = Report(Ledger(FIXTURE, two_phase_steps(rng, responses=30, inside=0.2, outside=0.7)))
    mixed = Report(Ledger(FIXTURE, two_phase_steps(rng, responses=30, inside=0.6, outside=0.7)))
    contrast = plain.gap - mixed.gap
    assert contrast.clusters == 30
    truth = tau(0.2, 7) - tau(0.6, 7)
    assert contrast.interval().low < truth < contrast.interval().high < 0
    none = plain.gap - Report(Ledger(FIXTURE, two_phase_steps(rng, responses=30, inside=0.2, outside=0.7))).gap
    assert none.interval().low < 0 < none.interval().high


def test_between_domain_gap():
    ledger = Ledger(
        FIXTURE,
        (*steps("t ttt oo", domain="math"), *steps("tttt oooo oooo", domain="code"), *steps("tt o", domain="chat")),
    )
    assert between_domain_gap(ledger) == 4 - 1.5
    assert between_domain_gap(ledger, "think") == 4 - 2
    assert between_domain_gap(ledger, "output") == 4 - 1
    across = ledger.record(steps("tooooooo", domain="chat"))
    assert between_domain_gap(across) == 4 - 2
    assert between_domain_gap(across, "think") == 4 - 2  # a straddling step lies wholly in neither
    with pytest.raises(ValueError, match="at least two, got math"):
        between_domain_gap(ledger.domain("math"))
    with pytest.raises(ValueError, match="at least two, got none"):
        between_domain_gap(Ledger(FIXTURE, steps(CLEAN)))


def test_the_banner_comes_first():
    assert str(report(CLEAN)).splitlines()[0] == FIXTURE.banner
    run = measured()
    assert str(report(CLEAN, origin=run)).splitlines()[0] == run.banner
    assert report(CLEAN, origin=run).origin is run
