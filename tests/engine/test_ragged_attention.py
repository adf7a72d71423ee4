"""Ragged batches: blocks of different lengths share one call, and each request still sees its own text alone."""

import random

import pytest
import torch
import torch.nn.functional as F
from engine.models import ours, reference_model

from companion.engine import attention
from companion.engine.target import ragged, single

WIDE = {"atol": 1e-12, "rtol": 1e-10}  # fp64


@pytest.fixture(scope="module")
def target():
    return ours(reference_model(3, dtype=torch.float64), dtype=torch.float64)


def text(request, length):
    return [(7 * request + 3 * i * i + i) % 60 for i in range(length)]


def alone(target, tokens, new):
    """Logits of the last ``new`` tokens, the others read before, in a cache of its own."""
    cache = target.new_cache(1, len(tokens))
    if len(tokens) > new:
        target.forward(single(tokens[:-new], slot=0, cached=0, device=target.device), cache)
    return target.forward(single(tokens[-new:], slot=0, cached=len(tokens) - new, device=target.device), cache).logits


BATCHES = {  # (tokens in the cache, new ones) of each request
    "short blocks of all lengths": [(5, 1), (9, 8), (3, 4), (20, 2)],
    "one length": [(5, 3), (9, 3), (4, 3)],
    "plain steps": [(5, 1), (9, 1), (30, 1)],
    "with a prefill": [(6, 2), (0, 25), (11, 5)],
    "with a short prefill": [(6, 2), (0, 4), (11, 7)],
    "with two prefills of one length": [(0, 20), (8, 3), (0, 20)],
    "idle rows beyond the end of the cache": [(39, 1), (4, 8), (38, 2)],
}


@pytest.mark.parametrize("order", ["sorted", "shuffled", "scattered", "far apart"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_each_request_is_what_it_is_alone(target, batch, order):
    slots = list(range(len(batch)))
    if order != "sorted":
        random.Random(1).shuffle(slots)
    if order in ("scattered", "far apart"):  # free slots in between
        slots = [(2 if order == "scattered" else 4) * slot for slot in slots]
    cache = target.new_cache(4 * len(batch), 40)
    torch.nn.init.normal_(cache.both, std=50)  # what rolled-back text may have left
    for request, (slot, (cached, _)) in enumerate(zip(slots, batch, strict=True)):
        if cached:
            target.forward(single(text(request, cached), slot=slot, cached=0, device=target.device), cache)
    rows = [(slot, n, text(r, n + new)[n:]) for r, (slot, (n, new)) in enumerate(zip(slots, batch, strict=True))]
    logits = target.forward(ragged(rows, target.device), cache).logits
    expected = [alone(target, text(r, n + new), new) for r, (n, new) in enumerate(batch)]
    torch.testing.assert_close(logits, torch.cat(expected), **WIDE)


@pytest.fixture
def calls(monkeypatch):
    """Members, rows and the place of the keys of every call of attention."""
    seen, whole = [], F.scaled_dot_product_attention

    def counted(q, k, v, **options):
        seen.append((q.shape[0], q.shape[2], k.data_ptr()))
        return whole(q, k, v, **options)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", counted)
    return seen


def test_short_blocks_share_one_call_and_a_full_cache_is_not_copied(target, calls):
    cache = target.new_cache(3, 40)
    layers = len(cache.keys)
    target.forward(ragged([(2, 0, [1] * 3), (0, 0, [1] * 8), (1, 0, [1])], target.device), cache)
    assert [call[:2] for call in calls] == [(3, 8)] * layers
    assert {call[2] for call in calls} == {keys.data_ptr() for keys in cache.keys}, "keys were copied"
    calls.clear()
    target.forward(ragged([(2, 3, [1]), (0, 8, [1] * 20), (1, 1, [1, 2])], target.device), cache)
    assert sorted(call[:2] for call in calls) == [(1, 20)] * layers + [(2, 2)] * layers, "a long one was padded to"


def test_a_prompt_that_joins_in_the_middle_does_not_make_the_others_copied(target, calls):
    cache = target.new_cache(8, 40)
    target.forward(ragged([(slot, 0, [1] * 8) for slot in (0, 2, 3)], target.device), cache)
    calls.clear()
    target.forward(ragged([(0, 8, [1]), (1, 0, [1] * 20), (2, 8, [1]), (3, 8, [1])], target.device), cache)
    decoding = [(members, keys) for members, new, keys in calls if new == 1]
    assert decoding == [(4, keys.data_ptr()) for keys in cache.keys], "a row of slots with one hole was copied"
    calls.clear()
    target.forward(ragged([(0, 9, [1]), (7, 0, [1])], target.device), cache)
    assert {members for members, *_ in calls} == {2}, "eight rows were read for two requests"
