"""Our forward and our decoding against numbers that another implementation wrote down."""

import json
from pathlib import Path

import pytest
import torch
from engine.models import decode_ids
from safetensors.torch import load_file

from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.target import Qwen3Shape, Qwen3Target, single

FOLDER = Path(__file__).parents[1] / "fixtures" / "golden_qwen3"


@pytest.fixture(scope="module")
def target():
    shape = Qwen3Shape.from_config(json.loads((FOLDER / "config.json").read_text()))
    return Qwen3Target(shape, load_file(FOLDER / "model.safetensors"))


@pytest.fixture(scope="module")
def numbers():
    return load_file(FOLDER / "numbers.safetensors")


@pytest.fixture(scope="module")
def greedy():
    return json.loads((FOLDER / "greedy.json").read_text())


def test_prefill_logits_and_hidden_states(target, numbers):
    prompt = numbers["input_ids"][:24].tolist()
    batch = single(prompt, slot=0, cached=0, device=target.device)
    out = target.forward(batch, target.new_cache(1, 24), taps=(-1, 0, 1, 2))
    torch.testing.assert_close(out.logits, numbers["prefill_logits"], atol=5e-5, rtol=0)
    hidden = numbers["prefill_hidden_states"][:4].transpose(0, 1)  # [T, 4, d]; the fifth is after the final norm
    torch.testing.assert_close(out.features, hidden, atol=2e-5, rtol=0)


def test_three_verification_blocks_with_rollbacks(target, numbers):
    text = numbers["input_ids"].tolist()
    cache = target.new_cache(1, 36)
    target.forward(single(text[:24], slot=0, cached=0, device=target.device), cache)
    for block, start in enumerate((24, 28, 29), start=1):
        cache.rollback(0, min(start, cache.lengths[0]))
        batch = single(text[start : start + 6], slot=0, cached=start, device=target.device)
        logits = target.forward(batch, cache).logits
        torch.testing.assert_close(logits, numbers[f"verify_logits_{block}"], atol=5e-5, rtol=0)


@pytest.mark.parametrize("drafter", ["none", "lookup", "itself"])
@pytest.mark.parametrize("together", [True, False])
def test_greedy_continuations(target, greedy, drafter, together):
    """48 tokens after each of four prompts, decoded plainly and speculatively, one by one and in one batch."""
    made = {"none": lambda: None, "lookup": lambda: LookupDrafter(503), "itself": lambda: ModelDrafter(target)}[drafter]
    texts, rounds = [], []
    for prompts in [greedy["prompts"]] if together else [[p] for p in greedy["prompts"]]:
        requests = decode_ids(target, made(), prompts, 48)
        texts += [r.context.tokens for r in requests]
        rounds += [row for r in requests for row in r.rounds]
    assert texts == greedy["greedy"]
    if drafter != "none":
        assert sum(row.accepted for row in rounds) > 0, "nothing was accepted: the check compared plain with plain"


@pytest.mark.parametrize("number", range(4))
def test_greedy_continuations_end_at_stop_tokens(target, greedy, number):
    stops = frozenset(greedy["stop_token_ids"][number])
    (request,) = decode_ids(target, ModelDrafter(target), [greedy["prompts"][number]], 48, stops=stops)
    assert request.emitted == greedy["greedy_with_stop"][number]
    assert request.finish_reason == ("stop" if request.emitted[-1] in stops else "length")
