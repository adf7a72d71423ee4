"""What users of other engines ran into while decoding: filters, random numbers, neighbours in a batch.

Each test names the public report whose kind of failure it guards against.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from engine.models import decode_ids, ours, reference_model

from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, inverse_cdf, request_key
from companion.engine.request import Request, StopRule
from companion.engine.sampling import distribution
from companion.exact.laws import NO_TAGS
from companion.exact.tables import TableDrafter, TableTarget
from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, Sampling

LOGITS = torch.tensor([[0.3, 0.1, 0.1, 0.5]]).log()
MODEL, DRAFT = reference_model(1, sharpness=2.0), reference_model(1, sharpness=1.0)


def kept(logits, **filters):
    return distribution(logits, Sampling(**{"temperature": 1.0, **filters}))[0].nonzero().flatten().tolist()


def request(number, prompt, sampling, *, seed=0, new_tokens=12):
    context = Context(number, list(prompt), sampling, KeyedDraws(seed, request_key(prompt, 0)))
    return Request(context, len(prompt), StopRule(new_tokens), PhaseTracker(NO_TAGS, prompt))


def run(engine, requests):
    for each in requests:
        engine.submit(each)
    for _ in engine.run():
        pass
    return [each.emitted for each in requests]


# ---- sampling


def test_top_p_that_is_reached_exactly_adds_no_token():
    """huggingface/transformers#18976: 0.5 + 0.3 is 0.8 already."""
    assert kept(LOGITS, top_p=0.8) == [0, 3]
    assert kept(LOGITS, top_p=0.81) == [0, 1, 3]


@pytest.mark.parametrize("top_p", [1e-8, 1e-30, 5e-324])
def test_a_tiny_top_p_keeps_the_likeliest_token(top_p):
    """ml-explore/mlx-lm#1912: every token was masked, and noise was drawn."""
    assert kept(torch.linspace(0, 1, 4096)[None], top_p=top_p) == [4095]


def test_top_p_after_a_small_top_k_keeps_a_token():
    """ml-explore/mlx-lm#388: top-p saw masses that did not sum to 1 after top-k, and masked the one token left."""
    for temperature in (0.01, 1.0, 5.0):
        assert kept(torch.linspace(0, 1, 50)[None], temperature=temperature, top_k=1, top_p=0.8) == [49]


def test_a_filter_looks_at_the_tempered_distribution():
    """sgl-project/sglang-jax#1563: temperature came after the filters, and min_p was compared with logits."""
    hot, cold = ({"temperature": t, "top_p": 0.6} for t in (4.0, 0.25))
    assert (kept(LOGITS, **hot), kept(LOGITS, **cold)) == ([0, 1, 3], [3])
    assert kept(LOGITS, min_p=0.5) == [0, 3]
    assert kept(LOGITS, temperature=4.0, min_p=0.5) == [0, 1, 2, 3]


@pytest.mark.parametrize("top_k", [4, 5, 10**9])
def test_a_top_k_as_large_as_the_vocabulary_keeps_all(top_k):
    """TransformerLensOrg/TransformerLens#1347, OpenNMT/CTranslate2#586: it crashed."""
    assert torch.equal(distribution(LOGITS, Sampling(1.0, top_k=top_k)), distribution(LOGITS, Sampling(1.0)))


def test_the_tail_of_a_large_vocabulary_is_reached():
    """NVIDIA/Megatron-LM#7182: sums in half precision saturate, and the tail is never drawn."""
    size = 151_936
    (flat,) = distribution(torch.zeros(1, size, dtype=torch.bfloat16), Sampling(1.0))
    assert [inverse_cdf(flat, (token + 0.5) / size) for token in (0, 75_000, size - 1)] == [0, 75_000, size - 1]
    (most,) = distribution(torch.zeros(1, size), Sampling(1.0, top_p=0.9))
    assert int(most.count_nonzero()) / size == pytest.approx(0.9, abs=1e-4)


def test_a_token_without_mass_is_never_drawn():
    """pytorch/pytorch#48841, huggingface/transformers#22979: multinomial returned masked tokens."""
    probs = torch.tensor([0.0, 2.1e-35, 0.0, 0.33, 0.0, 0.34, 1e-45, 0.33, 0.0])
    allowed = set(probs.nonzero().flatten().tolist())
    uniforms = [0.0, 5e-324, 1e-40, 0.33, 0.67, 1 - 2**-53, *np.random.default_rng(0).random(2000)]
    assert {inverse_cdf(probs, u) for u in uniforms} <= allowed


# ---- random numbers


class OneStream(KeyedDraws):
    """The same number for every purpose at one position: what must not be."""

    def uniform(self, purpose, position):
        return super().uniform("all", position)


@pytest.mark.parametrize(("draws", "exact"), [(KeyedDraws, True), (OneStream, False)])
def test_draft_accept_and_recovery_are_independent(draws, exact):
    """vllm-project/vllm#47386: one Philox draw per position decided draft, acceptance and recovery alike."""
    p, q = [0.1, 0.2, 0.7], [0.5, 0.4, 0.1]
    counts: Counter[int] = Counter()
    target, drafter = TableTarget(3, lambda text: p), TableDrafter(3, lambda text: q)
    for seed in range(500):
        each = request(0, [0], Sampling(1.0), new_tokens=3)  # one from the prefill, then a round of depth 1
        each.context.draws = draws(seed, b"x")
        counts[run(Engine(target, drafter, capacity=8), [each])[0][1]] += 1
    off = max(abs(counts[token] / 500 - mass) for token, mass in enumerate(p))
    assert (off < 0.09) is exact  # four standard deviations; one stream is off by 0.2


def test_another_seed_gives_another_text():
    """vllm-project/vllm#13196: with speculation on, the seed changed nothing."""
    target = ours(MODEL)
    drafter = ModelDrafter(ours(DRAFT))
    texts = {tuple(decode_ids(target, drafter, [[1, 2]], 12, Sampling(1.0), seed=s)[0].emitted) for s in range(6)}
    assert len(texts) == 6


@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_neighbours_with_other_seeds_and_samplings_change_nothing(kind):
    """vllm-project/vllm#9441, #11123, vllm-spyre#542: greedy, seeded and filtered requests in one batch."""
    target = ours(MODEL)
    settings = [
        Sampling(0.0),
        Sampling(1.0),
        Sampling(0.7, top_k=5),
        Sampling(2.0, top_p=0.5),
        Sampling(1.0, min_p=0.1),
    ]
    prompts = [[1, 2, 3, 1, 2], [7] * 9, [4, 5], [9, 8, 7, 9, 8], [3] * 4]

    def made():
        return [request(i, p, s, seed=10 * i) for i, (p, s) in enumerate(zip(prompts, settings, strict=True))]

    def drafter():
        return LookupDrafter(64) if kind == "lookup" else ModelDrafter(ours(DRAFT), max_depth=3)

    alone = [run(Engine(target, drafter(), max_batch=1), [each])[0] for each in made()]
    assert run(Engine(target, drafter(), max_batch=5), made()) == alone
    assert run(Engine(target, drafter(), max_batch=3), made()[::-1]) == alone[::-1]


def test_the_global_random_state_is_left_alone():
    """NVIDIA/TensorRT-LLM#19487: requests shared one stream of random numbers; here none is shared or consumed."""
    target, drafter, prompts = ours(MODEL), ModelDrafter(ours(DRAFT)), [[1, 2], [3]]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = decode_ids(target, drafter, prompts, 8, Sampling(1.0))
    assert torch.equal(torch.rand(3), expected)
    assert [r.emitted for r in decode_ids(target, drafter, prompts, 8, Sampling(1.0))] == [r.emitted for r in first]
