"""Qwen3 as it lies on the hub: every size's layout in both dtypes, pinned and offline, and what is said if it fails."""

import json

import huggingface_hub
import pytest
import torch
from engine.hub import COMMIT, hub_cache, hub_folder
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from transformers import Qwen3ForCausalLM

from companion.drafters.load import load_drafter
from companion.engine import memory
from companion.engine.generate import generate
from companion.engine.load import load_target
from companion.engine.shape import SIZES, Qwen3Shape, cache_bytes, qwen3_config, weight_count

TOKENS = [5, 9, 200, 31, 7]
LAYOUTS = {
    "0.6B: tied, the head in the file": {"tied": True, "twice": True},
    "1.7B and 4B: tied": {"tied": True, "shards": True},
    "8B and 14B: untied": {"tied": False, "shards": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_computes_what_transformers_computes(tmp_path, layout, dtype):
    hub_folder(tmp_path, dtype=torch.bfloat16, **LAYOUTS[layout])
    target = load_target(str(tmp_path), dtype=dtype)
    with torch.no_grad():
        reference = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        expected = reference(torch.tensor([TOKENS])).logits[0].float()
    ours = target.logits(TOKENS)
    tolerance = 2e-5 if dtype is torch.float32 else 0.06  # logits lie around 1 and bf16 keeps 8 bits
    torch.testing.assert_close(ours[:, :261], expected[:, :261], atol=tolerance, rtol=tolerance)
    assert bool((ours[:, 261:] == float("-inf")).all()), "rows beyond the tokenizer's 261 ids are padding"
    assert (target.head is target.embedding) == LAYOUTS[layout]["tied"], "a tied head takes memory once"
    assert target.parameters == weight_count(json.loads((tmp_path / "config.json").read_text()))
    assert target.eos_token_ids == {258, 256}
    assert target.source["dtype"] == str(dtype).removeprefix("torch.")
    assert target.thinking_switch


def test_bf16_decodes_speculatively_to_the_tokens_of_plain_decoding(tmp_path):
    """With a lookup of one token at most; a row alone and in a block of two may round differently, seldom here."""
    target = load_target(str(hub_folder(tmp_path, tied=True, dtype=torch.bfloat16)), dtype=torch.bfloat16)
    prompts = [[1, 2, 1, 2, 1], [7, 7, 7, 8]]
    plain = generate(target, None, prompts, temperature=0.0, max_new_tokens=20)
    ours = generate(target, load_drafter("lookup", target, max_depth=1), prompts, temperature=0.0, max_new_tokens=20)
    assert sum(r.accepted for one in ours for r in one.rounds) > 0
    assert [r.tokens for r in ours] == [r.tokens for r in plain]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A machine without a network, whose cache holds Qwen/Qwen3-0.6B: a tiny model in its place."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return hub_cache(
        tmp_path / "hub", "Qwen/Qwen3-0.6B", hub_folder(tmp_path / "model", tied=True, dtype=torch.bfloat16)
    )


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_what_is_in_the_hubs_cache_needs_no_network_and_names_its_commit(offline, revision):
    target = load_target("Qwen/Qwen3-0.6B", revision=revision)
    assert target.name == "Qwen/Qwen3-0.6B"
    assert target.source["revision"] == COMMIT


def test_an_empty_cache_without_a_network_is_said_so(offline):
    words = r"cannot get 'Qwen/Qwen3-4B' from the hub \(HF_HUB_OFFLINE is set, and .*hub holds no copy\); connect to"
    with pytest.raises(ValueError, match=words):
        load_target("Qwen/Qwen3-4B")
    with pytest.raises(ValueError, match=r"'Qwen/Qwen3-0.6B' at revision 'ffff' from the hub .* holds no copy"):
        load_target("Qwen/Qwen3-0.6B", revision="ffff")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (GatedRepoError, r"its owner wants to be asked\); accept the terms on its page"),
        (RepositoryNotFoundError, r"no such model, or it is private\); check the name"),
        (RevisionNotFoundError, r"no such revision\); name a branch, a tag or a commit"),
    ],
)
def test_what_the_hub_answers_becomes_advice(monkeypatch, error, words):
    def refuse(*args, **options):
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ValueError, match=words):
        load_target("Qwen/Qwen3-4B")


def test_a_name_that_can_be_none_is_refused_without_asking_the_hub(offline):
    with pytest.raises(ValueError, match=r"cannot get 'Qwen/Qwen3 4B' from the hub \(Repo id must use"):
        load_target("Qwen/Qwen3 4B")


def test_the_sizes_of_qwen3_are_those_on_the_hub():
    """Parameters as the model pages count them, with Qwen3-0.6B's head counted once."""
    counts = [596_049_920, 1_720_574_976, 4_022_468_096, 8_190_735_360, 14_768_307_200]
    assert [weight_count(qwen3_config(name)) for name in SIZES] == counts
    with pytest.raises(ValueError, match=r"shapes of 'Qwen/Qwen3-32B' are not known .* known are Qwen/Qwen3-0.6B, "):
        qwen3_config("Qwen/Qwen3-32B")


def test_too_little_memory_is_said_before_anything_is_loaded(tmp_path, monkeypatch):
    folder = hub_folder(tmp_path, tied=False, dtype=torch.bfloat16)
    needed = memory.needed_bytes(json.loads((folder / "config.json").read_text()), torch.float32)
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed)
    load_target(str(folder))
    monkeypatch.setattr(memory, "free_bytes", lambda device: needed - 1)
    with pytest.raises(
        ValueError, match=r"needs 0.\d MB .* float32 .* 128 tokens, and 0.\d MB are free on cpu: no Qwen3"
    ):
        load_target(str(folder))


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (
            24e9,
            r"needs 30.2 GB .* bfloat16 .* 4,096 tokens, and 24.0 GB are free on cpu: Qwen/Qwen3-8B fits \(17.0 GB\)",
        ),
        (1e9, r"no Qwen3 fits, the smallest being Qwen/Qwen3-0.6B \(1.7 GB\); the embedded tiny-qwen3 does"),
    ],
)
def test_it_is_said_which_model_fits(monkeypatch, free, words):
    monkeypatch.setattr(memory, "free_bytes", lambda device: int(free))
    with pytest.raises(ValueError, match=words):
        load_target("Qwen/Qwen3-14B", dtype=torch.bfloat16, random_weights=True)


def test_this_machine_knows_what_is_free():
    free = memory.free_bytes(torch.device("cpu"))
    assert free is not None
    assert 0 < free < 1e15


def test_a_cache_larger_than_the_gpu_says_what_would_fit(monkeypatch):
    shape = Qwen3Shape.from_config(qwen3_config("Qwen/Qwen3-4B"))
    assert cache_bytes(shape, 1, 2) == 2 * 36 * 8 * 128 * 2
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 * cache_bytes(shape, 1000, 2))
    cuda = torch.device("cuda")
    memory.check_cache(shape, 3, 1000, cuda, torch.bfloat16)
    with pytest.raises(
        ValueError, match=r"cache of 4 requests of 1,000 tokens needs 0.6 GB.*at most 3 at once .max_batch"
    ):
        memory.check_cache(shape, 4, 1000, cuda, torch.bfloat16)
    with pytest.raises(ValueError, match=r"free memory, or ask for fewer tokens"):
        memory.check_cache(shape, 1, 5000, cuda, torch.bfloat16)
    memory.check_cache(shape, 4, 1000, torch.device("cpu"), torch.bfloat16)
