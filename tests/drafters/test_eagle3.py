"""Eagle3 drafting: exact q, batches, rollback, and the target's own output whatever it proposes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from drafters.eagle3_fitted import VOCAB, fitted_eagle3, greedy_texts, prompts, random_eagle3, target
from engine.models import decode_ids

from companion.drafters.eagle3.config import Eagle3Config
from companion.drafters.eagle3.drafter import Eagle3Drafter
from companion.drafters.eagle3.model import Eagle3
from companion.engine.draws import KeyedDraws
from companion.engine.sampling import distribution
from companion.engine.target import Qwen3Shape, single
from companion.exact.laws import distance, engine_law, plain_law
from companion.exact.tables import TableTarget, random_law
from companion.protocols import Context, Drafter, Sampling
from companion.scheduling.fixed import FixedDepth
from companion.training.eagle3_loss import unrolled

DOUBLE = torch.float64


def context(tokens, request=0, temperature=1.0, **filters):
    return Context(request, list(tokens), Sampling(temperature, **filters), KeyedDraws(0, bytes([request])))


def features(tokens, dtype=DOUBLE):
    """The target's outputs of layers 0 and 1 for all but the last token, [T - 1, 2, d]."""
    of = target(dtype)
    batch = single(list(tokens[:-1]), slot=0, cached=0, device=of.device)
    return of.forward(batch, of.new_cache(1, len(tokens)), taps=(0, 1)).features


def informed(tokens, *, request=0, temperature=1.0, model=None, **options):
    """A drafter without a past that has seen the whole text, and the request."""
    drafter = Eagle3Drafter(model or fitted_eagle3(), dtype=DOUBLE, **options)
    asked = context(tokens, request, temperature)
    drafter.observe([asked], [features(tokens)])
    return drafter, asked


@pytest.mark.parametrize("depth", range(1, 16))
def test_greedy_output_is_the_targets_own_at_every_depth(depth):
    requests = decode_ids(target(), Eagle3Drafter(fitted_eagle3(), max_depth=depth), prompts(), 24)
    assert [request.context.tokens for request in requests] == greedy_texts(24)
    rounds = [row for request in requests for row in request.rounds]
    assert max(row.drafted for row in rounds) == depth
    assert sum(row.accepted for row in rounds) > len(rounds) / 2, "hardly anything was accepted"
    if depth <= 4:
        assert {row.accepted for row in rounds} == set(range(depth + 1))


def test_a_stop_token_inside_an_accepted_block_ends_the_text():
    unstopped = decode_ids(target(), Eagle3Drafter(fitted_eagle3()), prompts(), 40)
    ended_inside = 0
    for request in unstopped:
        fresh = [row for row in request.rounds if row.accepted >= 2]
        for row in fresh[:2]:
            stop = row.tokens[row.accepted - 2]  # accepted, and another accepted token follows
            (stopped,) = decode_ids(
                target(),
                Eagle3Drafter(fitted_eagle3()),
                [request.context.tokens[: request.prompt_length]],
                40,
                stops=frozenset({stop}),
            )
            assert stopped.emitted == request.emitted[: request.emitted.index(stop) + 1]
            ended_inside += bool(stopped.rounds) and not stopped.rounds[-1].bonus
    assert ended_inside > 2


@pytest.mark.parametrize("mode", ["sampled", "greedy"])
@pytest.mark.parametrize(("vocab_size", "depth", "new_tokens"), [(2, 3, 4), (3, 2, 3), (4, 1, 3)])
def test_output_has_the_law_of_plain_sampling(vocab_size, depth, new_tokens, mode):
    """Every branch of every random choice, in fp64; token and position are the features."""
    torch.manual_seed(1)
    shape = Qwen3Shape(vocab_size, 2, 1, 1, 1, 2, 1e-6, 1e4, 64)
    model = Eagle3(Eagle3Config(shape, 4, (0,), 8, ttt_length=depth)).double()
    law, prompt = random_law(vocab_size, 3), (0, 1, 0)
    drafter = Eagle3Drafter(model, dtype=DOUBLE, proposal=mode)
    found = engine_law(TableTarget(vocab_size, law), drafter, FixedDepth(depth), [prompt], Sampling(), new_tokens)
    assert distance(found, plain_law(law, prompt, Sampling(), new_tokens)) < 1e-12


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.8, "min_p": 0.05}])
def test_q_is_what_training_time_test_computes_and_what_was_drawn_from(filters):
    """Step k of a draft is step k of the training's unrolled drafter, at the newest pair."""
    text = greedy_texts(24)[1]
    drafter = Eagle3Drafter(fitted_eagle3(), dtype=DOUBLE, max_depth=7)
    asked = context(text, temperature=0.7, **filters)
    drafter.observe([asked], [features(text)])
    (draft,) = drafter.propose([asked], [7])
    model, newest = random_eagle3().double(), len(text) - 2
    model.load_state_dict(fitted_eagle3().state_dict())
    whole = torch.tensor([[*text, *draft.tokens]])
    padded = torch.cat([features(text), torch.zeros(8, 2, 48, dtype=DOUBLE)])[None, : whole.shape[1]]
    with torch.no_grad():
        for k, hidden in enumerate(unrolled(model, whole, padded, 7)):
            expected = distribution(model.logits(hidden[:, newest]), asked.sampling)[0]
            torch.testing.assert_close(draft.probs[k], expected, atol=1e-6, rtol=1e-5)  # the rotary table is fp32
            assert draft.tokens[k] == asked.draws.token(draft.probs[k], "draft/0", len(text) + k)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_batch_mates_and_their_order_change_no_token(temperature):
    def texts(ids, max_batch):
        drafter = Eagle3Drafter(fitted_eagle3(), dtype=DOUBLE, max_depth=5)
        done = decode_ids(target(DOUBLE), drafter, ids, 20, Sampling(temperature), max_batch=max_batch)
        assert max_batch == 1 or sum(row.accepted for request in done for row in request.rounds) > 0
        return {tuple(p): request.emitted for p, request in zip(ids, done, strict=True)}

    ids = prompts()
    alone = {k: v for prompt in ids for k, v in texts([prompt], 1).items()}
    assert texts(ids, 8) == alone
    assert texts(ids[::-1], 3) == alone


def test_each_request_of_a_batch_has_its_own_sampling():
    text = greedy_texts(24)[1]
    mixed = [context(text, 0, 0.0), context(text, 1, 0.5, top_k=3), context(text, 2, 2.0)]
    drafter = Eagle3Drafter(fitted_eagle3(), dtype=DOUBLE)
    drafter.observe(mixed, [features(text)] * 3)
    for asked, draft in zip(mixed, drafter.propose(mixed, [4, 3, 4]), strict=True):
        alone = Eagle3Drafter(fitted_eagle3(), dtype=DOUBLE)
        alone.observe([asked], [features(text)])
        (expected,) = alone.propose([asked], [len(draft)])
        assert draft.tokens == expected.tokens
        if asked.request:
            torch.testing.assert_close(draft.probs, expected.probs, atol=1e-9, rtol=0)
        else:
            assert draft.probs is None


def test_drafted_pairs_leave_nothing_behind():
    """Accepted, rejected, replaced, ragged, skipped: always the proposal and cache of a drafter without a past."""
    drafter = Eagle3Drafter(fitted_eagle3(), dtype=DOUBLE, max_depth=6)
    generator = torch.Generator().manual_seed(1)
    contexts = [context([i + 1] * (i + 2), i) for i in range(5)]
    drafter.observe(contexts, [features(c.tokens) for c in contexts])
    for step in range(12):
        if step == 6:
            drafter.reset(contexts[3].request)
            contexts[3] = context([9, 9], 5)
            drafter.observe([contexts[3]], [features(contexts[3].tokens)])
        depths = torch.randint(0, 7, (5,), generator=generator).tolist()
        drafts = drafter.propose(contexts, depths)
        for c, depth, draft in zip(contexts, depths, drafts, strict=True):
            before = len(c.tokens) - 1
            fresh, asked = informed(c.tokens, request=c.request, max_depth=6)
            (expected,) = fresh.propose([replace(asked, round=c.round)], [depth])
            assert draft.tokens == expected.tokens
            assert len(draft) == depth
            if depth:
                torch.testing.assert_close(draft.probs, expected.probs, atol=1e-9, rtol=0)
                slot = drafter._slots.slot(c.request)
                assert drafter._slots.cache.lengths[slot] == before
                for here, there in zip(cached(drafter, slot, before), cached(fresh, 0, before), strict=True):
                    torch.testing.assert_close(here, there, atol=1e-9, rtol=0)
            kept = int(torch.randint(0, depth + 1, (1,), generator=generator))
            c.tokens += [*draft.tokens[:kept], int(torch.randint(VOCAB, (1,), generator=generator))]
            c.round += 1
            drafter.observe([c], [features(c.tokens)[before:]])
        contexts = contexts[1:] + contexts[:1]


def cached(drafter, slot, length):
    cache = drafter._slots.cache
    return cache.keys[0, slot, :, :length], cache.values[0, slot, :, :length]


def test_a_cache_that_grows_keeps_its_content():
    texts = [[i % VOCAB] * 250 for i in range(3)]
    drafter = Eagle3Drafter(fitted_long(), dtype=DOUBLE)
    asked = [context(text, i) for i, text in enumerate(texts)]
    for c in asked:
        drafter.observe([c], [torch.randn(249, 2, 48, dtype=DOUBLE)])
        drafter.propose([c], [4])
    short, slots = cached(drafter, 0, 249)[0].clone(), drafter._slots.cache.slots
    assert slots >= 3
    asked[0].tokens += [1] * 20
    drafter.observe(asked[:1], [torch.randn(20, 2, 48, dtype=DOUBLE)])
    drafter.propose(asked, [4, 0, 4])
    assert drafter._slots.cache.capacity > 256
    assert torch.equal(cached(drafter, 0, 249)[0], short)
    for c in asked:
        drafter.reset(c.request)
    for request in range(9, 30):
        c = context([1, 2], request)
        drafter.observe([c], [features(c.tokens)])
        drafter.propose([c], [1])
        drafter.reset(request)
    assert drafter._slots.cache.slots == slots, "slots of finished requests are used again"
    assert not drafter._newest
    assert not drafter._unread


def fitted_long():
    """A drafter that reads longer texts."""
    config = fitted_eagle3().config
    return Eagle3(replace(config, shape=replace(config.shape, max_context=512)))


def test_each_round_of_a_position_has_fresh_numbers():
    drafter, asked = informed(greedy_texts(24)[1], temperature=3.0, max_depth=8)
    (first,) = drafter.propose([asked], [8])
    assert drafter.propose([asked], [8])[0].tokens == first.tokens
    asked.round += 1
    assert drafter.propose([asked], [8])[0].tokens != first.tokens


@pytest.mark.parametrize("proposal", ["sampled", "greedy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_deterministic_proposal_comes_without_a_soft_q(proposal, temperature):
    drafter, asked = informed(greedy_texts(24)[0], temperature=temperature, proposal=proposal)
    assert isinstance(drafter, Drafter)
    assert drafter.deterministic == (proposal == "greedy")
    (draft,) = drafter.propose([asked], [4])
    assert (draft.probs is None) == (proposal == "greedy" or temperature == 0.0)
    if draft.probs is None:
        best, greedy_request = informed(asked.tokens, temperature=0.0)
        assert draft.tokens == best.propose([greedy_request], [4])[0].tokens


def test_in_half_precision_q_is_still_full_and_what_was_drawn_from():
    text = greedy_texts(24)[1]
    drafter, asked = Eagle3Drafter(fitted_eagle3(), dtype=torch.bfloat16), context(text)
    drafter.observe([asked], [features(text).bfloat16()])
    (draft,) = drafter.propose([asked], [4])
    assert draft.probs.dtype == torch.float32
    assert float((draft.probs.sum(-1) - 1).abs().max()) < 1e-6
    for k, token in enumerate(draft.tokens):
        assert token == asked.draws.token(draft.probs[k], "draft/0", len(text) + k)


def test_ids_that_the_tokenizer_does_not_know_are_never_drafted():
    text = greedy_texts(24)[0]
    whole, asked = informed(text, temperature=0.0, max_depth=8)
    (draft,) = whole.propose([asked], [8])
    usable = max(draft.tokens)
    for temperature in (0.0, 5.0):
        drafter, asked = informed(text, temperature=temperature, max_depth=8, usable_vocab=usable)
        (draft,) = drafter.propose([asked], [8])
        assert max(draft.tokens) < usable
        assert draft.probs is None or float(draft.probs[:, usable:].sum()) == 0.0


def test_weights_that_give_no_distribution_raise():
    model = random_eagle3()
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    for temperature in (0.0, 1.0):
        drafter, asked = informed([1, 2, 3], temperature=temperature, model=model)
        with pytest.raises(ValueError, match="no distribution"):
            drafter.propose([asked], [2])


def test_a_drafter_that_was_not_shown_the_text_says_so():
    drafter = Eagle3Drafter(fitted_eagle3(), dtype=DOUBLE)
    asked = context([1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"features of 0 tokens of request 0, whose text has 3 .* call observe"):
        drafter.propose([asked], [2])
    drafter.observe([asked], [features(asked.tokens)])
    drafter.propose([asked], [2])
    asked.tokens.append(5)
    with pytest.raises(ValueError, match="features of 3 tokens of request 0, whose text has 4"):
        drafter.propose([asked], [2])


def test_proposals_have_two_names():
    with pytest.raises(ValueError, match="'sampled' or 'greedy', got 'beam'"):
        Eagle3Drafter(fitted_eagle3(), proposal="beam")
