"""Steps as replays of fixed buffers, by a graph's twin on the CPU: the same tokens and rounds, no stale number."""

import gc
import weakref

import pytest
import torch
from engine.models import decode_ids, ours, reference_model
from engine.tiny import prompts, tiny

from companion.drafters.load import load_drafter
from companion.engine import captured
from companion.engine.captured import Bucket
from companion.engine.draws import KeyedDraws
from companion.engine.generate import generate
from companion.engine.load import load_target
from companion.engine.replay import ROWS, Replay, Staged, bucket
from companion.engine.target import ragged
from companion.protocols import Context, Sampling
from companion.scheduling.fixed import FixedDepth


@pytest.fixture(scope="module")
def replayed():
    return load_target("tiny-qwen3", graphs=True)


@pytest.fixture
def recorded(monkeypatch):
    """Buckets of the target that were recorded, and how often each was run."""
    counts: dict[Bucket, int] = {}
    own = captured._recorded

    def counted(run, found, cache):
        made = own(run, found, cache)
        function = made._function

        def count(staged):
            counts[found] = counts.get(found, 0) + 1
            return function(staged)

        made._function = count
        return made

    monkeypatch.setattr(captured, "_recorded", counted)
    return counts


def same(one, other):
    assert [r.tokens for r in one] == [r.tokens for r in other]
    rounds = [[(row.accepted, row.verified, row.rejected) for row in r.rounds] for r in (*one, *other)]
    assert rounds[: len(one)] == rounds[len(one) :]


@pytest.mark.parametrize(
    ("drafter", "batch"),
    [(None, 1), (None, 3), ("dspark", 1), ("dspark", 3), ("dflash", 3), ("draft", 3), ("lookup", 3)],
)
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "sampled"])
def test_the_same_tokens_and_rounds_with_and_without(replayed, recorded, drafter, options, batch):
    """Six requests of different lengths, of which ``batch`` run at once: they join, leave, and change the bucket."""
    ids = [list(p) for p in prompts(1)]
    settings = {"max_new_tokens": 14, "max_batch": batch, **options}
    direct = generate(tiny(), load_drafter(drafter, tiny()), ids, **settings)
    assert not recorded
    same(generate(replayed, load_drafter(drafter, replayed), ids, **settings), direct)
    assert recorded, "nothing was replayed"
    assert max(recorded.values()) > 2, "recorded, run, and nothing was run again"
    if drafter is None and batch == 1:
        assert {b.rows for b in recorded} == {1}


def test_depths_that_change_take_the_bucket_of_their_token_count(replayed, recorded):
    class Wave(FixedDepth):
        """0, 1, .. 7, 0, .. tokens: a round without a draft leaves the drafter features to read later."""

        def __init__(self):
            super().__init__(7)
            self.round = -1

        def draft_depths(self, requests):
            self.round += 1
            return [self.round % 8] * len(requests)

    ids = [list(p) for p in prompts(1)][:3]
    options = {"temperature": 0.0, "max_new_tokens": 30, "max_batch": 3}
    direct = generate(tiny(), load_drafter("dspark", tiny()), ids, policy=Wave(), **options)
    same(generate(replayed, load_drafter("dspark", replayed), ids, policy=Wave(), **options), direct)
    rows = {b.rows for b in recorded}
    assert {3, 6, 9, 12, 15, 24} <= rows, "1 to 8 rows of 3 requests; 18 and 21 are padded to 24"
    assert all(b.requests == 4 for b in recorded if b.rows == 24)


def target(**options):
    made = ours(reference_model(1, vocab_size=64), **options)
    made.graphs = True
    return made


def test_padding_and_idle_requests_change_no_number():
    """Every row of a ragged step, against the ordinary forward, while all that nobody may read is NaN."""
    replaying, ordinary = target(), ours(reference_model(1, vocab_size=64))
    caches = replaying.new_cache(5, 40), ordinary.new_cache(5, 40)
    caches[0].both.fill_(float("nan"))
    cached = [0] * 5
    steps = [
        [(0, 9), (3, 16), (1, 5)],  # 30 rows in 32
        [(3, 8), (0, 8), (1, 1)],  # 17 rows in 24
        [(1, 3), (4, 16)],  # 19 in 24
        [(4, 1)],
        [(0, 2), (1, 2), (3, 2), (4, 2), (2, 1)],  # 9 of 5 requests in 8
    ]
    generator = torch.Generator().manual_seed(0)
    for step in steps:
        rows = [(s, cached[s], torch.randint(0, 64, (n,), generator=generator).tolist()) for s, n in step]
        batch = ragged(rows, replaying.device)
        ours_, theirs = (t.forward(batch, c, (-1, 1)) for t, c in zip((replaying, ordinary), caches, strict=True))
        torch.testing.assert_close(ours_.logits, theirs.logits, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(ours_.features, theirs.features, atol=2e-5, rtol=2e-5)
        for slot, n in step:
            cached[slot] += n
    assert caches[0].lengths == caches[1].lengths == cached


def test_a_full_cache_goes_the_ordinary_way_where_padding_has_no_place():
    made = target()
    cache = made.new_cache(2, 20)
    made.forward(ragged([(0, 0, [1] * 12), (1, 0, [2] * 12)], made.device), cache)
    assert [b.rows for b in cache.recorded] == [24]
    batch = ragged([(0, 12, [3] * 8), (1, 12, [4] * 8)], made.device)
    made.forward(batch, cache)  # 16 rows need no padding
    assert [b.rows for b in cache.recorded] == [24, 16]
    cache.rollback(0, 11)
    cache.rollback(1, 11)
    old = cache.both[:, :, :, :11].clone()
    made.forward(ragged([(0, 11, [3] * 9), (1, 11, [4] * 9)], made.device), cache)
    assert torch.equal(cache.both[:, :, :, :11], old), "18 rows would be padded to 24, and both slots are full"


def test_idle_blocks_leave_what_the_drafter_knows_alone():
    """Three requests in the replay of four, twice: the parallel part is that of the ordinary way both times."""
    target, contexts = (
        tiny(),
        [Context(i, [1, 2, 3, 4 + i] * (i + 1), Sampling(0.0), KeyedDraws(0, b"")) for i in range(3)],
    )
    features = [
        torch.randn(len(c.tokens) - 1, 5, target.shape.hidden, generator=torch.Generator().manual_seed(1))
        for c in contexts
    ]
    found = []
    for graphs in (False, True):
        drafter = load_drafter("dspark", target)
        drafter.graphs = graphs
        drafter.observe(contexts, features)
        found.append([tuple(t.clone() for t in drafter.parallel(contexts, 5)) for _ in range(2)])
    for direct, replayed in zip(*found, strict=True):
        for one, other in zip(direct, replayed, strict=True):
            assert one.shape == other.shape == (3, 5, one.shape[-1])
            torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def test_features_that_are_kept_survive_the_next_forward_and_logits_do_not():
    made = target()
    cache = made.new_cache(1, 40)
    made.forward(ragged([(0, 0, [1, 2, 3])], made.device), cache)
    first = made.forward(ragged([(0, 3, [4])], made.device), cache, (0,))
    logits, features = first.logits.clone(), first.features.clone()
    second = made.forward(ragged([(0, 4, [5])], made.device), cache, (0,))
    assert torch.equal(first.features, features)
    assert not torch.equal(second.features, features)
    assert torch.equal(first.logits, second.logits), "a view of one buffer"
    assert not torch.equal(first.logits, logits)


def test_padding_ids_of_the_vocabulary_are_masked_in_every_bucket():
    made = target(usable_vocab=60)
    cache = made.new_cache(1, 40)
    for n in (1, 2, 5):
        out = made.forward(ragged([(0, cache.lengths[0], [1] * n)], made.device), cache)
        assert out.logits.shape == (n, 64)
        assert bool((out.logits[:, 60:] == float("-inf")).all())


def test_wanted_rows_are_picked_behind_the_replay():
    made, ordinary = target(), ours(reference_model(1, vocab_size=64))
    batch = ragged([(0, 0, [1, 2, 3])], made.device)
    batch.logit_rows = torch.tensor([2, 0])
    ours_, theirs = (t.forward(batch, t.new_cache(1, 9)).logits for t in (made, ordinary))
    torch.testing.assert_close(ours_, theirs, atol=2e-5, rtol=2e-5)


def test_replays_end_with_the_cache_that_they_address():
    made = target()
    cache = made.new_cache(1, 40)
    made.forward(ragged([(0, 0, [1, 2, 3])], made.device), cache)
    gone = weakref.ref(next(iter(cache.recorded.values())))
    gc.disable()
    try:
        del cache
        assert gone() is None, "no cycle keeps the memory of a cache that nobody has any more"
    finally:
        gc.enable()


def test_the_twin_runs_over_the_same_buffers_and_outputs():
    numbers = Staged({"a": 2, "b": 3}, torch.device("cpu"))
    numbers.fill(b=[1, 2, 3], a=[4, 5])
    run = Replay(lambda: (numbers["a"] * 2, numbers["b"].sum()), torch.device("cpu"))
    a, b = run()
    assert (a.tolist(), int(b)) == ([8, 10], 6)
    numbers.fill(a=[0, 1], b=[1, 1, 1])
    assert run()[0] is a
    assert (a.tolist(), int(b)) == ([0, 2], 3)
    with pytest.raises(AssertionError, match="a has 1 entries, its buffer 2"):
        numbers.fill(a=[1], b=[1, 1, 1])


def test_buckets():
    assert [bucket(n) for n in (1, 7, 16, 17, 24, 33, 512, 513)] == [1, 7, 16, 24, 24, 48, 512, None]
    assert all(bucket(n) == n for n in range(1, 17)), "verification of 1 to 16 tokens is not padded"
    assert list(ROWS) == sorted(set(ROWS))


@pytest.mark.gpu
@pytest.mark.parametrize("drafter", [None, "dspark"])
def test_a_gpu_replays_what_it_computes_one_by_one(drafter):
    ids = [list(p) for p in prompts(1)]
    direct = load_target("tiny-qwen3", device="cuda", dtype=torch.float32)
    graphs = load_target("tiny-qwen3", device="cuda", dtype=torch.float32, graphs=True)
    options = {"temperature": 0.0, "max_new_tokens": 40, "max_batch": 4}
    same(
        generate(graphs, load_drafter(drafter, graphs), ids, **options),
        generate(direct, load_drafter(drafter, direct), ids, **options),
    )


def test_the_engine_on_random_models_is_the_same_too():
    made, ordinary = target(), ours(reference_model(1, vocab_size=64))
    texts = [[1, 2, 3], [4] * 9, [5, 6]]
    assert [r.emitted for r in decode_ids(made, None, texts, 25)] == [
        r.emitted for r in decode_ids(ordinary, None, texts, 25)
    ]
