"""The cache: rollback as a length, a text per slot that equals what was committed, and what may not be rolled back."""

import pytest
import torch
from engine.models import reference_model
from engine.policies import SharedBudget, Threshold

from companion.engine.cache import Cache
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.request import Request, StopRule
from companion.engine.target import Qwen3Shape, ragged, single
from companion.exact.laws import NO_TAGS
from companion.exact.tables import TableDrafter, TableTarget, random_law
from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, Sampling
from companion.scheduling.fixed import FixedDepth

CPU = torch.device("cpu")


def cache_of(length):
    cache = Cache(2, 3, 1, 8, 4, CPU, torch.float32)
    cache.keys.copy_(torch.arange(cache.keys.numel()).view_as(cache.keys))
    cache.lengths[1] = length
    return cache


def test_rollback_to_zero_empties_and_to_the_length_keeps():
    """A crop(0) that keeps everything is how another library lost texts."""
    cache = cache_of(6)
    cache.rollback(1, 6)
    assert cache.lengths == [0, 6, 0]
    cache.rollback(1, 4)
    assert cache.lengths == [0, 4, 0]
    cache.rollback(1, 0)
    assert cache.lengths == [0, 0, 0]


@pytest.mark.parametrize("length", [-1, 7])
def test_rollback_is_a_length_and_nothing_else(length):
    """Neither a count of tokens to drop in disguise (negative) nor a way to grow."""
    cache = cache_of(6)
    with pytest.raises(ValueError, match="it holds 6"):
        cache.rollback(1, length)
    assert cache.lengths[1] == 6


def test_growing_keeps_what_is_there():
    cache = cache_of(5)
    assert cache.grown(3, 8) is cache
    larger = cache.grown(4, 20)
    assert (larger.slots, larger.capacity, larger.lengths) == (4, 20, [0, 5, 0, 0])
    assert torch.equal(larger.keys[:, :3, :, :8], cache.keys)
    assert larger.nbytes == 2 * 2 * 4 * 1 * 20 * 4 * 4


@pytest.mark.parametrize("policy", [FixedDepth(3), Threshold(), SharedBudget()], ids=lambda p: p.name)
@pytest.mark.parametrize("mode", ["sampled", "greedy"])
def test_after_every_step_the_cache_holds_what_was_committed(policy, mode):
    """All but the anchor, for every running request; slots of finished ones are empty and used again."""
    target = TableTarget(3, random_law(3, 5))
    engine = Engine(target, TableDrafter(3, random_law(3, 6), mode), policy, max_batch=3)
    requests = []
    for i in range(8):
        prompt = [0, 1, 2][: 1 + i % 3]
        context = Context(i, prompt, Sampling(), KeyedDraws(i, request_key(prompt, i)))
        stop = StopRule(2 + 2 * i, frozenset({2}))
        requests.append(Request(context, len(prompt), stop, PhaseTracker(NO_TAGS)))
        engine.submit(requests[-1])
    steps = 0
    while engine._waiting or engine._running:
        engine.step()
        steps += 1
        for request in engine._running:
            assert engine.cache.texts[request.slot] == request.context.tokens[:-1]
        for slot in engine._free:
            assert engine.cache.texts[slot] == []
        assert sorted([*engine._free, *(r.slot for r in engine._running)]) == [0, 1, 2]
    assert all(r.finish_reason for r in requests)
    assert steps > 3


def test_an_abandoned_run_gives_its_slots_back():
    target = TableTarget(2, random_law(2, 5))
    engine = Engine(target, max_batch=2)
    for i in range(2):
        engine.submit(Request(Context(i, [0], Sampling(), KeyedDraws(i, b"")), 1, StopRule(9), PhaseTracker(NO_TAGS)))
    run = engine.run()
    next(run)
    run.close()
    assert engine._running == []
    assert engine.cache.texts == [[], []]


def test_positions_are_each_requests_own():
    """No padding, so no shared positions: every row counts from its own request's start."""
    batch = ragged([(4, 10, [1, 2, 3]), (0, 0, [7]), (2, 63, [5, 6])], CPU)
    assert batch.positions.tolist() == [10, 11, 12, 0, 63, 64]
    assert (batch.slots, batch.starts, batch.lengths) == ([4, 0, 2], [0, 3, 4, 6], [10, 0, 63])
    assert single([1, 2], slot=3, cached=5, device=CPU).positions.tolist() == [5, 6]
    with pytest.raises(ValueError, match="at least one token"):
        single([], slot=0, cached=0, device=CPU)


def test_the_target_sees_the_committed_features_once():
    """`observe` gets the tapped rows of exactly the tokens that entered the cache for good, in order."""

    class Listener(TableDrafter):
        taps = (0,)

        def __init__(self):
            super().__init__(3, random_law(3, 6))
            self.heard, self.over = {}, []

        def observe(self, contexts, features):
            for context, rows in zip(contexts, features, strict=True):
                self.heard.setdefault(context.request, []).extend(map(tuple, rows[:, 0].tolist()))
                known = [token for token, _ in self.heard[context.request]]
                assert known == context.tokens[:-1], "all committed tokens but the anchor"

        def reset(self, request):
            self.over.append(request)

    drafter = Listener()
    engine = Engine(TableTarget(3, random_law(3, 5)), drafter, FixedDepth(3), max_batch=2)
    for i in range(4):
        context = Context(i, [0, 1], Sampling(), KeyedDraws(i, b""))
        engine.submit(Request(context, 2, StopRule(9), PhaseTracker(NO_TAGS)))
    list(engine.run())
    assert sorted(drafter.over) == [0, 1, 2, 3]
    for rows in drafter.heard.values():
        assert [position for _, position in rows] == list(range(len(rows)))


CONFIG = reference_model().config.to_dict()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "qwen3_next"}, "recurrent state cannot be rolled back"),
        ({"model_type": "mistral"}, "computes 'qwen3' only"),
        ({"model_type": None}, "computes 'qwen3' only"),
        ({"use_sliding_window": True, "sliding_window": 64}, "sliding-window attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window attention"),
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "activation is 'gelu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, "rope_type 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
        ({"vocab_size": None}, "no number 'vocab_size'"),
    ],
)
def test_models_that_the_forward_does_not_compute_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        Qwen3Shape.from_config(CONFIG | change)


def test_older_and_newer_names_of_the_rotary_base():
    plain = {k: v for k, v in CONFIG.items() if k not in ("rope_parameters", "rope_theta")}
    assert Qwen3Shape.from_config(plain | {"rope_theta": 5e5}).rope_theta == 5e5
    assert Qwen3Shape.from_config(plain | {"rope_parameters": {"rope_theta": 3e4}}).rope_theta == 3e4
    assert Qwen3Shape.from_config(plain).rope_theta == 1e4  # the default of transformers
