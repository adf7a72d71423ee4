"""DSpark's heads on another backbone: independent heads on one hidden state of the target."""

from __future__ import annotations

import pytest
import torch
from drafters.eagle3_fitted import greedy_texts, prompts, target
from engine.models import decode_ids, edit_json, ours, reference_model
from safetensors.torch import load_file

from companion.drafters.load import load_drafter
from companion.drafters.medusa import MedusaConfig, MedusaDrafter, MedusaModel, load_medusa, save_medusa
from companion.engine.draws import KeyedDraws
from companion.engine.load import ModelFolder
from companion.engine.target import Qwen3Shape, ragged, single
from companion.exact.laws import distance, engine_law, plain_law
from companion.exact.tables import TableTarget, random_law
from companion.protocols import Context, Drafter, Sampling
from companion.scheduling.fixed import FixedDepth
from companion.training.anchors import pack_blocks
from companion.training.drafter_loss import Alphas, loss_sums, position_weights, supervised_slots

DOUBLE = torch.float64
HEADS = {
    "none": {},
    "vanilla": {"markov_rank": 8},
    "gated": {"markov_rank": 8, "markov_head_type": "gated"},
    "rnn": {"markov_rank": 8, "markov_head_type": "rnn", "confidence_head": True},
}


def random_medusa(kind, *, shape=None, seed=0, heads=4):
    torch.manual_seed(seed)
    of = target()
    model = MedusaModel(MedusaConfig(shape or of.shape, heads, 1 if shape is None else 0, **HEADS[kind]))
    with torch.no_grad():
        torch.nn.init.normal_(model.heads.weight, std=0.1)
        if shape is None:
            model.lm_head.weight.copy_(of.head)
    return model


def features(tokens):
    of = target(DOUBLE)
    batch = single(list(tokens[:-1]), slot=0, cached=0, device=of.device)
    return of.forward(batch, of.new_cache(1, len(tokens)), taps=(1,)).features


def context(tokens, request=0, temperature=1.0):
    return Context(request, list(tokens), Sampling(temperature), KeyedDraws(0, bytes([request])))


@pytest.mark.parametrize("mode", ["sampled", "greedy"])
@pytest.mark.parametrize("kind", HEADS)
def test_output_has_the_law_of_plain_sampling(kind, mode):
    model = random_medusa(kind, shape=Qwen3Shape(3, 2, 1, 1, 1, 2, 1e-6, 1e4, 64), heads=2)
    law, prompt = random_law(3, 8), (0, 1, 0)
    drafter = MedusaDrafter(model, dtype=DOUBLE, proposal=mode)
    assert isinstance(drafter, Drafter)
    found = engine_law(TableTarget(3, law), drafter, FixedDepth(2), [prompt], Sampling(), 3)
    assert distance(found, plain_law(law, prompt, Sampling(), 3)) < 1e-12


@pytest.mark.parametrize("kind", HEADS)
def test_q_is_base_logits_plus_the_bias_of_the_token_before(kind):
    model = random_medusa(kind).double()
    text = greedy_texts(24)[1]
    drafter, asked = MedusaDrafter(model, dtype=DOUBLE), context(text)
    drafter.observe([asked], [features(text)])
    (draft,) = drafter.propose([asked], [4])
    z = torch.nn.functional.rms_norm(features(text)[-1, 0], (48,), model.input_norm.weight, 1e-6)
    state = None
    for k, token in enumerate(draft.tokens):
        w, b = model.heads.weight[48 * k : 48 * (k + 1)], model.heads.bias[48 * k : 48 * (k + 1)]
        pre = w @ z + b
        h = torch.nn.functional.rms_norm(z + pre * torch.sigmoid(pre), (48,), model.norm.weight, 1e-6)
        logits = model.lm_head.weight @ h
        if model.markov_head is not None:
            embedded = model.markov_head.embed(torch.tensor([[*text, *draft.tokens][len(text) - 1 + k]]))
            latent, state = model.markov_head.latent(embedded, h[None], state)
            logits = logits + model.markov_head.bias(latent)[0]
        torch.testing.assert_close(draft.probs[k], logits.softmax(-1), atol=1e-12, rtol=1e-9)
        assert token == asked.draws.token(draft.probs[k], "draft/0", len(text) + k)
    assert (draft.confidence is not None) == (kind == "rnn")


@pytest.mark.parametrize("kind", HEADS)
def test_only_a_markov_head_makes_slots_look_at_tokens(kind):
    model, text = random_medusa(kind), greedy_texts(24)[1]
    rows = []
    for anchor in (3, 4):
        drafter, asked = MedusaDrafter(model), context([*text[:-1], anchor])
        drafter.observe([asked], [features(text).float()])
        rows.append(drafter.propose([asked], [4])[0].probs[0])
    assert torch.equal(*rows) == (kind == "none")


@pytest.fixture(scope="module")
def batch():
    """Greedy texts of the target, what it thinks of them, and all anchors from the prompt on."""
    of, texts = target(), torch.tensor([text[:40] for text in greedy_texts(44)])
    stream = ragged([(i, 0, row) for i, row in enumerate(texts.tolist())], of.device)
    seen = of.forward(stream, of.new_cache(len(texts), 40), taps=(1, 2)).features.clone().unflatten(0, texts.shape)
    last = of.final_norm(seen[:, :, 1])
    anchors = torch.arange(2, 38).expand(len(texts), -1)
    blocks = pack_blocks(texts, torch.ones_like(texts), anchors, torch.ones_like(anchors).bool(), config("none"))
    return blocks, seen[:, :, :1], last


def config(kind):
    return random_medusa(kind).config


def teach(model, batch, steps):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        sums, _ = loss_sums(supervised_slots(model, *batch), position_weights("none", 4))
        total = sums.total(Alphas())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
    return losses


def test_packed_blocks_give_the_hidden_states_of_drafting(batch):
    blocks, seen, _ = batch
    model = random_medusa("none")
    hidden = model(blocks.tokens, blocks.positions, seen, blocks.visible).unflatten(1, (-1, 4))
    for text, number in ((0, 0), (3, 17), (7, 35)):
        anchor = 2 + number
        torch.testing.assert_close(hidden[text, number], model.slots(seen[text, anchor - 1, 0]))


@pytest.fixture(scope="module")
def fitted(batch):
    models = {kind: random_medusa(kind) for kind in HEADS}
    return models, {kind: teach(model, batch, 40) for kind, model in models.items()}


def test_dsparks_loss_trains_it_and_a_markov_head_explains_more(fitted):
    models, losses = fitted
    for kind, model in models.items():
        assert losses[kind][-1] < losses[kind][0] / 2
        for name, parameter in model.named_parameters():
            assert (parameter.grad is None) == (name == "lm_head.weight"), name
    assert losses["vanilla"][-1] < 0.9 * losses["none"][-1], "slots that see their predecessor do no better"


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_greedy_output_is_the_targets_own(fitted, kind, depth):
    requests = decode_ids(target(), MedusaDrafter(fitted[0][kind], max_depth=depth), prompts(), 24)
    assert [request.context.tokens for request in requests] == greedy_texts(24)
    rounds = [row for request in requests for row in request.rounds]
    assert max(row.drafted for row in rounds) == depth
    assert max(row.accepted for row in rounds) == depth, "no block was ever accepted whole"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batch_mates_and_their_order_change_no_token(fitted, temperature):
    def texts(ids, max_batch):
        drafter = MedusaDrafter(fitted[0]["rnn"], dtype=DOUBLE)
        done = decode_ids(target(DOUBLE), drafter, ids, 16, Sampling(temperature), max_batch=max_batch)
        return {tuple(p): request.emitted for p, request in zip(ids, done, strict=True)}

    ids = prompts()
    alone = {k: v for prompt in ids for k, v in texts([prompt], 1).items()}
    assert texts(ids, 8) == texts(ids[::-1], 3) == alone


@pytest.mark.parametrize("kind", HEADS)
def test_what_is_saved_is_loaded_again(kind, tmp_path):
    model = random_medusa(kind)
    save_medusa(model, tmp_path / "heads")
    assert "lm_head.weight" not in load_file(tmp_path / "heads" / "model.safetensors"), "the target has it already"
    again = load_medusa(ModelFolder(tmp_path / "heads", "heads"), target())
    assert again.config == model.config
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert again.lm_head.weight.data_ptr() == target().head.data_ptr()
    drafter = load_drafter(str(tmp_path / "heads"), target(), max_depth=3, proposal="greedy")
    assert isinstance(drafter, MedusaDrafter)
    assert (drafter.name, drafter.max_depth, drafter.taps, drafter.deterministic) == ("heads", 3, (1,), True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"medusa_heads": None}, "no number 'medusa_heads': expected a whole number, found None"),
        ({"medusa_heads": "4"}, "no number 'medusa_heads'"),
        ({"markov_rank": 8, "markov_head_type": "bigram"}, "must be vanilla, gated or rnn, got 'bigram'"),
        ({"medusa_heads": 0}, "heads must be at least 1, got 0"),
        ({"markov_rank": -1}, "markov_rank must be >= 0, got -1"),
        ({"medusa_heads": 5}, "heads.weight of heads has shape"),
        ({"target_layer_id": 2}, r"the last layer \(2\)"),
        ({"target_layer_id": 9}, "layer 9, and target has layers 0 to 2"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(change, message, tmp_path):
    save_medusa(random_medusa("none"), tmp_path)
    edit_json(tmp_path / "config.json", **change)
    with pytest.raises(ValueError, match=message):
        load_medusa(ModelFolder(tmp_path, "heads"), target())


def test_a_file_that_is_cut_and_a_pickle_are_refused(tmp_path):
    save_medusa(random_medusa("vanilla"), tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_medusa(ModelFolder(tmp_path, "heads"), target())
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds pickled weights only"):
        load_medusa(ModelFolder(tmp_path, "heads"), target())


def test_heads_of_another_target_are_refused(tmp_path):
    save_medusa(random_medusa("none"), tmp_path)
    with pytest.raises(ValueError, match="a target of 3 layers and target has 4: it was made for another target"):
        load_medusa(ModelFolder(tmp_path, "heads"), ours(reference_model(4, num_hidden_layers=4)))


def test_more_tokens_than_heads_are_refused():
    with pytest.raises(ValueError, match="proposes at most 4 tokens, and max_depth is 5: ask for 1 to 4"):
        MedusaDrafter(random_medusa("none"), max_depth=5)
    drafter, asked = MedusaDrafter(random_medusa("none"), max_depth=2), context([1, 2])
    with pytest.raises(ValueError, match="proposes at most 2 tokens, 3 were asked for"):
        drafter.propose([asked], [3])
    with pytest.raises(ValueError, match="'sampled' or 'greedy', got 'beam'"):
        MedusaDrafter(random_medusa("none"), proposal="beam")


def test_a_drafter_that_was_not_shown_the_newest_state_says_so():
    drafter, asked = MedusaDrafter(random_medusa("none")), context([1, 2, 3])
    with pytest.raises(ValueError, match="features of 0 tokens of request 0, whose text has 2 before its last"):
        drafter.propose([asked], [2])
    drafter.observe([asked], [features(asked.tokens)])
    asked.tokens.append(4)
    with pytest.raises(ValueError, match="features of 2 tokens of request 0, whose text has 3 before its last"):
        drafter.propose([asked], [2])
    drafter.reset(0)
    drafter.reset(0)
    with pytest.raises(ValueError, match="features of 0 tokens"):
        drafter.propose([asked], [2])


@pytest.mark.parametrize("proposal", ["sampled", "greedy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_deterministic_proposal_comes_without_a_soft_q(proposal, temperature):
    drafter, asked = MedusaDrafter(random_medusa("vanilla"), proposal=proposal), context([1, 2, 3], 0, temperature)
    drafter.observe([asked], [features(asked.tokens).float()])
    assert drafter.deterministic == (proposal == "greedy")
    assert (drafter.propose([asked], [4])[0].probs is None) == (proposal == "greedy" or temperature == 0.0)


def test_ids_that_the_tokenizer_does_not_know_are_never_drafted():
    for temperature in (0.0, 5.0):
        drafter, asked = MedusaDrafter(random_medusa("vanilla"), usable_vocab=9), context([1, 2, 3], 0, temperature)
        drafter.observe([asked], [features(asked.tokens).float()])
        assert max(drafter.propose([asked], [4])[0].tokens) < 9
