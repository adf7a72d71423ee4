"""Prompt lookup and the draft model by themselves."""

import pytest
import torch
from engine.models import ours, reference_model
from hypothesis import given
from hypothesis import strategies as st

from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.draws import KeyedDraws
from companion.engine.sampling import distribution
from companion.protocols import Context, Drafter, Sampling, TargetOutput


def context(tokens, request=0, temperature=1.0, **filters):
    return Context(request, list(tokens), Sampling(temperature, **filters), KeyedDraws(0, bytes([request])))


def lookup(tokens, depth=4, **options):
    (draft,) = LookupDrafter(100, **options).propose([context(tokens)], [depth])
    assert draft.probs is None, "a lookup is deterministic: q is one-hot"
    return draft.tokens


def test_lookup_continues_the_longest_match_from_its_last_occurrence():
    assert lookup([1, 2, 3, 7, 2, 3, 8, 9, 2, 3]) == [8, 9, 2, 3]
    assert lookup([1, 2, 3, 7, 8, 5, 3, 9, 1, 2, 3]) == [7, 8, 5, 3], "three tokens match before one does"
    assert lookup([1, 2, 3, 7, 8, 5, 3, 9, 1, 2, 3], max_ngram=1) == [9, 1, 2, 3]
    assert lookup([5, 5, 5]) == [5]
    assert lookup([4, 1, 2, 4], depth=2) == [1, 2]


@pytest.mark.parametrize("tokens", [[1], [1, 2, 3], [1, 2, 1, 3]])
def test_lookup_without_a_match_drafts_nothing(tokens):
    assert lookup(tokens) == []


def test_lookup_asks_for_as_many_tokens_as_must_match():
    assert lookup([1, 2, 9, 2], min_ngram=2) == []
    with pytest.raises(ValueError, match="1 <= min_ngram <= max_ngram, got 4 and 3"):
        LookupDrafter(100, min_ngram=4)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6), st.data())
def test_lookup_step_by_step_equals_lookup_at_once(tokens, depth, data):
    """The index grows with the text; however it was cut before, the proposal is the same, and comes from the text."""
    grown = LookupDrafter(4)
    for cut in sorted(data.draw(st.lists(st.integers(1, len(tokens)), max_size=4))):
        grown.propose([context(tokens[:cut])], [depth])
    (draft,) = grown.propose([context(tokens)], [depth])
    assert draft.tokens == lookup(tokens, depth)
    for n in (3, 2, 1):
        ends = [e for e in range(n, len(tokens)) if tokens[e - n : e] == tokens[-n:]] if len(tokens) > n else []
        if ends:
            assert draft.tokens == tokens[ends[-1] : ends[-1] + depth]
            break
    else:
        assert draft.tokens == []


def test_lookup_keeps_requests_apart_and_forgets_finished_ones():
    drafter = LookupDrafter(100)
    one, two = context([1, 2, 1], 1), context([1, 7, 1], 2)
    assert [d.tokens for d in drafter.propose([one, two], [3, 3])] == [[2, 1], [7, 1]]
    drafter.reset(1)
    assert drafter.propose([context([8, 1], 1)], [3])[0].tokens == []
    assert drafter.propose([two], [3])[0].tokens == [7, 1]


@pytest.fixture(scope="module")
def model():
    return ours(reference_model(2, sharpness=2.0))


def test_both_drafters_have_the_seams(model):
    for drafter in (LookupDrafter(64), ModelDrafter(model)):
        assert isinstance(drafter, Drafter)
    assert LookupDrafter(64).deterministic
    assert ModelDrafter(model, proposal="greedy").deterministic
    assert not ModelDrafter(model).deterministic


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.8, "min_p": 0.05}])
def test_the_draft_models_q_is_what_it_drew_from(model, filters):
    """Row by row the processed distribution after the text so far: the request's own temperature and filters."""
    drafter, request = ModelDrafter(model, max_depth=6), context([3, 1, 4, 1, 5], temperature=0.7, **filters)
    (draft,) = drafter.propose([request], [6])
    assert draft.probs.dtype == torch.float32
    for k, token in enumerate(draft.tokens):
        logits = model.logits([*request.tokens, *draft.tokens[:k]])[-1:]
        expected = distribution(logits, request.sampling)[0]
        torch.testing.assert_close(draft.probs[k], expected, atol=1e-5, rtol=1e-4)
        assert token == request.draws.token(draft.probs[k], "draft/0", len(request.tokens) + k)


def test_tokens_are_drawn_from_the_very_tensor_that_is_handed_on():
    """A half-precision draft model: drawn from one rounding and judged by another is two distributions."""

    class Recorder:
        def __init__(self):
            self.given = []

        def token(self, probs, purpose, position):
            self.given.append(probs.clone())
            return int(probs.argmax())

    draws = Recorder()
    model = ours(reference_model(2, sharpness=2.0), dtype=torch.bfloat16)
    (draft,) = ModelDrafter(model).propose([Context(0, [3, 1], Sampling(0.9), draws)], [5])
    assert torch.equal(torch.stack(draws.given), draft.probs)
    assert draft.probs.dtype == torch.float32
    assert float((draft.probs.sum(-1) - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("proposal", ["sampled", "greedy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_deterministic_proposal_comes_without_a_soft_q(model, proposal, temperature):
    (draft,) = ModelDrafter(model, proposal=proposal).propose([context([3, 1], temperature=temperature)], [4])
    assert (draft.probs is None) == (proposal == "greedy" or temperature == 0.0)
    if draft.probs is None:
        text = [3, 1]
        for token in draft.tokens:
            assert token == int(model.logits(text)[-1].argmax())
            text.append(token)


def test_each_round_of_a_position_has_fresh_draft_numbers(model):
    """A discarded draft may steer later capacity, so drafting the same position again must not repeat it."""
    drafter, request = ModelDrafter(model, max_depth=8), context([3, 1])
    first = drafter.propose([request], [8])[0].tokens
    assert drafter.propose([request], [8])[0].tokens == first
    request.round += 1
    assert drafter.propose([request], [8])[0].tokens != first


def test_the_draft_cache_follows_the_committed_text(model):
    """Accepted, rejected, replaced and ragged: the proposal always equals that of a drafter without a past."""
    drafter, generator = ModelDrafter(model, max_depth=5, proposal="greedy"), torch.Generator().manual_seed(1)
    contexts = [context([i + 1] * (i + 1), i) for i in range(5)]
    for step in range(12):
        if step == 6:
            drafter.reset(contexts[3].request)
            contexts[3] = context([9, 9], 5)
        depths = torch.randint(0, 6, (5,), generator=generator).tolist()
        drafts = drafter.propose(contexts, depths)
        for c, depth, draft in zip(contexts, depths, drafts, strict=True):
            assert len(draft) == depth
            fresh = ModelDrafter(model, max_depth=5, proposal="greedy").propose([c], [depth])[0]
            assert draft.tokens == fresh.tokens
            kept = int(torch.randint(0, depth + 1, (1,), generator=generator))
            c.tokens += [*draft.tokens[:kept], int(torch.randint(64, (1,), generator=generator))]
        contexts = contexts[1:] + contexts[:1]
    slots = [drafter._slots.slot(c.request) for c in contexts]
    assert len(slots) == len(set(slots)) == 5


def test_slots_of_finished_requests_are_used_again(model):
    drafter = ModelDrafter(model, max_depth=2)
    for request in range(20):
        drafter.propose([context([1, 2, 3], request), context([4], 100 + request)], [2, 2])
        drafter.reset(request)
        drafter.reset(100 + request)
    assert drafter._slots.cache.slots <= 2


def test_draft_logits_that_are_no_distribution_raise(model):
    class Broken:
        def __getattr__(self, name):
            return getattr(model, name)

        def forward(self, *args):
            return TargetOutput(torch.full_like(model.forward(*args).logits, float("nan")))

    for proposal in ("sampled", "greedy"):
        with pytest.raises(ValueError, match="no distribution"):
            ModelDrafter(Broken(), proposal=proposal).propose([context([1, 2])], [2])


def test_proposals_have_two_names(model):
    with pytest.raises(ValueError, match="'sampled' or 'greedy', got 'beam'"):
        ModelDrafter(model, proposal="beam")
