"""Drafts at every anchor: each slot's numbers against forwards of its own, and the loop that they foretell."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from drafters import eagle3_fitted
from drafters.micro import micro
from engine.models import decode_ids, ours, reference_model

from companion.drafters.eagle3.drafter import Eagle3Drafter
from companion.drafters.lookup import LookupDrafter
from companion.engine.draws import KeyedDraws
from companion.engine.generate import GenerationResult
from companion.engine.sampling import distribution
from companion.engine.target import Qwen3Target, ragged
from companion.experiments import anchor_counts
from companion.experiments.anchor_blocks import Blocks, draft_everywhere
from companion.experiments.anchor_recording import Anchored
from companion.metrics import committed_per_round, conditional_by_position, survival_by_position
from companion.protocols import Context, Drafter, Sampling
from companion.rounds import Round, Rounds

VOCAB, STOP, LIMIT = 6, 3, 14
KINDS = ("dflash", "vanilla", "rnn")


@pytest.fixture(scope="module")
def target() -> Qwen3Target:
    """A random Qwen3 with the hidden size of the micro drafters."""
    small = {"hidden_size": 2, "intermediate_size": 3, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = reference_model(
        7, sharpness=2.0, vocab_size=VOCAB, head_dim=2, num_hidden_layers=2, max_position_embeddings=64, **small
    )
    return ours(model)


def prompts(count: int) -> list[list[int]]:
    generator = np.random.default_rng(0)
    named = [[i % VOCAB, i // VOCAB % VOCAB, i // VOCAB**2] for i in range(count)]  # no two alike
    return [[*generator.integers(0, VOCAB, 1 + i % 5).tolist(), *name] for i, name in enumerate(named)]


def responses(target: Qwen3Target, sampling: Sampling, asked: list[list[int]]) -> list[GenerationResult]:
    done = decode_ids(target, None, asked, LIMIT, sampling, stops=frozenset([STOP]))
    return [
        GenerationResult(
            r.context.tokens[: r.prompt_length],
            r.emitted,
            ["output"] * len(r.emitted),
            "",
            r.finish_reason or "length",
            Rounds(),
        )
        for r in done
    ]


def anchored(result: GenerationResult, blocks: Blocks) -> Anchored:
    length, tokens = len(result.prompt_tokens), result.tokens
    return Anchored("chat/no_think/0", "chat", "no_think", length, tokens, result.phases, result.finish_reason, blocks)


def q_of(target: Qwen3Target, kind: str, text: list[int], anchor: int, drafted: list[int]) -> torch.Tensor:  # [K, V]
    """q of a block from a new drafter, told everything at once and made to draw ``drafted``."""
    drafter = micro(kind, VOCAB)

    class Told(KeyedDraws):
        def token(self, probs: torch.Tensor, purpose: str, position: int) -> int:
            return drafted[position - anchor - 1]

    batch = ragged([(0, 0, text[:anchor])], target.device)
    features = target.forward(batch, target.new_cache(1, anchor), drafter.taps).features
    context = Context(0, text[: anchor + 1], Sampling(), Told(0, b""))
    drafter.observe([context], [features])
    probs = drafter.propose([context], [len(drafted)])[0].probs
    assert probs is not None
    return probs


@pytest.mark.parametrize("kind", KINDS)
def test_every_slot_has_the_numbers_of_a_round_of_its_own(target: Qwen3Target, kind: str) -> None:
    result = max(responses(target, Sampling(), prompts(6)), key=lambda r: len(r.tokens))
    blocks = draft_everywhere(target, micro(kind, VOCAB), [result], Sampling(), at_once=4)[0]
    text, start = [*result.prompt_tokens, *result.tokens], len(result.prompt_tokens)
    assert blocks is not None
    assert blocks.drafted.shape == (len(result.tokens) - 1, 3)
    for row, anchor in enumerate(range(start, len(text) - 1)):
        drafted = blocks.drafted[row].tolist()
        logits = target.logits([*text[: anchor + 1], *drafted])[anchor:-1]
        p, q = distribution(logits, Sampling()).double(), q_of(target, kind, text, anchor, drafted).double()
        slots = range(3)
        np.testing.assert_allclose(blocks.p[row], [p[k, drafted[k]] for k in slots], atol=1e-5)
        np.testing.assert_allclose(blocks.q[row], [q[k, drafted[k]] for k in slots], atol=1e-5)
        np.testing.assert_allclose(blocks.overlap[row], torch.minimum(p, q).sum(-1), atol=1e-5)
        np.testing.assert_allclose(blocks.chance[row], np.minimum(1, blocks.p[row] / blocks.q[row]), atol=1e-5)
        np.testing.assert_allclose(blocks.entropy[row], -(p * p.log()).sum(-1), atol=1e-4)
        ahead = text[anchor + 1 : anchor + 4]
        p = distribution(target.logits(text)[anchor : anchor + len(ahead)], Sampling()).double()
        q = q_of(target, kind, text, anchor, [*ahead, 0, 0][:3]).double()
        expected = [min(1.0, float(q[k, y] / p[k, y])) for k, y in enumerate(ahead)]
        np.testing.assert_allclose(blocks.along[row], [*expected, 0, 0][:3], atol=1e-4)


@pytest.mark.parametrize("kind", [*KINDS, "eagle3"])
def test_greedy_blocks_foretell_every_round_of_the_real_loop(target: Qwen3Target, kind: str) -> None:
    greedy, stops, asked = Sampling(0.0), frozenset([STOP]), prompts(40)

    def new() -> Drafter:
        return Eagle3Drafter(eagle3_fitted.fitted_eagle3()) if kind == "eagle3" else micro(kind, VOCAB)

    if kind == "eagle3":
        target, asked = eagle3_fitted.target(), eagle3_fitted.prompts()
    results = responses(target, greedy, asked)
    found = draft_everywhere(target, new(), results, greedy)
    loops = decode_ids(target, new(), asked, LIMIT, greedy, stops=stops)
    chains, real, broken = [], [], []
    for result, blocks, loop in zip(results, found, loops, strict=True):
        assert loop.emitted == result.tokens
        if blocks is None:
            assert not loop.rounds
            continue
        chains.append(anchor_counts.greedy_chain(anchored(result, blocks), LIMIT))
        real.append([row.accepted for row in loop.rounds])
        wrong = replace(blocks, along=np.roll(blocks.along, 1, 0))
        broken.append(anchor_counts.greedy_chain(anchored(result, wrong), LIMIT))
        counts, rounds = anchor_counts.along(anchored(result, blocks), LIMIT), loop.rounds
        assert counts.tau[0] / counts.tau[1] == pytest.approx(committed_per_round(rounds))
        expected = anchor_counts.real(rounds, blocks.drafted.shape[1])
        np.testing.assert_allclose(counts.conditional, expected.conditional)
        np.testing.assert_allclose(counts.survival, expected.survival)
    assert chains == real
    assert sum(map(sum, real)) > 10, "a drafter that is never right foretells nothing"
    assert broken != real
    if kind != "eagle3":
        assert {r.finish_reason for r in results} == {"stop", "length"}


def test_the_loop_along_a_text_is_the_real_loop_in_law() -> None:
    """Two tokens, any p and q that depend on the whole prefix: expected visits over all texts, against all outcomes of
    drafting, accepting and resampling."""
    generator, length, depth = np.random.default_rng(3), 5, 2
    laws: dict[tuple[int, ...], np.ndarray] = {}
    drafts: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}

    def p(prefix: tuple[int, ...]) -> np.ndarray:
        return laws.setdefault(prefix, generator.dirichlet([1, 1]))

    def q(anchor: int, prefix: tuple[int, ...]) -> np.ndarray:
        return drafts.setdefault((anchor, prefix), generator.dirichlet([1, 1]))

    direct = np.zeros((length - 1, depth + 1))  # at index i: visited, accepted at least 1, at least 2

    def loop(text: tuple[int, ...], weight: float) -> None:
        if len(text) == length:
            return
        anchor, slots = len(text) - 1, min(depth, length - len(text) - 1)
        direct[anchor, 0] += weight
        judge(text, anchor, slots, 0, weight)

    def judge(text: tuple[int, ...], anchor: int, slots: int, k: int, weight: float) -> None:
        target = p(text)
        if k == slots:
            for y in (0, 1):
                loop((*text, y), weight * target[y])
            return
        draft = q(anchor, text)
        kept = np.minimum(target, draft)
        for x in (0, 1):
            direct[anchor, k + 1] += weight * kept[x]
            judge((*text, x), anchor, slots, k + 1, weight * kept[x])
            loop((*text, x), weight * (target - kept)[x])

    loop((0,), 1.0)
    foretold = np.zeros_like(direct)
    for tail in product((0, 1), repeat=length - 1):
        text, weight, along = (0, *tail), 1.0, np.zeros((length - 1, depth))
        for i in range(1, length):
            weight *= p(text[:i])[text[i]]
        for i, k in product(range(length - 1), range(depth)):
            if i + k + 1 < length:
                prefix, y = text[: i + k + 1], text[i + k + 1]
                along[i, k] = min(1, q(i, prefix)[y] / p(prefix)[y])
        empty = np.zeros((length - 1, depth))
        bits = empty.astype(bool)
        blocks = Blocks(empty.astype(int), bits, empty, empty, empty, empty, along, empty, None, 0.0)
        response = Anchored("", "chat", "no_think", 1, list(text), ["output"] * length, "length", blocks)
        _, alive, _ = anchor_counts.visits(response, depth, length)
        foretold += weight * alive
    np.testing.assert_allclose(foretold, direct, atol=1e-12)
    assert 0.05 < direct[1:, 0].min() < direct[1:, 0].max() < 0.95


def test_counts_are_the_metrics_of_rounds_cut_behind_a_stop_token() -> None:
    generator = np.random.default_rng(1)
    drafted, accepted = generator.integers(0, 4, (300, 5)), generator.random((300, 5)) < 0.8
    rows = []
    for tokens, bits in zip(drafted.tolist(), accepted.tolist(), strict=True):
        kept = bits.index(False) if False in bits else 5
        stop = tokens.index(STOP) + 1 if STOP in tokens else 9
        cut = stop <= kept
        count = stop if cut else kept
        row = Round(0, 1, 0, 5, 5, count, not cut and kept < 5, not cut, [], ["output"] * (count + (not cut)))
        rows.append(row)
    rates = accepted * 1.0
    blocks = Blocks(drafted, accepted, rates, rates, rates, rates, rates, rates, None, 0.0)
    response = Anchored("", "chat", "no_think", 1, [0] * 301, ["output"] * 301, "length", blocks)
    for counts in (anchor_counts.sampled(response, [STOP]), anchor_counts.analytic(response, [STOP])):
        np.testing.assert_allclose(counts.conditional, conditional_by_position(rows))
        np.testing.assert_allclose(counts.survival, survival_by_position(rows))
        assert counts.tau[0] / counts.tau[1] == pytest.approx(committed_per_round(rows))
    assert not np.allclose(anchor_counts.sampled(response, []).survival, survival_by_position(rows))


def test_expected_acceptance_is_the_mean_of_the_sampled_one_and_a_wrong_q_is_not(target: Qwen3Target) -> None:
    found = draft_everywhere(
        target, micro("vanilla", VOCAB), responses(target, Sampling(), prompts(140)), Sampling(), seed=1
    )
    blocks = Blocks.concat([b for b in found if b is not None])

    def errors(expected: np.ndarray) -> list[float]:
        """Mean difference, and its mean weighted by the expectation, in standard errors."""
        differences = [blocks.accepted - expected, (blocks.accepted - expected) * (expected - expected.mean())]
        return [float(abs(d.mean()) / d.std() * d.size**0.5) for d in differences]

    assert blocks.overlap.size > 1500
    assert max(errors(blocks.overlap)) < 4
    assert max(errors(np.roll(blocks.overlap, 1, 0))) > 4  # another anchor's
    again = draft_everywhere(
        target, micro("vanilla", VOCAB), responses(target, Sampling(), prompts(3)), Sampling(), seed=1
    )
    for once, alone in zip(found, again, strict=False):  # neither its companions nor a second run change a draft
        if once is not None and alone is not None:
            assert np.array_equal(once.drafted, alone.drafted)
            assert np.array_equal(once.accepted, alone.accepted)


def test_what_cannot_be_surveyed_is_refused(target: Qwen3Target) -> None:
    results = responses(target, Sampling(), prompts(2))
    with pytest.raises(ValueError, match="every must be at least 1"):
        draft_everywhere(target, micro("dflash", VOCAB), results, Sampling(), every=0)
    with pytest.raises(ValueError, match="single token"):
        draft_everywhere(target, micro("dflash", VOCAB, max_depth=1), results, Sampling())
    with pytest.raises(ValueError, match=r"proposed \d of 8 tokens"):
        draft_everywhere(target, LookupDrafter(VOCAB, max_depth=8), results, Sampling())
    long = max(results, key=lambda r: len(r.tokens))
    sparse = draft_everywhere(target, micro("dflash", VOCAB), [long], Sampling(), every=3)[0]
    assert sparse is not None
    assert len(sparse.drafted) == (len(long.tokens) + 1) // 3
    with pytest.raises(ValueError, match="every=1"):
        anchor_counts.along(anchored(long, sparse), LIMIT)
