"""Eagle3 checkpoints: DeepSpec's layout read and written, and what must be refused."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from drafters.eagle3_golden import target, write_folder
from engine.models import edit_json, ours, reference_model
from safetensors.torch import load_file, save_file

from companion.drafters.eagle3.checkpoint import load_eagle3, save_eagle3
from companion.drafters.eagle3.config import Eagle3Config
from companion.drafters.eagle3.drafter import Eagle3Drafter
from companion.drafters.load import load_drafter
from companion.engine.load import ModelFolder


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "eagle3")


def edit_weights(folder, change):
    file = folder.path / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


def test_what_is_saved_is_loaded_again(folder, tmp_path):
    model = load_eagle3(folder, target())
    save_eagle3(model, tmp_path / "again")
    before, after = load_file(folder.path / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again = load_eagle3(ModelFolder(tmp_path / "again", "again"), target())
    assert again.config == model.config
    written, original = (json.loads((f / "config.json").read_text()) for f in (tmp_path / "again", folder.path))
    assert {key: original[key] for key in written} == written, "config.json says something else than it did"


def test_half_precision_on_disk_is_full_precision_in_use(folder, tmp_path):
    model = load_eagle3(folder, target())
    save_eagle3(model, tmp_path / "half", torch.float16)
    assert load_file(tmp_path / "half" / "model.safetensors")["fc.weight"].dtype == torch.float16
    half = load_eagle3(ModelFolder(tmp_path / "half", "half"), target())
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    torch.testing.assert_close(half.fc.weight, model.fc.weight, atol=1e-3, rtol=1e-3)


def test_the_targets_own_embedding_and_head_are_shared(folder):
    model = load_eagle3(folder, target())
    assert model.embed_tokens.weight.data_ptr() == target().embedding.data_ptr()
    assert model.lm_head.weight.data_ptr() == target().head.data_ptr()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name, _ in model.named_parameters()} - trained == {"embed_tokens.weight", "lm_head.weight"}
    edit_weights(folder, lambda w: w.update({"lm_head.weight": w["lm_head.weight"] + 1}))
    other = load_eagle3(folder, target())
    torch.testing.assert_close(other.lm_head.weight, target().head + 1)


def test_a_plain_rope_theta_is_read_too(folder):
    record = json.loads((folder.path / "config.json").read_text())
    record["rope_theta"] = record.pop("rope_parameters")["rope_theta"]
    (folder.path / "config.json").write_text(json.dumps(record))
    assert load_eagle3(folder, target()).config.shape.rope_theta == 1e6


def test_load_drafter_knows_an_eagle3_folder(folder):
    short = copy.copy(target())
    short.usable_vocab = 500
    drafter = load_drafter(str(folder.path), short)
    deeper = load_drafter(str(folder.path), short, max_depth=9, proposal="greedy")
    assert isinstance(drafter, Eagle3Drafter)
    assert (drafter.name, drafter.max_depth, drafter.taps, drafter.usable_vocab) == ("eagle3", 5, (0, 1, 2), 500)
    assert not drafter.deterministic
    assert (deeper.max_depth, deeper.deterministic) == (9, True)


def another(**changes):
    settings = {"vocab_size": 503, "hidden_size": 64, "num_hidden_layers": 4}
    return ours(reference_model(0, **(settings | changes)), name="another")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "hidden size of 64 and another one of 48: it was made for another target"),
        ({"vocab_size": 64}, "vocabulary of 503 tokens and another one of 64"),
        ({"num_hidden_layers": 5}, "a target of 4 layers and another has 5"),
    ],
)
def test_a_drafter_of_another_target_is_refused(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        load_eagle3(folder, another(**changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_layer_ids": [0, 1, 4]}, "reads the output of layer 4, and another has layers 0 to 3"),
        ({"target_layer_ids": [-2, 1, 2]}, "reads the output of layer -2"),
        ({"target_layer_ids": [0, 1, 3]}, r"reads the output of the last layer \(3\) of another, which is not offered"),
        ({"target_layer_ids": []}, "target_layer_ids is empty"),
        ({"target_layer_ids": [0, "two", 2]}, "target_layer_ids .* must be a list of whole numbers"),
        ({"target_layer_ids": 5}, "target_layer_ids .* must be a list of whole numbers, found 5"),
        ({"target_layer_ids": [0, 1]}, "fc.weight of golden-eagle3 has shape"),
        ({"intermediate_size": None}, "no number 'intermediate_size': expected a whole number >= 1, found None"),
        ({"intermediate_size": -1}, "no number 'intermediate_size'"),
        ({"ttt_length": "7"}, "no number 'ttt_length': expected a whole number, found '7'"),
        ({"step_loss_decay": "x"}, "step_loss_decay of the configuration must be a finite number above 0, found 'x'"),
        ({"num_hidden_layers": 2}, "an Eagle3 drafter has one layer, its configuration says 2"),
        ({"draft_vocab_size": 32}, "reduced vocabulary of 32 tokens"),
        ({"ttt_length": 0}, "ttt_length must be at least 1, got 0"),
        ({"model_type": "llama"}, "of type 'llama'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type 'yarn' is not supported"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(folder, change, message):
    edit_json(folder.path / "config.json", **change)
    with pytest.raises(ValueError, match=message):
        load_eagle3(folder, another())


def grow(key):
    return lambda w: w.update({key: torch.cat([w[key], w[key]])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("layers.0.hidden_norm.weight"), "lack 'layers.0.hidden_norm.weight'"),
        (lambda w: w.update({"d2t": torch.zeros(3)}), "has a weight 'd2t'"),
        (lambda w: w["fc.weight"].fill_(torch.inf), "fc.weight of golden-eagle3 holds NaN or infinity"),
        (lambda w: w.update({"fc.weight": w["fc.weight"].to(torch.int8)}), "fc.weight of .* is stored as int8"),
        (grow("norm.weight"), r"norm.weight of golden-eagle3 has shape \(128,\), its config.json says \(64,\)"),
        (grow("embed_tokens.weight"), r"embed_tokens.weight of golden-eagle3 has shape \(1006, 64\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder, change, message):
    edit_weights(folder, change)
    with pytest.raises(ValueError, match=message):
        load_eagle3(folder, target())


def test_a_truncated_file_and_a_pickle_are_refused(folder):
    file = folder.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_drafter(str(folder.path), target())
    file.unlink()
    (folder.path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="holds pickled weights only"):
        load_drafter(str(folder.path), target())


def test_the_numbers_of_a_configuration_come_back(folder):
    config = Eagle3Config.from_dict(folder.config())
    assert (config.target_layer_ids, config.ttt_length, config.step_loss_decay) == ((0, 1, 2), 5, 0.8)
    assert Eagle3Config.from_dict(config.to_dict()) == config
