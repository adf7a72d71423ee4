"""The GPU's script, walked through on a CPU: what it checks, what it writes, and when it says that it is wrong."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "benchmarks" / "gpu_check.sh"), "--dry", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.interpreter
def test_every_kernel_is_right_and_on_record(tmp_path: Path) -> None:
    done = run("--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "kernels.csv").open()))
    kernels = {row["kernel"].split(",")[0]: row for row in rows if row["variant"] == "kernel"}
    assert kernels.keys() == {"probe", "overlap", "verify", "ragged_attention", "markov", "schedule"}
    assert all(row["right"] == "True" and float(row["microseconds"]) > 0 for row in kernels.values())
    assert int(kernels["probe"]["bytes"]) == 3 * 1000 * 4
    assert json.loads((tmp_path / "system.json").read_text())["interpreted"] is True


@pytest.mark.interpreter
def test_a_run_that_checked_nothing_is_no_pass(tmp_path: Path) -> None:
    assert run("--only", "nothing", "--output", str(tmp_path)).returncode == 3


def test_a_machine_without_a_gpu_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), "--output", str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
