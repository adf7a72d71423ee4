"""Model folders: what loads, bit for bit as transformers loads it, and what is refused with a sentence that helps."""

import json
import shutil

import pytest
import torch
from engine.models import edit_json, reference_model, save_model, text_target
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from companion.drafters.load import load_drafter
from companion.drafters.lookup import LookupDrafter
from companion.engine.load import find_model, load_target
from companion.provenance import file_hash

TOKENS = [5, 9, 200, 31, 7]


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path)
    return tmp_path


def reference_logits(path):
    with torch.no_grad():
        return Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32)(torch.tensor([TOKENS])).logits[0]


@pytest.mark.parametrize(
    ("options", "files"),
    [({}, 1), ({"shards": "60KB"}, 5), ({"tie_word_embeddings": True}, 1)],
    ids=["one file", "shards", "tied"],
)
def test_a_folder_of_transformers_loads_unmodified(tmp_path, options, files):
    save_model(tmp_path, **options)
    assert len(list(tmp_path.glob("*.safetensors"))) >= files
    target = load_target(str(tmp_path))
    logits = target.logits(TOKENS)
    torch.testing.assert_close(logits[:, :261], reference_logits(tmp_path)[:, :261], atol=2e-5, rtol=2e-5)
    assert bool((logits[:, 261:] == float("-inf")).all()), "rows beyond the tokenizer's 261 ids"
    assert target.name == tmp_path.name
    assert target.tags.open == target.tokenizer.convert_tokens_to_ids("<think>")
    assert sorted(target.source["weights_sha256"]) == sorted(p.name for p in tmp_path.glob("*.safetensors"))


def test_a_tied_configuration_with_a_head_of_its_own_keeps_the_head(folder):
    """As transformers: a head in the file that differs from the embedding is not thrown away."""
    edit_json(folder / "config.json", tie_word_embeddings=True)
    expected = reference_logits(folder)
    torch.testing.assert_close(
        load_target(str(folder)).logits(TOKENS)[:, :261], expected[:, :261], atol=2e-5, rtol=2e-5
    )


def test_an_untied_model_without_a_head_is_refused(tmp_path):
    save_model(tmp_path, tie_word_embeddings=True)
    edit_json(tmp_path / "config.json", tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"lack 'lm_head.weight': this is not a complete Qwen3 checkpoint"):
        load_target(str(tmp_path))


def test_dtype_and_provenance(folder):
    target = load_target(str(folder), dtype=torch.bfloat16)
    assert target.embedding.dtype == torch.bfloat16
    assert target.source["dtype"] == "bfloat16"
    assert target.source["weights_sha256"]["model.safetensors"] == file_hash(folder / "model.safetensors")
    assert load_target(str(folder)).embedding.dtype == torch.float32


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [3, 4]}, {"eos_token_id": 5}, {3, 4}),
        ({"eos_token_id": 3}, {}, {3}),
        ({"eos_token_id": 0}, {"eos_token_id": 5}, {0}),
        (None, {"eos_token_id": 5}, {5}),
        (None, {"eos_token_id": None}, {258}),
    ],
)
def test_stop_tokens_are_found_as_transformers_finds_them(folder, generation, config, expected):
    (folder / "generation_config.json").unlink(missing_ok=True)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    edit_json(folder / "config.json", **config)
    assert load_target(str(folder)).eos_token_ids == expected


def test_a_folder_without_a_tokenizer_takes_token_ids_only(folder):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    target = load_target(str(folder))
    assert target.usable_vocab == 272
    with pytest.raises(ValueError, match="pass token ids"):
        target.render("hello")
    with pytest.raises(ValueError, match="a draft model must share the target's tokenizer"):
        load_drafter(str(folder), text_target())


@pytest.mark.parametrize("name", ["tiny-qwen4", "Qwen3-0.6B", "a/b/c", "./nowhere", "/nowhere", "~/nowhere"])
def test_an_unknown_target_is_refused_with_what_there_is(name):
    with pytest.raises(ValueError, match=rf"no model '{name}'.*tiny-qwen3.*existing folder, or a hub id such as Qwen/"):
        load_target(name)


def test_a_hub_model_that_cannot_be_had_is_refused(monkeypatch):
    def offline(*args, **options):
        raise OSError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(
        ValueError, match=r"cannot get 'Qwen/Qwen3-0.6B' from the hub \(no route to the hub\).*local folder"
    ):
        load_target("Qwen/Qwen3-0.6B")


def test_an_embedded_model_outside_a_checkout_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("COMPANION_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="run from a checkout, or set COMPANION_DATA"):
        load_target("tiny-qwen3")


def test_a_data_folder_may_be_elsewhere(monkeypatch, tmp_path):
    save_model(tmp_path / "tiny-qwen3")
    monkeypatch.setenv("COMPANION_DATA", str(tmp_path))
    assert find_model("tiny-qwen3").path == tmp_path / "tiny-qwen3"
    assert load_target().name == "tiny-qwen3"


def test_an_unknown_drafter_is_refused_with_what_there_is():
    with pytest.raises(ValueError, match=r"no drafter 'looker' \('lookup', 'draft', 'none', .*folder, hub id\)"):
        load_drafter("looker", text_target())
    with pytest.raises(ValueError, match="use drafter 'none' for plain decoding"):
        load_drafter("lookup", text_target(), max_depth=0)
    assert load_drafter("none", text_target()) is None
    assert isinstance(load_drafter("lookup", text_target(), max_depth=3), LookupDrafter)


def remove_weights(folder):
    (folder / "model.safetensors").unlink()


def pickle_only(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    remove_weights(folder)


def cut(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def empty(folder):
    (folder / "model.safetensors").write_bytes(b"")


def no_config(folder):
    (folder / "config.json").unlink()


def broken_config(folder):
    (folder / "config.json").write_text("{")


def missing_shard(folder):
    shutil.rmtree(folder)
    save_model(folder, shards="60KB")
    next(folder.glob("model-00002*")).unlink()


def empty_index(folder):
    (folder / "model.safetensors.index.json").write_text("{}")


def lost_tensor(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")


def fewer_layers(folder):
    edit_json(folder / "config.json", num_hidden_layers=2, layer_types=["full_attention"] * 2)


def more_layers(folder):
    edit_json(folder / "config.json", num_hidden_layers=4, layer_types=["full_attention"] * 4)


def other_heads(folder):
    edit_json(folder / "config.json", num_attention_heads=8, num_key_value_heads=4, head_dim=16)


def other_size(folder):
    edit_json(folder / "config.json", vocab_size=300)


def broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")


DAMAGE = {
    remove_weights: "holds no weights: expected model.safetensors beside config.json",
    pickle_only: "pickled weights only .pytorch_model.bin.; convert them to safetensors",
    cut: "is not a whole safetensors file .*fetch or train it again",
    empty: "is not a whole safetensors file .*fetch or train it again",
    no_config: "has no config.json: a model folder holds config.json",
    broken_config: "config.json is not JSON",
    missing_shard: "lacks the weight file model-00002.* that its index names; fetch it again",
    empty_index: "names no weights; fetch the model again",
    lost_tensor: "lack 'model.layers.1.mlp.up_proj.weight': this is not a complete Qwen3 checkpoint",
    fewer_layers: "has weights beyond the 2 layers of its configuration",
    more_layers: "lack 'model.layers.3.self_attn.q_norm.weight'",
    other_heads: "its configuration says .*weights and config.json do not belong together",
    other_size: r"model.embed_tokens.weight of .* has shape \(272, 48\), its configuration says \(300, 48\)",
    broken_tokenizer: "no tokenizer that transformers can load .*; fetch it again",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_a_damaged_folder_is_refused_in_one_sentence(folder, damage):
    damage(folder)
    with pytest.raises(ValueError, match=DAMAGE[damage]) as caught:
        load_target(str(folder))
    assert "\n" not in str(caught.value)


def test_loading_never_runs_code_from_the_folder(folder):
    """Remote code is not asked for, and pickles beside good weights are not opened."""
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text("raise SystemExit('code from the folder ran')")
    torch.testing.assert_close(
        load_target(str(folder)).logits(TOKENS)[:, :261],
        reference_model(vocab_size=272)(torch.tensor([TOKENS])).logits[0, :, :261].detach(),
        atol=2e-5,
        rtol=2e-5,
    )


@pytest.mark.parametrize("dtype", ["float32", torch.int64])
def test_a_dtype_that_is_none_is_refused(dtype):
    with pytest.raises(ValueError, match=r"dtype must be a floating-point torch.dtype such as torch.float32, got"):
        load_target("tiny-qwen3", dtype=dtype)


def test_a_device_that_holds_no_numbers_is_refused():
    with pytest.raises(ValueError, match=r"device 'meta' cannot be used here .* give 'cpu', or 'cuda' on a GPU"):
        load_target("tiny-qwen3", device="meta")


def test_a_drafter_needs_a_loaded_target():
    for name in ("lookup", "draft", None):
        with pytest.raises(ValueError, match="target must be a loaded model, got 'tiny-qwen3'; load it with load_tar"):
            load_drafter(name, "tiny-qwen3")
