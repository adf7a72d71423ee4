"""The experiments behind the first pages of the book: their arithmetic, and that each of their checks can fail."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from companion.experiments import acceptance_rule, entropy_ceiling, forward_cost, responses, think_end
from companion.experiments.acceptance_rule import RULES, power, sampling_test
from companion.rounds import Round

P_T, P_D = np.array([0.7, 0.3]), np.array([0.5, 0.5])


@st.composite
def laws(draw: st.DrawFn) -> np.ndarray:
    w = np.array(draw(st.lists(st.integers(0, 20), min_size=5, max_size=5)), dtype=float)
    w[draw(st.integers(0, 4))] += 1
    return w / w.sum()


@given(laws(), laws())
def test_only_the_first_rule_is_exact_and_all_are_laws(p_t, p_d):
    for rule in RULES:
        law = rule.law(p_t, p_d)
        assert law.min() >= -1e-15
        assert law.sum() == pytest.approx(1)
    np.testing.assert_allclose(RULES[0].law(p_t, p_d), p_t, atol=1e-14)


def test_the_textbook_numbers():
    assert [round(float(rule.law(P_T, P_D)[0]), 12) for rule in RULES] == [0.7, 0.64, 1.0, 0.85]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_sampling_follows_the_exact_law(rule):
    """So the exact law and the sampled one are two accounts of one rule; the level keeps a false alarm at 1e-6."""
    p_t, p_d = np.array([0.4, 0.25, 0.2, 0.1, 0.05]), np.array([0.2, 0.4, 0.1, 0.1, 0.2])
    law, draws = rule.law(p_t, p_d), 40_000
    counts = rule.sample(p_t, p_d, draws, np.random.default_rng(1))
    assert not counts[law < 1e-15].any()
    possible = law > 1e-15
    if possible.sum() > 1:
        assert stats.chisquare(counts[possible], draws * law[possible] / law[possible].sum()).pvalue > 1e-6


def test_the_sampling_test_tells_right_from_wrong_and_knows_its_power():
    table = sampling_test(P_T, P_D, draws=20_000, seed=0)
    assert table["rejected"].tolist() == [False, True, True, True]
    assert table["power"].iloc[0] == pytest.approx(1e-6, rel=0.01)
    assert (table["power"].iloc[1:] > 0.999).all()
    assert power(RULES[1].law(P_T, P_D), P_T, draws=20) < 0.1  # with few draws the same error would pass


@pytest.mark.parametrize("draws", [200, 300])
def test_the_power_that_is_stated_is_the_power_that_is_had(draws):
    """Ten thousand simulated tests of a wrong rule on five tokens, at a level and a size where about half reject."""
    p_t, p_d = np.array([0.40, 0.25, 0.18, 0.12, 0.05]), np.array([0.22, 0.38, 0.10, 0.12, 0.18])
    law, level, tests = RULES[1].law(p_t, p_d), 0.01, 10_000
    counts = np.random.default_rng(0).multinomial(draws, law, size=tests)
    rejected = (stats.chisquare(counts, draws * p_t, axis=1).pvalue < level).mean()
    stated = power(law, p_t, draws, level)
    assert 0.4 < stated < 0.8
    assert rejected == pytest.approx(stated, abs=0.03)  # the noncentral law is an approximation at this size


def rounds_of(masses, accepted):
    return [
        Round(
            request=0, round=k, position=k, drafted=1, verified=1, accepted=int(a), rejected=not a, bonus=True,
            tokens=[0] * (int(a) + 1), phases=["think"] * (int(a) + 1), think_end_mass=[e, 0.0],
        )
        for k, (e, a) in enumerate(zip(masses, accepted, strict=True))
    ]  # fmt: skip


def test_agreement_counts_against_the_sum_of_masses():
    masses = [0.1, 0.5, 0.9, 0.5]
    found = think_end.agreement(rounds_of(masses, [False, True, True, False]))
    assert (found.rounds, found.observed) == (4, 2)
    assert found.expected == pytest.approx(2.0)
    assert found.deviation == pytest.approx(np.sqrt(0.09 + 0.25 + 0.09 + 0.25))
    assert found.chance == 1.0


def test_agreement_catches_an_engine_that_accepts_too_often():
    rng = np.random.default_rng(0)
    masses = rng.uniform(0, 0.3, 2000)
    honest = think_end.agreement(rounds_of(masses, rng.random(2000) < masses))
    eager = think_end.agreement(rounds_of(masses, rng.random(2000) < 1.5 * masses))
    assert honest.chance > 0.01 > 1e-6 > eager.chance


def test_a_chance_acceptance_among_masses_near_zero_is_no_alarm_and_many_are():
    masses = [1e-5] * 2000  # a normal law with this variance would call one acceptance seven deviations
    one, twenty = ([k < n for k in range(2000)] for n in (1, 20))
    assert think_end.agreement(rounds_of(masses, one)).chance > 0.05
    assert think_end.agreement(rounds_of(masses, twenty)).chance < 1e-10


def test_nothing_judged_is_no_result():
    with pytest.raises(ValueError, match="nothing can be compared"):
        think_end.agreement([])


def test_the_longest_finished_span_is_taken_and_without_one_the_longest_text(monkeypatch):
    """A large model thinks past any cap that a page can afford."""
    end = 9

    def sampled(*texts):
        made = [SimpleNamespace(mode=mode, result=SimpleNamespace(tokens=tokens)) for mode, tokens in texts]
        monkeypatch.setattr(think_end, "sample_responses", lambda *_, **__: made)
        target = SimpleNamespace(name="x", tags=SimpleNamespace(close=end))
        return think_end.longest_thought(target, prompts=1, seed=0).result.tokens

    short, long, cut = [1, end, 2, 2, 2, 2, 2], [1, 1, 1, end], [1] * 20
    assert sampled(("think", short), ("think", cut), ("think", long), ("no_think", [2] * 10 + [end])) == long
    assert sampled(("think", cut[:5]), ("think", cut), ("no_think", [2] * 30)) == cut


def test_fit_cost_recovers_a_line_and_ignores_what_lies_beyond_it():
    widths = np.array([1, 2, 4, 8, 16, 32])
    median = 900 + 25.0 * (widths - 1)
    median[-2:] *= 5
    cost = forward_cost.fit_cost(pd.DataFrame({"median": median}, index=widths), 40.0)
    assert cost.verify_fixed_us == pytest.approx(900)
    assert cost.verify_token_us == pytest.approx(25)
    assert cost.draft_token_us == 40.0


@pytest.fixture
def rows():
    """Two responses of three rows each, with round numbers."""
    table = pd.DataFrame(
        {
            "response": [0, 0, 0, 1, 1, 1],
            "step": [0, 1, 2, 0, 1, 2],
            "domain": "math",
            "served": "T=1",
            "vocab": 4,
            "entropy": [1.0, 0.0, 1.0, 0.5, 1.0, 0.2],
            "max_p": [0.5, 1.0, 0.5, 0.8, 0.5, 0.9],
        }
    )
    table["ceiling"] = entropy_ceiling.entropy_ceiling(table["entropy"].to_numpy(), 4)
    return table


def test_which_step_pairs_rows_within_a_response(rows):
    found = entropy_ceiling.which_step(rows.sample(frac=1, random_state=0))
    assert found["pairs"] == 4
    before, after = [1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 1.0, 0.2]
    assert found["autocorrelation"] == pytest.approx(np.corrcoef(before, after)[0, 1])
    assert found["broken"] == pytest.approx(2 / 4)  # rows of mode 1.0 and 0.9 after rows of one nat
    assert found["broken_by_tenth"] == pytest.approx(2 / 4)
    assert found["broken_own"] == 0.0
    assert found["cut"] == pytest.approx(2 / 4)
    assert found["unfounded"] == 1.0


def test_which_step_counts_cuts_that_the_judged_row_did_not_deserve(rows):
    rows["ceiling"] = [0.5, 1.0, 0.5, 0.5, 0.9, 0.9]
    found = entropy_ceiling.which_step(rows)
    assert found["cut"] == pytest.approx(2 / 4)  # after the first row of each response
    assert found["unfounded"] == pytest.approx(1 / 2)  # modes 1.0 and 0.5 were judged there
    assert np.isnan(entropy_ceiling.which_step(rows.assign(ceiling=1.0))["unfounded"])  # no cut, no share


def test_which_step_measures_an_excess_of_a_tenth_and_every_cut(rows):
    rows["ceiling"], rows["max_p"] = [0.85, 1.0, 1.0, 1.0, 1.0, 1.0], [0.5, 1.0, 0.5, 0.8, 0.5, 0.9]
    found = entropy_ceiling.which_step(rows)
    assert found["broken"] == found["broken_by_tenth"] == pytest.approx(1 / 4)  # 1.0 after a ceiling of 0.85
    rows["ceiling"] = [0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert entropy_ceiling.plan_depths(0.75) == 6
    assert entropy_ceiling.which_step(rows)["cut"] == pytest.approx(1 / 4)  # one slot less is a cut as well


def test_collected_rows_speak_of_what_would_be_served():
    found = entropy_ceiling.collect(entropy_ceiling.Config(prompts=1, max_new_tokens=24))
    card = found[found["served"] == "T=0.6, top-k 20, top-p 0.95"]
    assert 1 < card["kept"].max() <= 20
    assert (card["kept"] >= np.exp(card["entropy"]) - 1e-9).all()  # n tokens hold at most ln n nats
    expected = entropy_ceiling.entropy_ceiling(card["entropy"].to_numpy(), card["kept"].to_numpy())
    np.testing.assert_allclose(card["ceiling_kept"], expected)
    several = card["kept"] > 1
    assert (card["ceiling_kept"] < card["ceiling"])[several].all()
    assert (found["agreement"] <= found["max_p"] + 1e-12).all()
    assert found["agreement"].mean() < found["max_p"].mean()  # the argmax is the draft model's, not the target's
    assert (found["overlap"] <= 1 + 1e-12).all()


def test_which_drafter_counts_a_broken_bound(rows):
    masses = {f"top_{m}": [0.5, 1.0, 0.5, 0.8, 0.5, 0.9] for m in entropy_ceiling.SUPPORTS}
    assert entropy_ceiling.which_drafter(rows.assign(**masses))["broken"].tolist() == [0, 0, 0, 0]
    masses["top_1"] = [0.99, 1.0, 0.5, 0.8, 0.5, 0.9]  # too much for a row of one nat
    assert entropy_ceiling.which_drafter(rows.assign(**masses))["broken"].tolist() == [1, 0, 0, 0]


def test_judged_slots_pair_a_token_with_its_own_row():
    slots = entropy_ceiling.judged_slots(entropy_ceiling.Config(prompts=1, max_new_tokens=80))
    assert len(slots) > 30
    assert (slots["max_p"] >= np.exp(-slots["entropy"]) - 1e-4).all()  # entropies of another row break the bracket
    assert (slots["max_p"] <= slots["ceiling"] + 1e-4).all()
    assert 0 < slots["accepted"].mean() < slots["max_p"].mean()


def test_what_is_certified_shares_sum_to_one(rows):
    table = entropy_ceiling.what_is_certified(rows)
    assert table.sum().tolist() == pytest.approx([1.0, 1.0])
    assert table["certified"][7] == 1.0


def test_a_question_without_rows_is_refused(rows):
    with pytest.raises(ValueError, match="longer responses"):
        entropy_ceiling.which_step(rows[rows["step"] == 0])
    with pytest.raises(ValueError, match="keeps more than one token"):
        entropy_ceiling.which_vocabulary(rows.assign(kept=1))


def test_configurations_that_measure_nothing_are_refused():
    with pytest.raises(ValueError, match="prompts must be at least 1"):
        responses.sample_responses(None, prompts=0, seed=0)
    with pytest.raises(ValueError, match="repeats"):
        forward_cost.run(forward_cost.Config(repeats=1))
    with pytest.raises(ValueError, match="drafter 'lookup'"):
        acceptance_rule.run(acceptance_rule.Config(drafter="lookup"))
