"""Checkpoint folders of both layouts: what loads, what is written, and what is refused with a sentence that helps."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from drafters.golden import ALL, MODELS, drafter, folder, model, read_json, target_of
from engine.models import decode_ids, edit_json, reference_model
from safetensors.torch import load_file, save_file

from companion.drafters.dspark.checkpoint import load_dspark, save_dspark
from companion.drafters.dspark.config import DSparkConfig
from companion.drafters.dspark.drafter import DSparkDrafter
from companion.drafters.dspark.model import DSparkModel
from companion.drafters.load import load_drafter
from companion.engine.load import find_model, load_target
from companion.protocols import Context, Sampling

HEADS = {"embed_tokens.weight", "lm_head.weight"}


def load(path, name="dspark_vanilla", **options):
    return load_drafter(str(path), target_of(name), **options)


@pytest.fixture
def copy(tmp_path):
    """A folder of the vanilla drafter, to be damaged."""
    path = tmp_path / "drafter"
    shutil.copytree(folder("dspark_vanilla"), path)
    return path


def logits(made):
    """Those of one block after made-up features."""
    c = Context(0, list(range(10)), Sampling(1.0), None)
    made.observe([c], [torch.randn(9, len(made.taps), 64, generator=torch.Generator().manual_seed(0))])
    slots = made._read_features([c])
    out = made._backbone.hidden([9], slots, made._slots.cache) @ made._head
    made.reset(0)
    return out


@pytest.mark.parametrize("name", ALL)
def test_what_is_saved_is_what_was_loaded(name, tmp_path):
    original = model(name)
    save_dspark(original, tmp_path / "again")
    again = load_dspark(find_model(str(tmp_path / "again")), target_of(name))
    assert again.config == original.config
    ours, stored = load_file(tmp_path / "again/model.safetensors"), load_file(folder(name) / "model.safetensors")
    assert ours.keys() == stored.keys()
    assert all(torch.equal(ours[key], stored[key]) for key in stored)
    written, golden = json.loads((tmp_path / "again/config.json").read_text()), read_json("configs")[name]
    differing = {key for key in written if written[key] != golden.get(key)}
    assert not differing, "DeepSpec's own loader reads these keys"
    assert not list((tmp_path / "again").glob("*.partial"))


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_files(name, tmp_path):
    save_dspark(model(name), tmp_path, dtype=torch.float16)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float16"
    assert {w.dtype for w in load_file(tmp_path / "model.safetensors").values()} == {torch.float16}
    torch.testing.assert_close(logits(load(tmp_path)), logits(drafter(name)), atol=0.05, rtol=0.02)


def test_embedding_and_head_are_the_targets_tensors_where_they_are_the_same():
    target, loaded = target_of("dspark_vanilla"), model("dspark_vanilla")
    assert loaded.embed_tokens.weight.data_ptr() == target.embedding.data_ptr()
    assert loaded.lm_head.weight.data_ptr() == target.head.data_ptr()
    assert DSparkDrafter(loaded)._backbone.embedding.data_ptr() == target.embedding.data_ptr()


def test_another_embedding_is_kept(copy):
    weights = load_file(copy / "model.safetensors")
    weights["embed_tokens.weight"] += 0.5
    save_file(weights, copy / "model.safetensors")
    torch.testing.assert_close(load(copy)._backbone.embedding, weights["embed_tokens.weight"])


def test_a_plain_rope_theta_and_a_checkpoint_without_defaults(copy):
    expected = logits(load(copy))
    config = json.loads((copy / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    del config["confidence_head_with_markov"], config["num_target_layers"]
    (copy / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits(load(copy)), expected)


def z_lab(name, path):
    """A golden DFlash in z-lab's layout: no embedding and head, one mask more than predictions."""
    golden = read_json("configs")[name]
    config = {k: v for k, v in golden.items() if k not in ("mask_token_id", "target_layer_ids", "markov_rank")}
    config |= {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "dflash_config": {"mask_token_id": golden["mask_token_id"], "target_layer_ids": golden["target_layer_ids"]},
        "tie_word_embeddings": True,
    }
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    weights = load_file(folder(name) / "model.safetensors")
    save_file({key: w for key, w in weights.items() if key not in HEADS}, path / "model.safetensors")
    return path


def test_z_labs_layout_predicts_at_the_masks_only(tmp_path):
    """Same weights, same block: the prediction at the anchor is not taken, and the others shift by one."""
    made, deepspec = load(z_lab("dflash", tmp_path / "z")), drafter("dflash")
    assert (made.max_depth, deepspec.max_depth) == (4, 5)
    assert torch.equal(made._head, target_of("dflash").head.T)
    torch.testing.assert_close(logits(made), logits(deepspec)[:, 1:])
    prompt = read_json("e2e")["prompts"][1]
    greedy = read_json("e2e")["runs"]["dflash"]["temperature0"][1]["new_token_ids"]
    (request,) = decode_ids(target_of("dflash"), made, [prompt], 20)
    assert request.emitted == greedy[:20]
    assert max(row.drafted for row in request.rounds) == 4
    with pytest.raises(ValueError, match="proposes at most 4 tokens, and max_depth is 5"):
        load(tmp_path / "z", max_depth=5)


def test_z_labs_layout_is_written_as_it_was_read(tmp_path):
    z_lab("dflash", tmp_path / "z")
    read = load_dspark(find_model(str(tmp_path / "z")), target_of("dflash"))
    save_dspark(read, tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")
    stored = load_file(tmp_path / "z/model.safetensors")
    assert again.keys() == stored.keys()
    assert torch.equal(logits(load(tmp_path / "again")), logits(load(tmp_path / "z")))


def test_block_size_may_stand_inside_dflash_config(tmp_path):
    z_lab("dflash", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["dflash_config"]["block_size"] = config.pop("block_size")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path).max_depth == 4


def test_layouts_of_every_kind_round_trip():
    base = model("dspark_vanilla").config
    for changes in (
        {},
        {"markov_head_type": "rnn"},
        {"confidence_reads_markov": False},
        {"confidence_head": False},
        {"target_layer_ids": (-1, 1)},
        {"anchor_predicts": False},
        {"markov_rank": 0, "confidence_reads_markov": False},
        {"own_embeddings": False, "anchor_predicts": False, "markov_rank": 0, "confidence_head": False},
    ):
        config = replace(base, **changes)
        again = DSparkConfig.from_dict(json.loads(json.dumps(config.to_dict())))
        ignored = {"markov_head_type": "vanilla", "confidence_reads_markov": False} if not config.markov_rank else {}
        if not config.confidence_head:
            ignored["confidence_reads_markov"] = again.confidence_reads_markov
        assert again == replace(config, **ignored)


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_other_shapes(head, tmp_path):
    """Layer ids with the embedding among them, a confidence head that reads h_k alone, other heads and sizes."""
    reference = reference_model(sharpness=2.0)
    reference.save_pretrained(tmp_path / "target")
    target = load_target(str(tmp_path / "target"))
    config = DSparkConfig.for_target(
        target.shape,
        layers=1,
        mlp_width=40,
        block_size=3,
        target_layer_ids=(-1, 0, 1),
        mask_token_id=63,
        markov_rank=4,
        markov_head_type=head,
        confidence_head=True,
        confidence_reads_markov=False,
    )
    torch.manual_seed(1)
    made = DSparkModel(config)
    made.embed_tokens.weight.data.copy_(target.embedding)
    made.lm_head.weight.data.copy_(target.head)
    save_dspark(made, tmp_path / "drafter")
    loaded = load_drafter(str(tmp_path / "drafter"), target)
    (plain,) = decode_ids(target, None, [[5, 7, 9]], 20)
    (spoken,) = decode_ids(target, loaded, [[5, 7, 9]], 20)
    assert spoken.emitted == plain.emitted
    assert all(len(row.confidence or []) == row.drafted for row in spoken.rounds)


def test_z_labs_layout_has_no_place_for_heads():
    with pytest.raises(ValueError, match="plain DFlash: no Markov head, no confidence head, no prediction at"):
        replace(model("dspark_vanilla").config, own_embeddings=False, anchor_predicts=False)


def test_a_model_of_random_weights_becomes_a_drafter():
    config = replace(model("dspark_rnn").config, block_size=7)
    assert DSparkDrafter(DSparkModel(config)).max_depth == 7


def edit(**changes):
    return lambda path: edit_json(path / "config.json", **changes)


def weight(change):
    def damage(path):
        weights = load_file(path / "model.safetensors")
        change(weights)
        save_file(weights, path / "model.safetensors")

    return damage


def cut(path):
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def corrupt(path):
    data = bytearray((path / "model.safetensors").read_bytes())
    data[8:40] = b"x" * 32
    (path / "model.safetensors").write_bytes(bytes(data))


def pickled(path):
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


DAMAGE = {
    "hidden size": (edit(hidden_size=96), "a hidden size of 96 and target_tiny one of 64: it was made for another"),
    "vocabulary": (edit(vocab_size=504), "a vocabulary of 504 tokens and target_tiny one of 503: it was made for"),
    "target depth": (edit(num_target_layers=36), "reads a target of 36 layers and target_tiny has 4: it was made for"),
    "layer id": (edit(target_layer_ids=[0, 7]), "reads the output of layer 7, and target_tiny has layers 0 to 3"),
    "layer id below": (edit(target_layer_ids=[-2, 1]), "reads the output of layer -2"),
    "last layer": (edit(target_layer_ids=[1, 3]), "the output of the last layer .3. of target_tiny, which is not"),
    "no layers": (edit(target_layer_ids=[]), "target_layer_ids is empty: a drafter reads"),
    "mask id": (edit(mask_token_id=503), "mask token 503 is outside the vocabulary of 503 tokens"),
    "negative mask id": (edit(mask_token_id=-1), "mask token -1 is outside the vocabulary"),
    "block size": (edit(block_size=0), "block_size is 0, which leaves nothing to predict: it must be at least 1"),
    "rank": (edit(markov_rank=-1), "markov_rank must be >= 0, got -1"),
    "head type": (edit(markov_head_type="lstm"), "markov_head_type must be vanilla, gated or rnn, got 'lstm'"),
    "confidence": (edit(markov_rank=0, confidence_head_with_markov=True), "markov_rank is 0: there is none"),
    "no block size": (edit(block_size=None), "no number 'block_size': expected a whole number, found None"),
    "layer ids as text": (edit(target_layer_ids=["0", "2"]), "target_layer_ids .* list of whole numbers, found"),
    "endless block": (edit(block_size=10**5), "block_size is 100000, more than the 512 positions"),
    "rank as text": (edit(markov_rank="16"), "no number 'markov_rank': expected a whole number, found '16'"),
    "architectures": (edit(architectures=5), "architectures in its config.json must be a list of names, found 5"),
    "model type": (edit(model_type="gemma4"), "of type 'gemma4', and this engine computes 'qwen3' only"),
    "sliding": (edit(layer_types=["full_attention", "sliding_attention"]), "sliding-window attention"),
    "yarn": (edit(rope_parameters={"rope_type": "yarn", "rope_theta": 1e6}), "rope_type 'yarn' is not supported"),
    "causal": (edit(is_causal=True), "causal inside its block"),
    "missing": (weight(lambda w: w.pop("layers.1.mlp.up_proj.weight")), "lack 'layers.1.mlp.up_proj.weight', which"),
    "no head": (weight(lambda w: w.pop("lm_head.weight")), "lack 'lm_head.weight', which its config.json asks for"),
    "surplus": (weight(lambda w: w.update({"extra.weight": torch.ones(1)})), "'extra.weight' that its config.json has"),
    "rank 8": (
        edit(markov_rank=8),
        r"markov_w1.weight .* shape \(503, 16\), its config.json says \(503, 8\): weights and",
    ),
    "rnn head": (edit(markov_head_type="rnn"), "lack 'markov_head.joint_proj.bias'"),
    "NaN": (weight(lambda w: w["confidence_head.proj.bias"].fill_(torch.nan)), "bias of .* holds NaN or infinity"),
    "int8": (
        weight(lambda w: w.update({"fc.weight": w["fc.weight"].char()})),
        "fc.weight of .* is stored as int8: only",
    ),
    "cut": (cut, "is not a whole safetensors file .*fetch or train it again"),
    "corrupt": (corrupt, "is not a whole safetensors file"),
    "pickle": (pickled, "pickled weights only .pytorch_model.bin.; convert them to safetensors"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "holds no weights: expected model.safetensors"),
    "no config": (lambda path: (path / "config.json").unlink(), "no drafter .* has no config.json"),
    "broken config": (lambda path: (path / "config.json").write_text("{"), "config.json is not JSON"),
    "list for a config": (lambda path: (path / "config.json").write_text("[]"), "holds list and not a JSON object"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_or_foreign_folder_is_refused_in_one_sentence(copy, what):
    damage, sentence = DAMAGE[what]
    damage(copy)
    with pytest.raises(ValueError, match=sentence) as caught:
        load(copy)
    assert "\n" not in str(caught.value)


def test_what_plain_dflash_does_not_have_is_refused(tmp_path):
    z_lab("dflash", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["dflash_config"]["selector_rank"] = 256
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="asks for 'selector_rank', which plain DFlash does not have"):
        load(tmp_path)


def test_loading_never_runs_code_from_the_folder(copy):
    (copy / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    edit_json(copy / "config.json", auto_map={"AutoModel": "evil.Model"})
    (copy / "evil.py").write_text("raise SystemExit('code from the folder ran')")
    assert torch.equal(logits(load(copy)), logits(drafter("dspark_vanilla")))
