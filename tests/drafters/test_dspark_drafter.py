"""The drafter by itself: batched as alone, nothing left behind, the q it hands on, and what it refuses."""

from functools import cache

import pytest
import torch
from drafters.golden import ALL, MODELS, drafter, model, target_of
from engine.models import decode_ids

from companion.drafters.dspark.drafter import DSparkDrafter
from companion.engine.draws import KeyedDraws
from companion.engine.sampling import distribution
from companion.protocols import Context, Drafter, Sampling

FILTERS = [Sampling(0.0), Sampling(1.0), Sampling(0.7, top_k=9), Sampling(1.3, top_p=0.8, min_p=0.02)]


def context(tokens, request=0, sampling=None):
    return Context(request, list(tokens), sampling or Sampling(1.0), KeyedDraws(3, bytes([request])))


@cache
def text_features(request):
    """The target's outputs at every position of a request, made up: two layers of 64."""
    return torch.randn(512, 2, 64, generator=torch.Generator().manual_seed(request))


def features_of(request, start, stop):
    return text_features(request)[start:stop]


wide = cache(model)


def exact(name, **options):
    return DSparkDrafter(wide(name), name=name, dtype=torch.float64, **options)


def alone(name, c, depth, **options):
    """The draft of a drafter that has never seen anything else."""
    fresh = exact(name, **options)
    fresh.observe([c], [features_of(c.request, 0, len(c.tokens) - 1)])
    return fresh.propose([c], [depth])[0]


def same(draft, other):
    assert draft.tokens == other.tokens
    for a, b in ((draft.probs, other.probs), (draft.confidence, other.confidence)):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), atol=1e-12, rtol=0)


@pytest.mark.parametrize("proposal", ["sampled", "greedy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_drafts_what_each_request_would_alone(name, proposal):
    """Ragged texts and depths, mixed sampling, requests that come and go, accepted and rejected drafts."""
    drafter, random = exact(name, proposal=proposal), torch.Generator().manual_seed(len(name))

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=random))

    contexts = [context(range(5, 8 + 9 * i), i, FILTERS[i % 4]) for i in range(3)]
    drafter.observe(contexts, [features_of(c.request, 0, len(c.tokens) - 1) for c in contexts])
    for step in range(9):
        depths = [number(0, 6) for _ in contexts]
        drafts = drafter.propose(contexts, depths)
        before = [len(c.tokens) for c in contexts]
        for c, depth, draft in zip(contexts, depths, drafts, strict=True):
            assert len(draft) == depth
            if depth:
                same(draft, alone(name, c, depth, proposal=proposal))
            c.tokens += [*draft.tokens[: number(0, depth + 1)], number(0, 503)]
            c.round += 1
        drafter.observe(
            contexts, [features_of(c.request, b - 1, len(c.tokens) - 1) for c, b in zip(contexts, before, strict=True)]
        )
        if step in (2, 4):  # one joins late, with a longer text than there was room for
            contexts.append(context(range(150 * step // 2), 9 + step, FILTERS[step % 4]))
            drafter.observe(contexts[-1:], [features_of(9 + step, 0, len(contexts[-1].tokens) - 1)])
        if step in (3, 5):  # one leaves
            drafter.reset(contexts.pop(1).request)
        contexts = contexts[1:] + contexts[:1]


def test_slots_of_finished_requests_are_used_again():
    made = exact("dflash")
    for request in range(20):
        pair = [context([1, 2, 3], request), context([4, 5], 100 + request)]
        made.observe(pair, [features_of(c.request, 0, len(c.tokens) - 1) for c in pair])
        made.propose(pair, [2, 3])
        for c in pair:
            made.reset(c.request)
    assert made._slots.cache.slots == 2
    assert not made._unread


def test_a_request_that_left_before_it_drafted_leaves_nothing():
    """The engine may give its number to another one."""
    made, c = exact("dflash"), context(range(30), sampling=Sampling(0.0))
    made.observe([c], [features_of(1, 0, 29)])
    made.reset(0)
    again = context(range(9), sampling=Sampling(0.0))
    made.observe([again], [features_of(0, 0, 8)])
    same(made.propose([again], [4])[0], alone("dflash", again, 4))


@pytest.mark.parametrize("name", MODELS)
def test_no_random_number_is_drawn_beyond_the_depth(name):
    """A policy chose the depth from what it may see; a draw more, and depth would move later tokens."""
    made, random = exact(name), torch.Generator().manual_seed(0)

    class Counting:
        def __init__(self):
            self.positions = []

        def token(self, probs, purpose, position):
            self.positions.append(position)
            return int(torch.multinomial(probs, 1, generator=random))

    contexts = [Context(i, list(range(8 + i)), Sampling(1.0), Counting()) for i in range(3)]
    made.observe(contexts, [features_of(c.request, 0, len(c.tokens) - 1) for c in contexts])
    made.propose(contexts, [1, 4, 2])
    assert [c.draws.positions for c in contexts] == [[8], [9, 10, 11, 12], [10, 11]]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("depth", [1, 3])
def test_a_shorter_proposal_is_the_beginning_of_the_whole(name, depth):
    """The block is computed as it was trained, with all its masks; only fewer tokens are taken."""
    c = context(range(12))
    whole, short = alone(name, c, 5), alone(name, c, depth)
    assert short.tokens == whole.tokens[:depth]
    torch.testing.assert_close(short.probs, whole.probs[:depth], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sampling", FILTERS[1:], ids=str)
def test_q_is_what_was_drawn_from(name, sampling):
    """Each token is the keyed draw from its own row, a distribution after the request's filters."""
    c = context(range(12), sampling=sampling)
    made = drafter(name)
    made.observe([c], [features_of(0, 0, 11)])
    (draft,) = made.propose([c], [5])
    assert draft.probs.dtype == torch.float32
    for k, token in enumerate(draft.tokens):
        assert token == c.draws.token(draft.probs[k], f"draft/{c.round}", 12 + k)
    torch.testing.assert_close(draft.probs.sum(-1), torch.ones(5), atol=1e-5, rtol=0)
    if sampling.top_k:
        assert int((draft.probs > 0).sum(-1).max()) <= sampling.top_k


@pytest.mark.parametrize("name", ["dspark_vanilla", "dspark_gated", "dspark_rnn"])
def test_each_slot_depends_on_the_token_before_it(name):
    """Eq. 4: q of slot k is the softmax of U_k plus the head's bias after the tokens actually drawn."""
    made, c = model(name).double(), context(range(12))
    draft = alone(name, c, 5)
    block = torch.tensor([[11, *[made.config.mask_token_id] * 4]])
    hidden = made(block, torch.arange(11, 16)[None], features_of(0, 0, 11)[None].double())[0]
    previous = torch.tensor([11, *draft.tokens[:-1]])
    latents = made.markov_head.latents(made.markov_head.embed(previous), hidden)
    parallel = made.lm_head(hidden)
    q = distribution(parallel + made.markov_head.bias(latents), c.sampling)
    torch.testing.assert_close(draft.probs, q.detach(), atol=1e-8, rtol=0)
    without = distribution(parallel, c.sampling)
    assert float((draft.probs - without).abs().max().detach()) > 1e-2, "the head does nothing: a vacuous case"


def test_tokens_are_drawn_from_the_very_tensor_that_is_handed_on():
    """A half-precision drafter: drawn from one rounding and judged by another is two distributions."""

    class Recorder:
        def __init__(self):
            self.given = []

        def token(self, probs, purpose, position):
            self.given.append(probs.clone())
            return int(probs.argmax())

    draws = Recorder()
    made = DSparkDrafter(model("dspark_rnn"), dtype=torch.bfloat16)
    c = Context(0, list(range(12)), Sampling(0.9), draws)
    made.observe([c], [features_of(0, 0, 11)])
    (draft,) = made.propose([c], [5])
    assert torch.equal(torch.stack(draws.given), draft.probs)
    assert draft.probs.dtype == torch.float32
    assert float((draft.probs.sum(-1) - 1).abs().max()) < 1e-5
    assert all(0.0 < c < 1.0 for c in draft.confidence)


def test_saturated_confidences_keep_their_order_in_half_precision():
    """In bf16 a sigmoid is 1.0 from a logit of 6.25 on; the logit is widened first."""
    made = DSparkDrafter(model("dspark_vanilla"), dtype=torch.bfloat16)
    made._confidence.proj.weight.zero_()
    made._confidence.proj.bias.fill_(8.0)
    c = context(range(12))
    made.observe([c], [features_of(0, 0, 11)])
    (draft,) = made.propose([c], [2])
    assert draft.confidence == pytest.approx([0.99966, 0.99966], abs=1e-5)


def test_ids_that_the_tokenizer_does_not_know_are_never_drafted():
    c = context(range(12))
    made = DSparkDrafter(model("dspark_vanilla"), usable_vocab=40)
    made.observe([c], [features_of(0, 0, 11)])
    (draft,) = made.propose([c], [5])
    assert max(draft.tokens) < 40
    assert not draft.probs[:, 40:].any()


def test_the_drafter_does_not_change_with_the_model_it_was_made_of():
    source, c = model("dspark_rnn"), context(range(12), sampling=Sampling(0.0))
    made = DSparkDrafter(source)
    with torch.no_grad():
        for parameter in source.parameters():
            if parameter.requires_grad:
                parameter.zero_()
    made.observe([c], [features_of(0, 0, 11)])
    fresh = drafter("dspark_rnn")
    fresh.observe([c], [features_of(0, 0, 11)])
    assert made.propose([c], [5])[0].tokens == fresh.propose([c], [5])[0].tokens


@pytest.mark.parametrize("name", ALL)
def test_the_seam(name):
    made = drafter(name, max_depth=4)
    assert isinstance(made, Drafter)
    assert (made.name, made.max_depth, made.vocab_size, made.max_context) == (name, 4, 503, 512)
    assert list(made.taps) == [0, 2]
    assert not made.deterministic
    assert drafter(name, proposal="greedy").deterministic
    assert drafter(name).max_depth == 5


@pytest.mark.parametrize("proposal", ["sampled", "greedy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_deterministic_proposal_comes_without_a_soft_q(proposal, temperature):
    draft = alone("dspark_vanilla", context(range(9), sampling=Sampling(temperature)), 4, proposal=proposal)
    assert (draft.probs is None) == (proposal == "greedy" or temperature == 0.0)
    assert len(draft.confidence) == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoding_near_the_end_of_the_context(temperature):
    """Masks may stand beyond the last position that a token can have."""
    target = target_of("dflash")
    (request,) = decode_ids(target, drafter("dflash"), [list(range(490))], 22, Sampling(temperature))
    assert len(request.context.tokens) == 512


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_distribution_raise(temperature):
    made, c = exact("dspark_vanilla"), context(range(9), sampling=Sampling(temperature))
    made._head[:] = float("nan")
    made.observe([c], [features_of(0, 0, 8)])
    with pytest.raises(ValueError, match="no distribution"):
        made.propose([c], [3])


def test_features_that_do_not_reach_the_anchor_are_refused():
    made, c = exact("dflash"), context(range(9))
    with pytest.raises(ValueError, match=r"features of 0 tokens of request 0, whose text has 8 .* call observe after"):
        made.propose([c], [3])
    made.observe([c], [features_of(0, 0, 9)])
    with pytest.raises(ValueError, match="features of 9 tokens"):
        made.propose([c], [3])


def test_more_than_the_block_is_refused():
    with pytest.raises(ValueError, match="proposes at most 5 tokens, and max_depth is 6: ask for 1 to 5"):
        drafter("dspark_easy", max_depth=6)
    made, c = drafter("dspark_easy", max_depth=3), context(range(9))
    made.observe([c], [features_of(0, 0, 8)])
    with pytest.raises(ValueError, match="at most 3 tokens, 4 were asked for"):
        made.propose([c], [4])
    with pytest.raises(ValueError, match="'sampled' or 'greedy', got 'beam'"):
        drafter("dspark_easy", proposal="beam")
