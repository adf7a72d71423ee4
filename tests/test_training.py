"""The training loop: resumes exactly, shares work among processes, and its optimiser is Muon."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from companion.training.batches import Batch, Encoded, Step, bucket, encode
from companion.training.checkpoint import CHECKPOINT, load_weights, saved_step
from companion.training.corpus import training_sample
from companion.training.draft import distillation_loss
from companion.training.loop import LOG, Schedule, fit
from companion.training.muon import Muon, orthogonalise
from companion.training.target import Architecture, TargetConfig, train_target
from companion.training.tokenizer import corpus_texts, render, train_tokenizer

MICRO = TargetConfig(
    architecture=Architecture(hidden=32, layers=2, mlp=48, heads=2, kv_heads=1, head_dim=32, vocab_size=512),
    schedule=Schedule(steps=6, warmup=2, checkpoint_every=2, log_every=1),
    tokens_per_batch=256,
    pool_samples=12,
    tokenizer_samples=400,
    workers=1,
)


@dataclass(frozen=True)
class Line:
    """A task small enough for a test: fit a linear map."""

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4, bias=True), nn.Linear(4, 3, bias=False))

    def pool(self, index: int) -> list[Step]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 9, (4, 3), generator=generator)
        two = Batch(ids, torch.ones(4, 3)), Batch(ids[:1].flip(1), torch.ones(1, 3))
        return [two, two[:1]]

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        x = batch.ids.float()
        return F.mse_loss(model(x), -x, reduction="none").sum(), batch.weight


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_stopped_and_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    schedule = Schedule(steps=9, warmup=1, checkpoint_every=3, log_every=1)
    whole = fit(Line(), schedule, tmp_path / "whole")
    assert whole.finished
    assert whole.step == 9
    for stop_at in (3, 6):  # what a kill leaves behind: the last checkpoint of a run with the same schedule
        folder = tmp_path / f"cut{stop_at}"
        _run_until(folder, schedule, stop_at)
        assert saved_step(folder) == stop_at
        assert not _same(load_weights(folder), load_weights(tmp_path / "whole"))
        assert fit(Line(), schedule, folder).finished
        assert _same(load_weights(folder), load_weights(tmp_path / "whole"))


def _run_until(folder: Path, schedule: Schedule, step: int) -> None:
    class Cut(Line):
        calls = 0

        def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
            if len(batch.ids) == 4:  # the first batch of a step
                if type(self).calls == step:
                    raise RuntimeError("killed")
                type(self).calls += 1
            return super().loss(model, batch)

    with pytest.raises(RuntimeError, match="killed"):
        fit(Cut(), schedule, folder)


def test_an_interrupt_leaves_a_checkpoint_and_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupting(Line):
        def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
            os.kill(os.getpid(), signal.SIGINT)
            return super().loss(model, batch)

    handler = signal.getsignal(signal.SIGINT)
    schedule = Schedule(steps=5, checkpoint_every=100)
    result = fit(Interrupting(), schedule, tmp_path)
    assert not result.finished
    assert result.step == saved_step(tmp_path) == 1
    assert capsys.readouterr().err == "Stopped at step 1 of 5; the same command continues from there.\n"
    assert signal.getsignal(signal.SIGINT) is handler
    assert fit(Line(), schedule, tmp_path).step == 5


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    schedule = Schedule(steps=4, checkpoint_every=4)  # every second step has one batch, so one process gets none
    fit(Line(), schedule, tmp_path / "one", workers=1)
    fit(Line(), schedule, tmp_path / "two", workers=2)
    one, two = load_weights(tmp_path / "one"), load_weights(tmp_path / "two")
    assert all(torch.allclose(one[k], two[k], atol=1e-5) for k in one)


def test_the_target_is_trained_exported_and_resumed(tmp_path: Path) -> None:
    whole = train_target(MICRO, tmp_path / "whole")
    assert whole.finished
    # killed for real, in the middle, then run again
    cut = tmp_path / "cut"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_training import MICRO\n"
        "from companion.training.target import train_target\n"
        "train_target(MICRO, sys.argv[2])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(Path(__file__).parent), str(cut)])
    while process.poll() is None and not (cut / CHECKPOINT).exists():
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert train_target(MICRO, cut).finished
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (cut / "model" / name).read_bytes() == (tmp_path / "whole" / "model" / name).read_bytes()
    losses = [json.loads(line)["loss"] for line in (tmp_path / "whole" / LOG).read_text().splitlines()]
    assert len(losses) == 6
    assert losses[-1] < losses[0]

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole" / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "model")
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    ids = tokenizer("What is 3 + 4?", return_tensors="pt").input_ids
    assert model(ids).logits.shape[-1] == 512
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)

    with pytest.raises(ValueError, match="another recipe"):
        train_target(replace(MICRO, seed=1), cut)

    on = replace(MICRO, start=str(tmp_path / "whole" / "model"), overlap=0.75)
    assert train_target(on, tmp_path / "on").finished
    first = json.loads((tmp_path / "on" / LOG).read_text().splitlines()[0])["loss"]
    assert first < losses[1] < losses[0]  # it goes on from where the other ended
    tokenizers = [(tmp_path / run / "model" / "tokenizer.json").read_bytes() for run in ("whole", "on")]
    assert tokenizers[0] == tokenizers[1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"overlap": 1.5}, "overlap must be a share"),
        ({"think_share": -0.1}, "think_share must be a share"),
        ({"start": "nowhere"}, "there is no model 'nowhere'"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused_before_anything_is_written(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        train_target(replace(MICRO, **changed), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_the_schedule_warms_up_holds_and_falls() -> None:
    s = Schedule(steps=100, warmup=10, constant_until=0.4, final=0.01)
    assert s.factor(0) == pytest.approx(0.1)
    assert s.factor(9) == s.factor(39) == 1.0
    assert s.factor(70) == pytest.approx(1 - 0.99 * 0.5)
    assert s.factor(99) == pytest.approx(0.01, abs=0.02)
    with pytest.raises(ValueError, match="steps >= 1"):
        Schedule(steps=0)


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    class Bad(Line):
        def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
            loss, weight = super().loss(model, batch)
            return loss * math.inf, weight

    with pytest.raises(ValueError, match="not finite at step 0"):
        fit(Bad(), Schedule(steps=2), tmp_path)


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 16, 40), (2, 40, 16)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape), steps=5))
        assert values.min() > 0.5
        assert values.max() < 1.3


def test_muon_takes_the_step_of_torch_muon() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(24, 12), torch.randn(5, 24, 12)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = Muon([ours], lr=0.1, momentum=0.9, weight_decay=0.1, ns_steps=5)
    reference = torch.optim.Muon([theirs], lr=0.1, momentum=0.9, weight_decay=0.1, ns_steps=5)
    for g in gradients:
        ours.grad, theirs.grad = g.clone(), g.clone()
        mine.step()
        reference.step()
    moved = (theirs.detach() - start).norm()
    assert (ours.detach() - theirs.detach()).norm() < 0.03 * moved  # the reference iterates in bf16


def test_buckets_keep_every_sample_once_and_pad_little() -> None:
    encoded = [Encoded([i % 7 + 1] * (5 + i * 37 % 90), [1.0] * (5 + i * 37 % 90)) for i in range(300)]
    batches = bucket(encoded, 1000, pad_id=0, order_seed="a")
    real = sum(len(e.ids) for e in encoded)
    padded = sum(b.ids.numel() for b in batches)
    assert sum(int(b.weights.sum()) for b in batches) == real
    assert sum(len(b.ids) for b in batches) == 300
    assert all(b.ids.shape[1] % 8 == 0 and b.ids.numel() <= 1000 for b in batches)
    assert padded < 1.15 * real
    order = [b.ids.shape for b in batches]
    assert order == [b.ids.shape for b in bucket(encoded, 1000, 0, "a")]
    assert order != [b.ids.shape for b in bucket(encoded, 1000, 0, "b")]


def test_only_the_response_is_learned_and_digits_weigh_more() -> None:
    tokenizer = train_tokenizer(corpus_texts(0, 400), vocab_size=512)
    samples = [training_sample(0, i) for i in range(30)]
    for s, e in zip(samples, encode(samples, tokenizer, digit_weight=2.0), strict=True):
        prompt, response = render(s)
        first = next(i for i, w in enumerate(e.weights) if w)
        assert tokenizer.decode(e.ids[:first]) == prompt
        assert tokenizer.decode(e.ids[first:]) == response
        for token, weight in zip(e.ids[first:], e.weights[first:], strict=True):
            assert weight == (2.0 if tokenizer.decode(token).isdigit() else 1.0)


def test_distillation_loss_is_zero_only_where_the_draft_model_agrees() -> None:
    log_p = torch.tensor([[0.5, 0.3, 0.2]]).log()
    log_q = torch.tensor([[0.2, 0.3, 0.5]]).log()
    assert distillation_loss(log_p, log_p, 0.5).item() == pytest.approx(0, abs=1e-6)
    assert distillation_loss(log_p, log_q, 1.0).item() == pytest.approx(0.3)  # 1 - (.2 + .3 + .2)
    assert distillation_loss(log_p, log_q, 0.0).item() == pytest.approx(0.3 * math.log(2.5))
