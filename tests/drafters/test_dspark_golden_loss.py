"""One training batch against DeepSpec's: slots, losses, gradients."""

from functools import cache

import pytest
import torch
from drafters.golden import COLUMNS, MODELS, model, read, read_json

from companion.training.anchors import pack_blocks
from companion.training.drafter_loss import Alphas, loss_sums, position_weights, supervised_slots


@cache
def forward(name):
    made, numbers, batch = model(name), read(f"{name}.train"), read("train_batch")
    features = torch.stack([batch["target_hidden_states_all"][:, i + 1] for i in made.config.target_layer_ids], 2)
    real = numbers["block_keep_mask"].bool()
    blocks = pack_blocks(batch["input_ids"], batch["loss_mask"], numbers["anchor_positions"], real, made.config)
    return made, blocks, supervised_slots(made, blocks, features, batch["target_last_hidden_states"])


def alphas(name):
    return Alphas(**read_json("train_losses")[name]["alphas"])


@pytest.mark.parametrize("name", MODELS)
def test_slots(name):
    numbers = read(f"{name}.train")
    _, blocks, slots = forward(name)
    assert torch.equal(blocks.supervised, numbers["eval_mask"].bool())
    assert torch.equal(slots.labels, numbers["target_ids"])
    torch.testing.assert_close(slots.draft_logits.detach()[:, COLUMNS], numbers["draft_logits"], atol=5e-5, rtol=0)
    if "target_logits" in numbers:
        torch.testing.assert_close(slots.target_logits[:, COLUMNS], numbers["target_logits"], atol=5e-5, rtol=0)
    if name == "dflash":
        assert slots.confidence_logits is None
    else:
        golden = numbers["confidence_logits"]
        torch.testing.assert_close(slots.confidence_logits.detach(), golden, atol=1e-5, rtol=0)
    acceptance = loss_sums(slots, position_weights("code", 5))[1]
    torch.testing.assert_close(acceptance, numbers["accept_rate"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_losses(name):
    golden = read_json("train_losses")[name]
    _, _, slots = forward(name)
    sums, _ = loss_sums(slots, position_weights("code", 5))
    for term in ("ce", "l1", "confidence"):
        if getattr(alphas(name), term):
            assert float(getattr(sums, term).detach()) == pytest.approx(golden[f"{term}_loss_num"], rel=1e-5)
            assert float(sums.weight) == pytest.approx(golden[f"{term}_loss_den"], rel=1e-5)
    for kind, key in {
        "code": "total",
        "block": "total_with_gamma_equal_block_size_5",
        "none": "total_with_no_decay",
    }.items():
        total = loss_sums(slots, position_weights(kind, 5))[0].total(alphas(name))
        assert float(total.detach()) == pytest.approx(golden[key], rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    golden, numbers = read_json("train_losses")[name], read(f"{name}.train")
    made, _, slots = forward(name)
    loss = loss_sums(slots, position_weights("code", 5))[0].total(alphas(name))
    trained = {key: p for key, p in made.named_parameters() if p.requires_grad}
    gradients = dict(zip(trained, torch.autograd.grad(loss, trained.values(), retain_graph=True), strict=True))
    assert gradients.keys() == golden["grad_norms"].keys(), "embedding and head are frozen, all else is trained"
    for key, norm in golden["grad_norms"].items():
        assert float(gradients[key].norm()) == pytest.approx(norm, rel=1e-4)
    compared = [key for key in numbers if key.startswith("grad.")]
    assert compared
    for key in compared:
        largest = float(numbers[key].abs().max())
        torch.testing.assert_close(gradients[key.removeprefix("grad.")], numbers[key], atol=1e-4 * largest, rtol=0)


def test_sums_of_parts_are_the_sums_of_the_whole():
    """What accumulated batches and several processes rely on: numerators and weights add, the division comes last."""
    _, _, slots = forward("dspark_rnn")
    weights = position_weights("code", 5)
    parts = [type(slots)(*(x[i::2] for x in slots)) for i in (0, 1)]
    one, two = (loss_sums(part, weights)[0] for part in parts)
    whole = loss_sums(slots, weights)[0]
    torch.testing.assert_close(one.plus(two).total(Alphas()), whole.total(Alphas()))
    split = one.total(Alphas(), weight=whole.weight) + two.total(Alphas(), weight=whole.weight)
    torch.testing.assert_close(split, whole.total(Alphas()))


def test_position_weights_have_four_names():
    assert position_weights("block", 2).tolist() == pytest.approx([1.0, 0.6065307])
    assert position_weights("code", 3).tolist() == pytest.approx([1.0, 0.7788008, 0.6065307])
    assert position_weights("linear", 4).tolist() == [1.0, 0.75, 0.5, 0.25]
    assert position_weights("none", 2).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="block, code, linear or none, got 'paper'"):
        position_weights("paper", 5)
