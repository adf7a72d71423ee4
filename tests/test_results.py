"""Stored results belong to the shipped weights: a new model with old numbers goes red."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from companion.engine.load import find_model
from companion.experiments.bars import judge, verdict
from companion.experiments.bench_decode import Result as Benchmark
from companion.experiments.evaluate_drafter import DrafterEvaluation
from companion.experiments.evaluate_target import TargetEvaluation
from companion.kernels.ahead import FORMAT as KERNELS
from companion.provenance import stored_text
from companion.scheduling.capacity_file import FORMAT as CAPACITY

RESULTS = Path(__file__).parents[1] / "data" / "results"


def stored(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(stored_text(RESULTS / name))
    return record


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("*.json*")))
def test_a_result_names_the_weights_it_was_measured_on(name: str) -> None:
    provenance = stored(name)["provenance"]
    runs = provenance.get("runs", [])  # of a result of several recordings, each with a drafter of its own
    assert all(run["drafter"]["weights_sha256"] for run in runs if run.get("drafter"))
    for role in ("target",) if runs and "drafter" not in provenance else ("target", "drafter"):
        model = provenance[role]
        if model is not None:
            assert model["weights_sha256"] == find_model(model["name"]).describe()["weights_sha256"]
    assert provenance["harness"]["commit"]
    assert provenance["system"]["torch"]
    if stored(name).get("format") in (CAPACITY, KERNELS):  # times of steps, and machine code: neither has read a prompt
        return
    sets = [provenance["prompt_set"]] if "prompt_set" in provenance else [r["prompt_set"] for r in provenance["runs"]]
    assert sets
    assert all(sets)


def test_the_target_keeps_its_bars_on_a_thousand_prompts_each() -> None:
    result = TargetEvaluation.model_validate(stored("evaluate_target.json"))
    assert result.config.samples >= 1000
    assert len(result.bars) == 27
    for bar in result.bars:
        assert bar.trials == result.config.samples
        assert bar == judge(bar.name, bar.threshold, bar.value, bar.low, bar.high, bar.trials)
        assert bar.low is not None
        assert bar.value is not None
        assert bar.high is not None
        assert bar.low <= bar.value <= bar.high
    assert result.verdict == verdict(result.bars) == "holds"


def test_the_draft_model_keeps_its_bar_at_every_setting() -> None:
    result = DrafterEvaluation.model_validate(stored("evaluate_drafter.json"))
    assert (result.config.drafter, result.config.depth, result.config.at_least) == ("draft", 5, 2.5)
    assert {(b.trials, b.verdict) for b in result.bars} == {(3 * result.config.prompts, "holds")}
    assert len(result.bars) == len(result.config.settings) == 5


def test_the_benchmark_compared_equal_outputs() -> None:
    """A fast wrong answer would show: every method decodes greedily, so all must write what plain decoding wrote."""
    result = Benchmark.model_validate(stored("bench_decode.json"))
    for method, said in result.identical.items():
        same, total = map(int, said.split(" of "))
        assert total > 0, method
        assert same == total, (method, said)
    assert {s.domain for s in result.speeds} == {"math", "code", "chat"}
    assert result.config.threads == 1
