"""The GPU's benchmark of decoding, walked through on a CPU in tiny shapes: what it times, writes and admits."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "memory", "agreement", "plain step", "verify", "draft features", "draft parallel", "draft sequential", "round",
    "at acceptance",
}  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "benchmarks" / "gpu_decode.sh"), *arguments]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_every_section_is_timed_and_on_record_as_random(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--shapes", "tiny", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "decode.csv").open()))
    assert {row["section"] for row in rows} == SECTIONS
    assert {row["target"] for row in rows} == {"tiny-qwen3 (random weights)"}
    assert {row["drafter"] for row in rows} == {"dspark (random weights)"}
    assert "these times and floors say nothing about a GPU" in done.stdout
    system = json.loads((tmp_path / "system.json").read_text())
    assert system["weights_drawn"] is True
    assert system["target"]["random_weights"] == {"seed": 0}
    steps = {(r["section"], r["variant"], r["batch"], r["tokens"]): r for r in rows if r["section"] != "at acceptance"}
    for variant in ("direct", "graphs"):
        for key in (("plain step", "1", "1"), ("plain step", "3", "1"), ("verify", "1", "8"), ("round", "3", "7")):
            row = steps[key[0], variant, *key[1:]]
            assert float(row["milliseconds"]) > 0
            assert float(row["over_floor"]) == pytest.approx(
                float(row["milliseconds"]) / float(row["floor_milliseconds"]), rel=0.01
            )
    weights = next(int(row["bytes"]) for row in rows if row["note"] == "target's weights")
    cache = next(int(row["bytes"]) for row in rows if row["note"] == "target's cache, a request")
    assert int(steps["plain step", "direct", "1", "1"]["bytes"]) == weights + cache, (
        "the head is tied, 24 tokens are read"
    )
    rates = [
        row for row in rows if row["section"] == "at acceptance" and row["variant"] == "graphs" and row["batch"] == "1"
    ]
    assert [row["acceptance"] for row in rates] == ["0.5", "0.6", "0.7", "0.8", "0.9"]
    greedy = next(r for r in rows if (r["section"], r["variant"], r["note"]) == ("round", "graphs", "temperature 0"))
    tau = (1 - 0.5**8) / 0.5  # the bonus token included
    expected = tau / (float(greedy["milliseconds"]) / 1e3)
    assert float(rates[0]["tokens_per_second"]) == pytest.approx(expected, rel=0.01)


def test_what_was_cut_short_is_no_pass(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--shapes", "tiny", "--limit", "0", "--output", str(tmp_path))
    assert done.returncode == 3
    assert "the limit was reached" in done.stdout


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    done = run("--output", str(tmp_path))
    assert done.returncode == 2
    assert "no CUDA device; --device cpu --shapes tiny" in done.stderr
    done = run("--device", "cpu", "--shapes", "Qwen/Qwen3-4X", "--output", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot get 'Qwen/Qwen3-4X' from the hub")
