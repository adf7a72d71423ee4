"""Our forward against transformers' Qwen3ForCausalLM on the same weights."""

import pytest
import torch
from engine.models import ours, reference_model
from transformers import DynamicCache

from companion.engine.target import Qwen3Shape, Qwen3Target, ragged, single

SHAPES = {
    "grouped heads of 32": {},
    "heads of 64": {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 2},
    "one key head for six": {"num_attention_heads": 6, "num_key_value_heads": 1},
    "tied head": {"tie_word_embeddings": True},
    "theta of ten thousand": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "large epsilon": {"rms_norm_eps": 1e-2},
}
# fp32 rounding on logits of size 1 to 10; a wrong sign, scale, norm or position is off by 0.1 and more
TIGHT = {"atol": 2e-5, "rtol": 2e-5}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def pair(request):
    reference = reference_model(3, **request.param)
    return reference, ours(reference)


def tokens_of(length, seed=0):
    return torch.randint(64, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def reference_logits(reference, tokens):
    return reference(torch.tensor([tokens])).logits[0]


def test_prefill(pair):
    reference, target = pair
    tokens = tokens_of(40)
    expected = reference_logits(reference, tokens)
    assert expected.std() > 0.3, "logits this flat would hide an error"
    torch.testing.assert_close(target.logits(tokens), expected, **TIGHT)


def test_cached_steps_of_every_size(pair):
    """The text in pieces of 1 to 9 tokens through the cache equals the text at once."""
    reference, target = pair
    tokens = tokens_of(45)
    cache, done, pieces = target.new_cache(1, 45), 0, []
    for size in range(1, 10):
        batch = single(tokens[done : done + size], slot=0, cached=done, device=target.device)
        pieces.append(target.forward(batch, cache).logits)
        done += size
    torch.testing.assert_close(torch.cat(pieces), reference_logits(reference, tokens), **TIGHT)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")  # its new name is not in every version supported
def test_cached_steps_against_transformers_cache():
    """Both caches, token by token, the reference one as `generate` drives it."""
    reference = reference_model(4)
    target, tokens = ours(reference), tokens_of(12)
    cache, theirs = target.new_cache(1, 12), DynamicCache(config=reference.config)
    for position, token in enumerate(tokens):
        mine = target.forward(single([token], slot=0, cached=position, device=target.device), cache).logits
        with torch.no_grad():
            expected = reference(torch.tensor([[token]]), past_key_values=theirs, use_cache=True).logits[0]
        torch.testing.assert_close(mine, expected, **TIGHT)


def test_ragged_batch(pair):
    """Requests of different lengths, some fresh and some continued, in one stream and in slots of any order."""
    reference, target = pair
    texts = {2: tokens_of(17, 1), 0: tokens_of(5, 2), 3: tokens_of(31, 3), 1: tokens_of(1, 4)}
    cached = {2: 12, 0: 0, 3: 30, 1: 0}
    cache = target.new_cache(4, 32)
    first = [(slot, 0, text[: cached[slot]]) for slot, text in texts.items() if cached[slot]]
    target.forward(ragged(first, target.device), cache)
    batch = ragged([(slot, cached[slot], text[cached[slot] :]) for slot, text in texts.items()], target.device)
    logits = target.forward(batch, cache).logits
    for (slot, text), start, stop in zip(texts.items(), batch.starts, batch.starts[1:], strict=False):
        torch.testing.assert_close(logits[start:stop], reference_logits(reference, text)[cached[slot] :], **TIGHT)


def test_requested_rows_only():
    reference = reference_model(5)
    target, tokens = ours(reference), tokens_of(9)
    batch = single(tokens, slot=0, cached=0, device=target.device)
    batch.logit_rows = torch.tensor([8, 2])
    rows = target.forward(batch, target.new_cache(1, 9)).logits
    torch.testing.assert_close(rows, reference_logits(reference, tokens)[[8, 2]], **TIGHT)


def test_rolled_back_text_leaves_no_trace():
    """A rejected suffix, then another one: bit for bit the logits of a cache that never saw the first."""
    target = ours(reference_model(6))
    prompt, wrong, right = tokens_of(10, 1), tokens_of(6, 2), tokens_of(6, 3)
    caches = [target.new_cache(1, 20), target.new_cache(1, 20)]
    for cache in caches:
        target.forward(single(prompt, slot=0, cached=0, device=target.device), cache)
    target.forward(single(wrong, slot=0, cached=10, device=target.device), caches[0])
    caches[0].rollback(0, 10)
    after = [target.forward(single(right, slot=0, cached=10, device=target.device), c).logits for c in caches]
    assert torch.equal(*after)


def test_taps_are_the_outputs_of_the_layers():
    """Tap i is the output of decoder layer i, -1 the embedding; transformers lists the embedding first, and its last
    entry is after the final norm, so the last layer's raw output is caught by a hook."""
    reference = reference_model(7, num_hidden_layers=4)
    target, tokens = ours(reference), tokens_of(14)
    raw = []
    reference.model.layers[-1].register_forward_hook(lambda *args: raw.append(args[2]))
    with torch.no_grad():
        hidden = reference(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    taps = (2, -1, 0, 3, 1)
    batch = single(tokens, slot=0, cached=0, device=target.device)
    features = target.forward(batch, target.new_cache(1, 14), taps).features
    assert features.shape == (14, 5, 48)
    last = raw[0][0] if isinstance(raw[0], tuple) else raw[0]
    for column, tap in enumerate(taps):
        expected = last[0] if tap == 3 else hidden[tap + 1][0]
        torch.testing.assert_close(features[:, column], expected, **TIGHT)
    assert (hidden[-1][0] - last[0]).abs().max() > 0.1, "raw and normed output look alike: the test would not tell"


def test_bf16_stays_near_the_reference():
    """Half precision rounds elsewhere (fused projections), so only the distributions are compared, loosely."""
    reference = reference_model(8)
    frequencies = reference.model.rotary_emb.inv_freq.clone()
    reference.to(torch.bfloat16)
    reference.model.rotary_emb.inv_freq = frequencies  # as from_pretrained keeps them; a plain cast rounds them
    target, tokens = ours(reference, dtype=torch.bfloat16), tokens_of(30)
    mine, expected = target.logits(tokens), reference_logits(reference, tokens).float()
    assert mine.dtype == torch.float32
    apart = 0.5 * (mine.softmax(-1) - expected.softmax(-1)).abs().sum(-1)
    assert apart.mean() < 0.02
    assert apart.max() < 0.1
    shuffled = 0.5 * (mine.softmax(-1) - expected.softmax(-1).roll(1, 0)).abs().sum(-1)
    assert shuffled.mean() > 0.3, "rows this alike would hide an error"


def test_fp16_weights_in_fp32_are_the_same_numbers():
    reference = reference_model(9)
    halved = {name: weight.half() for name, weight in reference.state_dict().items()}
    reference.load_state_dict(halved)
    target = Qwen3Target(Qwen3Shape.from_config(reference.config.to_dict()), halved, dtype=torch.float32)
    tokens = tokens_of(20)
    torch.testing.assert_close(target.logits(tokens), reference_logits(reference, tokens), **TIGHT)


def test_padded_rows_of_the_head_cannot_be_sampled():
    """Ids beyond the tokenizer's are -inf, so that softmax, top-k and argmax never see them."""
    reference = reference_model(10)
    target, tokens = ours(reference, usable_vocab=61), tokens_of(20)
    logits = target.logits([t % 61 for t in tokens])
    assert logits.shape == (20, 64)
    assert bool((logits[:, 61:] == float("-inf")).all())
    assert bool(logits[:, :61].isfinite().all())


def test_parameter_count(pair):
    reference, target = pair
    assert target.parameters == sum(p.numel() for p in reference.parameters())
