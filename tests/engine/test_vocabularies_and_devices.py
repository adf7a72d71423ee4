"""Padded heads, foreign tokenizers and reduced draft heads; and every tensor on the device it belongs to."""

import json

import pytest
import torch
from engine.models import byte_tokenizer, decode_ids, edit_json, ours, reference_model, save_model, text_target

from companion.drafters.load import load_drafter
from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.decode import Engine
from companion.engine.generate import generate
from companion.engine.load import load_target
from companion.engine.target import Qwen3Shape, Qwen3Target, ragged
from companion.protocols import Draft, Sampling
from companion.scheduling.fixed import FixedDepth


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("proposal", ["sampled", "greedy"])
def test_padding_ids_are_never_emitted_although_drafted(temperature, proposal):
    """The target knows 40 of 64 rows; its drafter does not know that the rest is padding and proposes it."""
    target = ours(reference_model(1), usable_vocab=40)
    drafter = ModelDrafter(ours(reference_model(2)), max_depth=4, proposal=proposal)
    proposed = []
    plain_propose = drafter.propose
    drafter.propose = lambda *args: proposed.extend(plain_propose(*args)) or proposed[-len(args[0]) :]
    requests = decode_ids(target, drafter, [[1, 2, 3], [4, 5]], 40, Sampling(temperature))
    assert any(token >= 40 for draft in proposed for token in draft.tokens), "no padding id was drafted"
    assert all(token < 40 for request in requests for token in request.emitted)


def test_prompts_with_ids_beyond_the_tokenizer_are_refused():
    target = text_target()
    assert target.usable_vocab == len(byte_tokenizer()) < target.vocab_size
    with pytest.raises(ValueError, match=f"token id {target.usable_vocab} is outside the vocabulary"):
        generate(target, None, [5, target.usable_vocab], max_new_tokens=2)
    with pytest.raises(ValueError, match="token id -1 is outside"):
        generate(target, None, [5, -1], max_new_tokens=2)


def test_a_drafter_of_another_vocabulary_is_refused():
    target = ours(reference_model(1))
    with pytest.raises(ValueError, match="must share one tokenizer"):
        Engine(target, LookupDrafter(63))
    with pytest.raises(ValueError, match="must share one tokenizer"):
        Engine(target, ModelDrafter(ours(reference_model(1, vocab_size=80))))


def test_a_draft_model_with_another_tokenizer_is_refused_although_the_sizes_agree(tmp_path):
    """Same number of tokens, two of them swapped: acceptance would just be low."""
    save_model(tmp_path)
    target = text_target()
    assert load_drafter(str(tmp_path), target).vocab_size == 272
    tokenizer = tmp_path / "tokenizer.json"
    vocab = json.loads(tokenizer.read_text())["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    edit_json(tokenizer, model=json.loads(tokenizer.read_text())["model"] | {"vocab": vocab})
    with pytest.raises(ValueError, match="a draft model must share the target's tokenizer"):
        load_drafter(str(tmp_path), target)


def test_a_head_smaller_than_the_vocabulary_is_refused():
    """A reduced draft head under the name of a full one."""
    weights = reference_model(1).state_dict()
    weights["lm_head.weight"] = weights["lm_head.weight"][:32]
    shape = Qwen3Shape.from_config(reference_model(1).config.to_dict())
    with pytest.raises(ValueError, match=r"lm_head.weight of small has shape \(32, 48\)"):
        Qwen3Target(shape, weights, name="small")


def test_a_tokenizer_larger_than_the_head_is_refused(tmp_path):
    save_model(tmp_path, vocab_size=200)
    with pytest.raises(ValueError, match="knows 261 tokens, its weights have rows for 200 only"):
        load_target(str(tmp_path))


@pytest.mark.parametrize(
    ("tokens", "words"), [([64], "ids run from 0 to 63"), ([-1], "ids run from 0 to 63"), ([1, 2, 3], "where 2 were")]
)
def test_drafts_outside_the_contract_are_refused(tokens, words):
    class Broken(LookupDrafter):
        def propose(self, contexts, depths):
            return [Draft(tokens) for _ in contexts]

    with pytest.raises(ValueError, match=words):
        decode_ids(ours(reference_model(1)), Broken(64), [[1]], 9, policy=FixedDepth(2))


def test_the_forward_keeps_every_tensor_on_the_targets_device():
    """On the meta device an operation that mixes devices raises: no table, mask or index is left on the CPU."""
    target = ours(reference_model(1), device="meta", usable_vocab=60)
    cache = target.new_cache(3, 20)
    steps = [
        [(0, 0, [1, 2, 3])],
        [(0, 3, [1, 2]), (2, 0, [1, 2, 3, 4]), (1, 0, [4, 5])],
        [(0, 5, [1]), (1, 2, [3])],
    ]
    for rows in steps:
        batch = ragged(rows, target.device)
        batch.logit_rows = torch.tensor([0, len(batch.tokens) - 1], device=target.device)
        out = target.forward(batch, cache, taps=(-1, 2))
        assert (out.logits.device.type, out.logits.shape) == ("meta", (2, 64))
        assert (out.features.device.type, out.features.shape) == ("meta", (len(batch.tokens), 2, 48))


@pytest.mark.gpu
@pytest.mark.parametrize("draft_device", ["cuda", "cpu"])
def test_target_and_drafter_on_different_devices(draft_device):
    target = ours(reference_model(1), device="cuda")
    drafter = ModelDrafter(ours(reference_model(2), device=draft_device), max_depth=4)
    speculative = decode_ids(target, drafter, [[1, 2, 3], [4]], 30)
    plain = decode_ids(ours(reference_model(1)), None, [[1, 2, 3], [4]], 30)
    assert [r.emitted for r in speculative] == [r.emitted for r in plain]
    sampled = decode_ids(target, drafter, [[1, 2, 3], [4]], 30, Sampling(1.0))
    assert all(len(r.emitted) == 30 for r in sampled)


def test_a_gpu_that_is_not_there_is_said_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"PyTorch sees no GPU here.*; use device='cpu'"):
        load_target("tiny-qwen3", device="cuda")
