"""The phase hook at work: it never anticipates, and neither a batch's joint law nor a greedy text depends on it."""

import dataclasses
import math

import pytest
from engine.tiny import drafter as tiny_drafter
from engine.tiny import plain, prompts, tiny
from hypothesis import given
from hypothesis import strategies as st
from phase_runs import FLAT, SERVING, calibrated, hook, phase_rate, run_of, view

from companion.engine.compare import compare_greedy
from companion.engine.generate import generate
from companion.exact import laws
from companion.exact.tables import TableDrafter, TableTarget, sparse_law
from companion.phase.rates import MeasuredRates
from companion.phase.tracker import ThinkTokens
from companion.planning import CostModel
from companion.protocols import Outcome, Sampling
from companion.scheduling.phase_hook import PhaseHook

entropies = st.one_of(st.none(), st.floats(-1, 13), st.sampled_from([math.nan, math.inf, -math.inf]))
phases = st.sampled_from(["think", "output"])


@given(st.lists(st.tuples(phases, entropies), min_size=1, max_size=5), st.randoms())
def test_a_decision_is_a_function_of_the_view_alone(drawn, random):
    """Whatever was decided before, whatever became of it, and whoever shares the batch."""
    views = [view(phase, entropy) for phase, entropy in drawn]
    fresh = [calibrated(0.4, 0.9).draft_depths([one])[0] for one in views]
    made = calibrated(0.4, 0.9)
    for _ in range(2):
        order = random.sample(range(len(views)), len(views))
        assert made.draft_depths([views[i] for i in order]) == [fresh[i] for i in order]
        made.observe([Outcome(0, [0.9] * 7, 7, random.randint(0, 7), True)])
    assert made.draft_depths([]) == []


LAW_COSTS = CostModel(draft_token_us=100, verify_fixed_us=300, verify_token_us=30)
HOOKS = {
    "uncalibrated": lambda: hook(baseline=2, max_depth=2, min_depth=0, vocab_size=2, costs=LAW_COSTS),
    "calibrated": lambda: calibrated(0.1, 0.8, depth=2, baseline=1, min_depth=0, vocab_size=2, costs=LAW_COSTS),
    "curve": lambda: calibrated(
        phase_rate(0.8, [0.9, 0.2]),
        phase_rate(0.8, [0.9, 0.9]),
        planner="curve",
        depth=2,
        baseline=1,
        min_depth=0,
        vocab_size=2,
        costs=LAW_COSTS,
    ),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_the_joint_law_of_two_requests_that_open_and_close_spans(name, mode, monkeypatch):
    """Token 0 opens a span and token 1 closes it, so that phases, and depths with them, hang on drafted tokens."""
    monkeypatch.setattr(laws, "NO_TAGS", ThinkTokens(0, 1))
    p, q = sparse_law(2, 101, 0.8), sparse_law(2, 201, 0.8)
    target, drafter = TableTarget(2, p), TableDrafter(2, q, mode, max_depth=2)
    given_prompts, used = [(0, 1), (1, 1, 0)], set()

    def run(branch):
        requests = laws.decode(branch, target, drafter, HOOKS[name](), given_prompts, Sampling(), (5, 3))
        used.update(row.drafted for row in requests[0].rounds if row.position <= 4)  # with room for the whole block
        return tuple(tuple(r.emitted) for r in requests)

    law = laws.exact_law(run)[0]
    assert laws.distance(law, laws.product(p, given_prompts, (5, 3))) < 1e-12
    assert len(used) > 1, "the hook always decided the same: a vacuous case"


@pytest.mark.parametrize("kind", ["lookup", "greedy", "sampled"])
def test_greedy_tokens_are_those_of_plain_decoding(kind):
    drafter = tiny_drafter(kind, 5)
    rates = MeasuredRates(
        run_of(target="tiny-qwen3", drafter=kind, sampling=Sampling(0.0), depth=5), phase_rate(0.2), phase_rate(0.9)
    )
    policy = PhaseHook(
        3,
        deterministic=drafter.deterministic,
        min_depth=0,
        max_depth=5,
        vocab_size=tiny().vocab_size,
        costs=FLAT,
        rates=rates,
        serving=dataclasses.replace(SERVING, target="tiny-qwen3", drafter=kind),
    )
    results = generate(
        tiny(),
        drafter,
        [list(p) for p in prompts(2)],
        temperature=0.0,
        max_new_tokens=60,
        max_batch=4,
        policy=policy,
    )
    comparison = compare_greedy(tiny(), plain(2, 60), results)
    assert comparison.verdict() == "holds", comparison
    rounds = [row for result in results for row in result.rounds]
    inside = [row.drafted for row in rounds if set(row.phases) == {"think"}]
    assert inside
    assert max(inside) == 0
    assert max(row.drafted for row in rounds) == 5


def test_the_uncalibrated_hook_shrinks_in_the_engine_and_a_sampling_drafter_is_left_alone():
    ids = [list(p) for p in prompts(2)]
    costs = CostModel(draft_token_us=300, verify_fixed_us=900, verify_token_us=100)

    def depths(deterministic):
        made = PhaseHook(
            5, deterministic=deterministic, max_depth=5, vocab_size=tiny().vocab_size, costs=costs, min_depth=0
        )
        results = generate(tiny(), tiny_drafter("greedy", 5), ids, max_new_tokens=40, policy=made)
        return {row.drafted for r in results for row in r.rounds if row.position < len(r.prompt_tokens) + 30}

    assert depths(False) == {5}
    assert max(depths(True)) == 5 > min(depths(True))
