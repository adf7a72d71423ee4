"""Training a drafter: features say what the target said, a killed run ends the same, two processes train as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiers import sampled

import companion
from companion.engine.load import TextTarget, find_model
from companion.training import zoo
from companion.training.checkpoint import load_weights
from companion.training.corpus import DOMAINS, training_sample
from companion.training.corpus.topics import TOPICS
from companion.training.drafter import DrafterConfig, dflash_config, train_drafter
from companion.training.features import FeatureSpec, FeatureStore, features, storage
from companion.training.loop import LOG, Schedule
from companion.training.regenerate import Regeneration, _prompt_ids, regenerate

FEW = Regeneration(seed=2, samples=9, think_share=0.0, max_new_tokens=40)
MICRO = DrafterConfig(
    traces=FEW,
    target_layers=(0, 2),
    layers=1,
    mlp=32,
    block_size=3,
    rank=4,
    anchors=5,
    texts_per_batch=3,
    schedule=Schedule(steps=4, warmup=1, checkpoint_every=2, log_every=1),
)
KINDS = {
    "dspark": MICRO,
    "rnn": replace(MICRO, head="rnn", anchor_predicts=False),
    "dflash": dflash_config(
        **{k: getattr(MICRO, k) for k in ("traces", "target_layers", "layers", "mlp", "block_size", "anchors")},
        schedule=MICRO.schedule,
        texts_per_batch=3,
    ),
    "eagle3": replace(MICRO, kind="eagle3"),
    "medusa": replace(MICRO, kind="medusa", rank=0),
    "medusa-markov": replace(MICRO, kind="medusa", head="gated"),
    "outcomes": replace(MICRO, confidence_label="sampled"),
    "drafted": replace(MICRO, confidence_prefix="drafted", head="rnn", confidence_label="sampled"),
    "bf16": replace(MICRO, precision="bf16"),
    "eagle3-bf16": replace(MICRO, kind="eagle3", precision="bf16"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def target() -> TextTarget:
    return companion.load_target("tiny-qwen3")


def test_stored_states_make_the_targets_distribution_again(
    data: Path, target: TextTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("companion.training.features.SHARD", 2)
    traces = regenerate(FEW, data / "few.jsonl")[:5]
    spec = FeatureSpec("tiny-qwen3", target.source["weights_sha256"], (-1, 3), target.shape.hidden)
    store = FeatureStore(data / "five", spec, traces)
    store.write()
    tokens, size = storage(spec, traces)
    on_disk = sum(p.stat().st_size for p in (data / "five").glob("*.safetensors"))
    assert size == tokens * 3 * target.shape.hidden * 2
    assert size < on_disk < size + 3 * 400  # and three headers
    for i in (0, 3, 4):
        ids = traces[i].prompt + traces[i].response
        taps, last = store.row(i)
        exact, exact_last = features(target, ids, (-1, 3))
        assert torch.equal(exact[:, 0], target.embedding[ids])
        torch.testing.assert_close(taps, exact, atol=0, rtol=2**-10)
        torch.testing.assert_close(last, exact_last, atol=1e-7, rtol=2**-10)
        logits = target.logits(ids)
        torch.testing.assert_close(exact_last @ target.head.T, logits, atol=1e-4, rtol=1e-4)
        assert (last @ target.head.T - logits).abs().max() < 0.05
    (data / "five" / "00000002.safetensors").unlink()  # what a kill leaves: the shards before and after are kept
    kept = (data / "five" / "00000004.safetensors").stat().st_mtime_ns
    store.write()
    assert FeatureStore(data / "five", spec, traces).row(2)[0].shape[1:] == (2, target.shape.hidden)
    assert (data / "five" / "00000004.safetensors").stat().st_mtime_ns == kept
    with pytest.raises(ValueError, match="another target, revision or choice of layers"):
        FeatureStore(data / "five", replace(spec, target_weights={"model.safetensors": "0"}), traces).write()


@pytest.mark.parametrize("kind", sampled(KINDS, keep=6))
def test_each_kind_trains_loads_and_drafts_losslessly(
    kind: str, data: Path, tmp_path: Path, target: TextTarget
) -> None:
    config, asked = KINDS[kind], []
    result = train_drafter(config, tmp_path, data, workers=1, agree=lambda *size: not asked.append(size))
    assert result.finished
    assert asked[0][1] == asked[0][0] * 3 * target.shape.hidden * 2
    losses = [float(line.split('"loss": ')[1].split(",")[0]) for line in (tmp_path / LOG).read_text().splitlines()]
    assert losses[-1] < losses[0]
    assert "embed_tokens.weight" not in load_weights(tmp_path)  # frozen: the target's
    drafter = companion.load_drafter(str(tmp_path / "model"), target)
    prompts = ["What is 2 + 3?", "Tell me about bread."]
    plain = companion.generate(target, None, prompts, temperature=0.0, max_new_tokens=20)
    drafted = companion.generate(target, drafter, prompts, temperature=0.0, max_new_tokens=20)
    assert [r.tokens for r in drafted] == [r.tokens for r in plain]
    assert sum(row.drafted for r in drafted for row in r.rounds) > 0


def test_a_killed_run_and_two_processes_end_as_one(data: Path, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        assert train_drafter(MICRO, tmp_path / name, data, workers=workers).finished
    one, two = load_weights(tmp_path / "one"), load_weights(tmp_path / "two")
    assert all(torch.allclose(one[k], two[k], atol=1e-5) for k in one)

    class Killed(RuntimeError):
        pass

    def killed(step: int, *_: object) -> None:
        if step == 3:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("companion.training.loop._log", lambda folder, step, *rest: killed(step))
        with pytest.raises(Killed):
            train_drafter(MICRO, tmp_path / "cut", data, workers=1)
    assert train_drafter(MICRO, tmp_path / "cut", data, workers=1).finished
    again = load_weights(tmp_path / "cut")
    assert all(torch.equal(one[k], again[k]) for k in one)


def test_contradictions_are_refused_in_one_sentence(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a Markov head nor"):
        replace(MICRO, kind="dflash")
    with pytest.raises(ValueError, match="stopped before the features"):
        train_drafter(MICRO, tmp_path, data / "elsewhere", workers=1, agree=lambda *_: False)
    train_drafter(replace(MICRO, schedule=replace(MICRO.schedule, steps=1)), tmp_path / "run", data, workers=1)
    with pytest.raises(ValueError, match="another recipe"):
        train_drafter(MICRO, tmp_path / "run", data, workers=1)
    other_text = replace(MICRO, traces=replace(FEW, domain_shares=(0.25, 0.25, 0.5)))
    with pytest.raises(ValueError, match=r"another recipe \(its traces.json\)"):
        train_drafter(other_text, tmp_path / "other", data, workers=1)
    for change, message in (
        ({"kind": "dspork"}, "kind must be one of dspark, dflash, eagle3, medusa, got 'dspork'"),
        ({"confidence": False, "confidence_label": "sampled"}, "nothing for its label"),
        ({"kind": "eagle3", "confidence_prefix": "drafted"}, "nothing for its label"),
        ({"kind": "medusa", "layers": 2}, "medusa has one layer, got 2"),
        ({"kind": "medusa", "anchor_predicts": False}, "always predicts at the anchor"),
        ({"texts_per_batch": 0}, "1 text and 1 batch"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(MICRO, **change)  # type: ignore[arg-type]
    for shares in ((1.0,), (0.5, 0.5, 0.5), (-0.5, 1.0, 0.5)):
        with pytest.raises(ValueError, match="math, code, chat must be 3 that sum to 1"):
            replace(FEW, domain_shares=shares)
    for device, message in (("cuda", "PyTorch sees no GPU"), ("mps", "cpu or cuda")):
        if device != "cuda" or not torch.cuda.is_available():
            with pytest.raises(ValueError, match=message):
                train_drafter(MICRO, tmp_path / device, data, workers=1, device=device)


def test_features_that_cannot_be_read_or_lack_rows_are_not_learned_from(data: Path, tmp_path: Path) -> None:
    traces, weights = regenerate(FEW, data / "few.jsonl"), find_model("tiny-qwen3").describe()["weights_sha256"]
    spec = FeatureSpec("tiny-qwen3", weights, (1,), 160)
    FeatureStore(tmp_path, spec, traces[:2]).write()
    grown = FeatureStore(tmp_path, spec, traces[:3])  # more samples were asked for: the last file is short
    grown.write()
    assert len(grown.row(2)[1]) == len(traces[2].prompt) + len(traces[2].response)
    shard = tmp_path / "00000000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"00000000.safetensors is not a whole feature file .* delete it"):
        FeatureStore(tmp_path, spec, traces[:3]).write()


def test_a_broken_checkpoint_is_named_and_nothing_is_trained_over_it(data: Path, tmp_path: Path) -> None:
    train_drafter(MICRO, tmp_path, data, workers=1)
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    for broken in (whole[:-5], b"", b"\x80\x04}."):  # cut off, empty, a pickle
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"checkpoint.safetensors is not a whole checkpoint .* delete it"):
            train_drafter(MICRO, tmp_path, data, workers=1)
        assert path.read_bytes() == broken


def test_a_chattier_mix_has_its_share_of_chat() -> None:
    counts = dict.fromkeys(DOMAINS, 0)
    for index in range(200):
        counts[training_sample(2, index, shares={"math": 0.25, "code": 0.25, "chat": 0.5}).domain] += 1
    assert 80 <= counts["chat"] <= 120
    target = companion.load_target("tiny-qwen3")
    chat = replace(FEW, domain_shares=(0.0, 0.0, 1.0))
    asked = {target.decode(_prompt_ids(chat, index, target)).lower() for index in range(6)}
    topics = {topic for of_field in TOPICS.values() for topic in of_field}
    assert all(any(topic in prompt for topic in topics) for prompt in asked)


def test_the_zoo_changes_one_thing_at_a_time_and_trains_seed_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = dict(zoo.runs())
    assert len(everything) == 5 + 5 + 3 * 7
    assert list(everything)[:10] == [f"{name}-0" for name in zoo.RECIPES] + ["dflash-1"]
    same_data = {n: c for n, c in zoo.RECIPES.items() if "think" not in n}
    assert len({(c.traces, c.schedule, c.target_layers, c.block_size) for c in same_data.values()}) == 1
    shares = {c.traces.think_share for n, c in zoo.RECIPES.items() if n.startswith("dspark")}
    assert shares == {0.0, 0.05, 0.5, 1.0}
    with pytest.raises(ValueError, match="no drafter recipe 'dspork'"):
        zoo.runs(["dspork"])
    with monkeypatch.context() as torchrun:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            torchrun.setenv(name, "0")
        with pytest.raises(ValueError, match="torchrun is for `companion train drafter`"):
            zoo.train_zoo(tmp_path, ["dspark"])
    monkeypatch.setitem(zoo.KNOWN, "dspark", replace(MICRO, schedule=Schedule(steps=1, warmup=1)))
    folders = zoo.train_zoo(tmp_path, ["dspark"], seeds=2, workers=1)
    first, second = (load_weights(folder.parent) for folder in folders)
    assert any(not torch.equal(first[k], second[k]) for k in first)
    stamp = (folders[0] / "recipe.json").read_text()
    assert zoo.train_zoo(tmp_path, ["dspark"], seeds=2, workers=1) == folders
    assert (folders[0] / "recipe.json").read_text() == stamp
