"""Four drafting rounds with a growing cache, number by number against DeepSpec's."""

import pytest
import torch
from drafters.golden import COLUMNS, MODELS, drafter, model, read, target_of

from companion.engine.target import single
from companion.protocols import Context, Sampling

ROUNDS = (1, 2, 3, 4)


def close(ours, golden, atol):
    torch.testing.assert_close(ours.detach(), golden, atol=atol, rtol=0)


def features(numbers, number):
    return numbers[f"round{number}.target_hidden_states"].unflatten(-1, (2, 64))


def context(numbers, number):
    start = int(numbers[f"round{number}.start"])
    return Context(0, numbers["input_ids"][: start + 1].tolist(), Sampling(0.0), None)


@pytest.mark.parametrize("name", MODELS)
def test_rounds_of_the_drafter(name, monkeypatch):
    numbers, made = read(f"{name}.infer"), drafter(name)
    seen = {}
    hidden_of = made._backbone.hidden
    monkeypatch.setattr(made._backbone, "hidden", lambda *a: seen.setdefault("hidden", hidden_of(*a)))
    for number in ROUNDS:
        seen.clear()
        request, key = context(numbers, number), f"round{number}."
        made.observe([request], [features(numbers, number)])
        (draft,) = made.propose([request], [5])
        close(seen["hidden"][0], numbers[f"{key}block_hidden"], 2e-5)
        logits = seen["hidden"][0] @ made._head
        close(logits[:, COLUMNS], numbers[f"{key}base_logits"], 5e-5)
        assert draft.tokens == numbers[f"{key}draft_tokens"].tolist()
        assert made._slots.cache.lengths == [len(request.tokens) - 1]
        if name == "dflash":
            assert draft.confidence is None
        else:
            close(torch.tensor(draft.confidence), numbers[f"{key}confidence_probs"], 1e-5)
    for layer in range(2):
        close(made._slots.cache.keys[layer][0, :, :35], numbers[f"round4.k{layer}"], 2e-5)
        close(made._slots.cache.values[layer][0, :, :35], numbers[f"round4.v{layer}"], 2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_trained_module_computes_the_same_without_a_cache(name):
    numbers, made = read(f"{name}.infer"), model(name)
    for number in ROUNDS:
        key = f"round{number}."
        close(made.context(features(numbers, number)), numbers[f"{key}context_features"], 2e-5)
        start = int(numbers[f"{key}start"])
        block = torch.tensor([[int(numbers["input_ids"][start]), *[made.config.mask_token_id] * 4]])
        before = torch.cat([features(numbers, n) for n in range(1, number + 1)])[None]
        hidden = made(block, torch.arange(start, start + 5)[None], before)
        close(hidden[0], numbers[f"{key}block_hidden"], 2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_corrected_logits_follow_the_drafted_tokens(name):
    """Eq. 4: what the sequential loop draws from, given the golden hidden states and drafts."""
    numbers, made = read(f"{name}.infer"), model(name)
    for number in ROUNDS:
        key = f"round{number}."
        hidden, drafted = numbers[f"{key}block_hidden"], numbers[f"{key}draft_tokens"].tolist()
        previous = torch.tensor([context(numbers, number).tokens[-1], *drafted[:-1]])
        logits, state = made.lm_head(hidden), None
        for k in range(5 if made.markov_head else 0):
            embedded = made.markov_head.embed(previous[k])
            latent, state = made.markov_head.latent(embedded, hidden[k], state)
            logits[k] = logits[k] + made.markov_head.bias(latent)
        close(logits[:, COLUMNS], numbers[f"{key}corrected_logits"], 5e-5)


@pytest.mark.parametrize("name", [m for m in MODELS if m != "dflash"])
def test_teacher_forced_heads(name):
    numbers, made = read(f"{name}.infer"), model(name)
    for number in (1, 3):
        key = f"round{number}."
        hidden, previous = numbers[f"{key}block_hidden"], numbers[f"{key}teacher_prev_tokens"]
        latents = made.markov_head.latents(made.markov_head.embed(previous), hidden)
        logits = made.lm_head(hidden) + made.markov_head.bias(latents)
        close(logits[:, COLUMNS], numbers[f"{key}teacher_corrected_logits"], 5e-5)


def test_the_features_are_those_of_our_target():
    """The golden inputs are the outputs of layers 0 and 2 of the target that the engine runs."""
    numbers, target = read("dspark_vanilla.infer"), target_of("dspark_vanilla")
    batch = single(numbers["input_ids"][:24].tolist(), slot=0, cached=0, device=target.device)
    out = target.forward(batch, target.new_cache(1, 24), taps=drafter("dspark_vanilla").taps)
    close(out.features, features(numbers, 1), 2e-5)
