"""True shapes without weights: they decode, and nothing that comes out of them can be taken for a measurement."""

import json

import pytest
import torch
from engine.models import reference_model
from typer.testing import CliRunner

from companion.cli import app
from companion.drafters.dspark.config import published_config, spread_layers
from companion.drafters.load import load_drafter
from companion.engine.generate import generate
from companion.engine.load import load_target
from companion.engine.random_weights import RandomWeights, qwen3_weight_shapes
from companion.engine.shape import SIZES, Qwen3Shape, qwen3_config, weight_count
from companion.phase.origin import revision


def test_shapes_are_those_of_transformers():
    model = reference_model(tie_word_embeddings=True)
    named = {key: tuple(w.shape) for key, w in model.state_dict().items() if key != "lm_head.weight"}
    assert qwen3_weight_shapes(model.config.to_dict()) == named
    untied = reference_model()
    assert qwen3_weight_shapes(untied.config.to_dict()) == {k: tuple(w.shape) for k, w in untied.state_dict().items()}


@pytest.mark.parametrize("name", SIZES)
def test_every_size_has_as_many_weights_as_its_shapes_say(name):
    shapes = qwen3_weight_shapes(qwen3_config(name))
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == weight_count(qwen3_config(name))


def test_a_tensor_depends_on_seed_and_name_alone():
    shapes = {"a.weight": (40, 90), "b.weight": (40, 90), "norm.weight": (7,), "proj.bias": (2,)}
    one, other = (RandomWeights(shapes, seed, torch.device("cpu"), torch.float32) for seed in (0, 1))
    assert torch.equal(one["a.weight"], one["a.weight"])
    assert not torch.equal(one["a.weight"], one["b.weight"])
    assert not torch.equal(one["a.weight"], other["a.weight"])
    assert float(one["a.weight"].std()) == pytest.approx(90**-0.5, rel=0.1)
    assert one["norm.weight"].tolist() == [1.0] * 7
    assert one["proj.bias"].tolist() == [0.0] * 2
    assert list(one) == list(shapes)


@pytest.fixture(scope="module")
def target():
    return load_target("tiny-qwen3", random_weights=True)


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_decodes_and_says_that_its_weights_are_random(target, kind, temperature):
    drafter = load_drafter(kind, target, random_weights=True)
    result = generate(target, drafter, "What is 3 + 4?", temperature=temperature, max_new_tokens=12, stop_token_ids=[])
    plain = generate(target, None, "What is 3 + 4?", temperature=0.0, max_new_tokens=12, stop_token_ids=[])
    assert len(result.tokens) == 12
    assert temperature or result.tokens == plain.tokens
    record = result.rounds.provenance
    assert record["target"]["name"] == "tiny-qwen3 (random weights)"
    assert record["target"]["random_weights"] == {"seed": 0}
    assert record["drafter"]["name"] == f"{kind} (random weights)"
    assert not record["target"]["weights_sha256"]


def test_no_measured_run_can_be_made_of_it(target):
    with pytest.raises(ValueError, match=r"tiny-qwen3 .random weights. measures nothing but time and memory: load the"):
        revision(target.source)


def test_a_name_of_the_hub_needs_neither_network_nor_folder(monkeypatch):
    """A size of its own, small enough for a test; without a tokenizer it takes token ids."""
    monkeypatch.setitem(SIZES, "Qwen/Qwen3-micro", (64, 2, 8, 96, True))
    target = load_target("Qwen/Qwen3-micro", random_weights=True)
    assert target.parameters == weight_count(qwen3_config("Qwen/Qwen3-micro"))
    assert target.name == "Qwen/Qwen3-micro (random weights)"
    assert target.tokenizer is None
    assert target.eos_token_ids == {151_645}
    assert len(generate(target, None, [1, 2, 3], max_new_tokens=2, stop_token_ids=[]).tokens) == 2


def test_the_drafter_has_the_published_shapes():
    """From the configurations in its authors' code."""
    config = published_config(Qwen3Shape.from_config(qwen3_config("Qwen/Qwen3-4B")), 9728)
    assert (config.shape.layers, config.block_size, config.markov_rank) == (5, 7, 256)
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert spread_layers(40) == (1, 10, 19, 28, 37)
    assert config.confidence_head
    assert (config.shape.hidden, config.mlp_width, config.mask_token_id) == (2560, 9728, 151_669)


def test_other_drafters_are_not_drawn(target):
    with pytest.raises(ValueError, match=r"random weights are drawn for 'dspark' and 'dflash'.*; got 'eagle3'"):
        load_drafter("eagle3", target, random_weights=True)


def test_the_command_says_so_too():
    told = ["generate", "--prompt", "Hi", "--random-weights", "--drafter", "dspark", "--max-new-tokens", "3"]
    done = CliRunner().invoke(app, told)
    assert done.exit_code == 0, done.output
    assert "tiny-qwen3 (random weights), so the text means nothing" in done.stderr
    assert json.loads(CliRunner().invoke(app, [*told, "--json"]).stdout)["random_weights"] is True
