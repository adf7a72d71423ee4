"""Under torchrun: the processes share one run, end as one process does, and only the first one writes and prints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from drafters.test_drafter_training import MICRO

from companion.training.checkpoint import load_weights
from companion.training.drafter import train_drafter
from companion.training.group import first_alone, is_first, joined, under_torchrun
from companion.training.loop import LOG


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun tells the only process of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / LOG).read_text().splitlines()]


@pytest.mark.usefixtures("environment")
def test_a_process_of_torchrun_trains_in_its_group_and_leaves_it(tmp_path: Path) -> None:
    assert under_torchrun()
    worlds = []
    asked = lambda *_: worlds.append(dist.get_world_size()) or True  # noqa: E731
    assert train_drafter(MICRO, tmp_path / "joined", tmp_path / "data", agree=asked).finished  # workers: preparation
    assert worlds == [1]
    assert not dist.is_initialized()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RANK")
        assert not under_torchrun()
        assert train_drafter(MICRO, tmp_path / "alone", tmp_path / "data", workers=1).finished
    joined_run, alone = (load_weights(tmp_path / name) for name in ("joined", "alone"))
    assert all(torch.equal(joined_run[k], alone[k]) for k in alone)
    with joined() as device:
        assert device.type == "cpu"
        assert is_first()
        with pytest.raises(ValueError, match="as it is"):
            first_alone(_refuse)
    assert not dist.is_initialized()


def _refuse() -> None:
    raise ValueError("as it is")


@pytest.mark.full
def test_two_processes_of_torchrun_train_as_one(tmp_path: Path) -> None:
    command = ["-m", "companion", "train", "drafter", "--samples", "14", "--steps", "4", "--layers", "1"]
    # three batches a step: the two processes add them up in another order than one does, which shows in the last bits
    command += ["--block-size", "3", "--rank", "4", "--batches-per-step", "3", "--data", str(tmp_path / "data")]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)

    two = run(*torchrun, *command, "--out", str(tmp_path / "two"))
    assert two.returncode == 0, two.stderr
    assert two.stdout.splitlines() == [str(tmp_path / "two" / "model")]
    assert two.stderr.count("hidden states take") == 1
    one = run(*command, "--workers", "1", "--out", str(tmp_path / "one"))
    assert one.returncode == 0, one.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=2e-4)
    a, b = load_weights(tmp_path / "one"), load_weights(tmp_path / "two")
    assert all(torch.allclose(a[k], b[k], atol=1e-4) for k in a)
    assert any(not torch.equal(a[k], b[k]) for k in a), "one process did all the work"
    # bad input: the first process says why, the other says nothing
    refused = run(*torchrun, *command, "--rank", "8", "--out", str(tmp_path / "two"))
    assert refused.returncode != 0
    assert refused.stderr.count("was made by another recipe") == 1


def test_precision_is_part_of_the_recipe_and_changes_the_numbers(tmp_path: Path) -> None:
    config = replace(MICRO, schedule=replace(MICRO.schedule, steps=2))
    for precision in ("fp32", "bf16"):
        run = replace(config, precision=precision)
        assert train_drafter(run, tmp_path / precision, tmp_path / "data", workers=1).finished
    full, half = (load_weights(tmp_path / name) for name in ("fp32", "bf16"))
    assert all(tensor.dtype == torch.float32 for tensor in half.values())
    assert losses(tmp_path / "bf16") == pytest.approx(losses(tmp_path / "fp32"), rel=0.02)
    assert any(not torch.equal(full[k], half[k]) for k in full)
    with pytest.raises(ValueError, match="another recipe"):
        train_drafter(config, tmp_path / "bf16", tmp_path / "data", workers=1)
