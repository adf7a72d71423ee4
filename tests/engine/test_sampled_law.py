"""Losslessness on real sampling: random Qwen3 models, the keyed random numbers, a chi-square test of known power."""

from dataclasses import replace

import numpy as np
import pytest
from engine.fit import Fit
from engine.models import ours, reference_model

from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.request import Request, StopRule
from companion.exact.laws import engine_law, plain_law, processed
from companion.exact.tables import TableDrafter, TableTarget
from companion.phase.tracker import PhaseTracker, ThinkTokens
from companion.protocols import Context, Draft, Sampling
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.retrospective import Retrospective

VOCAB, NEW, DEPTH, COUNT = 3, 4, 2, 2000
PROMPT, SAMPLING = (0, 1, 2, 1), Sampling(0.9)
SIZE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def target():
    return ours(reference_model(1, **SIZE))


@pytest.fixture(scope="module")
def draft_model():
    return ours(reference_model(2, **SIZE))


def row_law(model):
    """A model as a table of laws over texts, for the exact side."""
    known = {}

    def law(text):
        if text not in known:
            known[text] = model.logits(text)[-1].double().softmax(-1).numpy()
        return known[text]

    return law


@pytest.fixture(scope="module")
def expected(target):
    return plain_law(row_law(target), PROMPT, SAMPLING, NEW)


def sample(target, drafter, policy, count, *, prompt=PROMPT, sampling=SAMPLING, new=NEW, seed=7, allow_lossy=False):
    """The finished requests of ``count`` copies of one prompt: independent responses."""
    engine = Engine(target, drafter, policy, max_batch=128, capacity=16, allow_lossy=allow_lossy)
    requests = []
    for i in range(count):
        context = Context(i, list(prompt), sampling, KeyedDraws(seed, request_key(prompt, i)))
        requests.append(Request(context, len(prompt), StopRule(new), PhaseTracker(ThinkTokens(None, None))))
        engine.submit(requests[-1])
    for _ in engine.run():
        pass
    return requests


def texts(requests):
    return [tuple(r.emitted) for r in requests]


@pytest.mark.parametrize("count", [COUNT, pytest.param(40_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["plain", "sampled", "greedy", "lookup"])
def test_the_sampled_texts_follow_the_targets_law(kind, count, target, draft_model, expected):
    drafter = {
        "plain": lambda: None,
        "lookup": lambda: LookupDrafter(VOCAB, max_depth=DEPTH),
        "sampled": lambda: ModelDrafter(draft_model, max_depth=DEPTH),
        "greedy": lambda: ModelDrafter(draft_model, max_depth=DEPTH, proposal="greedy"),
    }[kind]()
    requests = sample(target, drafter, FixedDepth(DEPTH) if drafter else None, count)
    if drafter is not None:
        rounds = [row for r in requests for row in r.rounds]
        assert 0 < sum(r.accepted for r in rounds) < sum(r.verified for r in rounds), "only one branch of the rule ran"
    fit = Fit(expected, count)
    assert fit.detectable() < {COUNT: 0.11, 40_000: 0.03}[count], "a test this weak means nothing"
    assert fit.statistic(texts(requests)) < fit.critical


class SoftArgmax(ModelDrafter):
    """The bug: the argmax is proposed, the soft distribution goes into the ratio."""

    def token(self, probs, purpose, position):
        return int(probs.argmax())

    def propose(self, contexts, depths):
        return super().propose([replace(context, draws=self) for context in contexts], depths)


def first_is_zero(draft: Draft) -> int:
    """Verify only drafts that begin with token 0: hindsight."""
    return len(draft) if draft.tokens[:1] == [0] else 0


@pytest.mark.parametrize("control", ["argmax with a soft q", "residual forgotten", "retrospective depth"])
def test_each_wrong_rule_fails_the_same_test(control, target, draft_model, expected, monkeypatch):
    """First the power against this very rule, from its exact law; then the rule itself, which must be caught."""
    mode, kind, policy = "sampled", ModelDrafter, FixedDepth(DEPTH)
    if control == "argmax with a soft q":
        mode, kind = "argmax, soft q", SoftArgmax
    elif control == "residual forgotten":
        monkeypatch.setattr("companion.engine.verify.residual", lambda p, q: p)
    else:
        policy = Retrospective(DEPTH, first_is_zero)
    table = TableTarget(VOCAB, row_law(target)), TableDrafter(VOCAB, row_law(draft_model), mode)
    wrong = engine_law(*table, policy, [PROMPT], SAMPLING, NEW, allow_lossy=True)
    fit = Fit(expected, COUNT)
    assert fit.power(wrong) > 0.999
    drafter = kind(draft_model, max_depth=DEPTH)
    statistic = fit.statistic(texts(sample(target, drafter, policy, COUNT, allow_lossy=True)))
    assert statistic > fit.critical
    assert statistic == pytest.approx(fit.mean_statistic(wrong), rel=0.4), "not the deviation that was enumerated"


def test_filters_on_a_larger_vocabulary():
    """Temperature, top-k, top-p and min-p over 64 tokens: the prefill's token and the first that a draft can touch."""
    target = ours(reference_model(5, sharpness=2.0))
    drafter = ModelDrafter(ours(reference_model(5)), max_depth=1)
    sampling, prompt = Sampling(0.8, top_k=12, top_p=0.9, min_p=0.02), (5, 9, 2, 61)
    requests = sample(target, drafter, None, COUNT, prompt=prompt, sampling=sampling, new=3)
    law, expected = row_law(target), {}
    for a, first in enumerate(processed(law(prompt), sampling)):
        second = processed(law((*prompt, a)), sampling) if first else ()
        expected |= {(a, b): first * mass for b, mass in enumerate(second) if mass}
    fit = Fit(expected, COUNT)
    assert fit.detectable() < 0.15
    assert fit.statistic([text[:2] for text in texts(requests)]) < fit.critical
    assert 0.1 < np.mean([r.rounds[0].accepted for r in requests]) < 0.95, "only one branch of the rule ran"
