"""Blocks verified side by side equal blocks verified alone."""

import pytest
import torch
from engine.models import ours, reference_model

from companion.engine.blocks import block_logits
from companion.engine.sampling import greedy
from companion.engine.target import single

TIGHT = {"atol": 1e-4, "rtol": 1e-4}
ANCHORS, SIZE = [0, 1, 7, 8, 20, 29], 5


@pytest.fixture(scope="module")
def model():
    return reference_model(5, sharpness=3.0)


def tokens(length, seed):
    return torch.randint(64, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def case(model):
    """A text in slot 1 of a cache whose other slot holds something else, and a block at each anchor."""
    target, text = ours(model), tokens(30, 1).tolist()
    cache = target.new_cache(2, 40)
    target.forward(single(tokens(35, 2).tolist(), slot=0, cached=0, device=target.device), cache)
    target.forward(single(text[:-1], slot=1, cached=0, device=target.device), cache)
    blocks = tokens(len(ANCHORS) * SIZE, 3).view(-1, SIZE)
    blocks[:, 0] = torch.tensor([text[a] for a in ANCHORS])
    return target, text, cache, blocks


def test_every_block_gets_the_rows_of_the_engines_own_forward(case):
    target, text, cache, blocks = case
    found = block_logits(target, cache, 1, ANCHORS, blocks)
    for anchor, block, logits in zip(ANCHORS, blocks.tolist(), found, strict=True):
        alone = target.new_cache(1, 40)
        if anchor:
            target.forward(single(text[:anchor], slot=0, cached=0, device=target.device), alone)
        expected = target.forward(single(block, slot=0, cached=anchor, device=target.device), alone).logits
        torch.testing.assert_close(logits, expected, **TIGHT)
        assert torch.equal(greedy(logits), greedy(expected))


@torch.no_grad()
def test_every_block_gets_the_rows_of_transformers(model, case):
    target, text, cache, blocks = case
    found = block_logits(target, cache, 1, ANCHORS, blocks)
    for anchor, block, logits in zip(ANCHORS, blocks.tolist(), found, strict=True):
        expected = model(torch.tensor([text[:anchor] + block])).logits[0, anchor:]
        assert expected.std() > 0.3, "logits this flat would hide an error"
        torch.testing.assert_close(logits, expected, **TIGHT)


def test_nothing_leaks_between_blocks_and_the_cache_stays_as_it_is(case):
    target, _, cache, blocks = case
    before, lengths = cache.keys.clone(), list(cache.lengths)
    found = block_logits(target, cache, 1, ANCHORS, blocks)
    changed = blocks.clone()
    changed[2] = (changed[2] + 1) % 64
    changed[4, -1] = (changed[4, -1] + 1) % 64
    again = block_logits(target, cache, 1, ANCHORS, changed)
    same = (found - again).abs().amax(-1) < 1e-6
    assert same[[0, 1, 3, 5]].all()
    assert not same[2].any()
    assert same[4, :-1].all()
    assert not same[4, -1]
    assert torch.equal(cache.keys, before)
    assert cache.lengths == lengths


def test_blocks_that_cannot_be_verified_are_refused(case):
    target, _, cache, blocks = case
    with pytest.raises(ValueError, match="no anchors"):
        block_logits(target, cache, 1, [], blocks[:0])
    with pytest.raises(ValueError, match="holds 29 tokens"):
        block_logits(target, cache, 1, [30], blocks[:1])
    target.max_context, limit = 33, target.max_context
    with pytest.raises(ValueError, match="runs past the context"):
        block_logits(target, cache, 1, [29], blocks[:1])
    target.max_context = limit
