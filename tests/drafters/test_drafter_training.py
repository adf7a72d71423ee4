"""Training a drafter: features say what the target said, a killed run ends the same, two processes train as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import companion
from companion.engine.load import TextTarget
from companion.training import zoo
from companion.training.checkpoint import load_weights
from companion.training.drafter import DrafterConfig, dflash_config, train_drafter
from companion.training.features import FeatureSpec, FeatureStore, features, storage
from companion.training.loop import LOG, Schedule
from companion.training.regenerate import Regeneration, regenerate

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


@pytest.mark.parametrize("kind", KINDS)
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


def test_the_zoo_changes_one_thing_at_a_time_and_trains_seed_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = dict(zoo.runs())
    assert len(everything) == 5 + 5 + 3 * 5
    assert list(everything)[:8] == [f"{name}-0" for name in zoo.RECIPES] + ["dflash-1"]
    same_data = {n: c for n, c in zoo.RECIPES.items() if "think" not in n}
    assert len({(c.traces, c.schedule, c.target_layers, c.block_size) for c in same_data.values()}) == 1
    shares = {c.traces.think_share for n, c in zoo.RECIPES.items() if n.startswith("dspark")}
    assert shares == {0.0, 0.05, 0.5, 1.0}
    with pytest.raises(ValueError, match="no drafter recipe 'dspork'"):
        zoo.runs(["dspork"])
    monkeypatch.setitem(zoo.RECIPES, "dspark", replace(MICRO, schedule=Schedule(steps=1, warmup=1)))
    folders = zoo.train_zoo(tmp_path, ["dspark"], seeds=2, workers=1)
    first, second = (load_weights(folder.parent) for folder in folders)
    assert any(not torch.equal(first[k], second[k]) for k in first)
    stamp = (folders[0] / "recipe.json").read_text()
    assert zoo.train_zoo(tmp_path, ["dspark"], seeds=2, workers=1) == folders
    assert (folders[0] / "recipe.json").read_text() == stamp
