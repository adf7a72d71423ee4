"""Stored results belong to the shipped weights: a new model with old numbers goes red."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from companion.engine.load import find_model
from companion.experiments.evaluate_target import TargetEvaluation

RESULTS = Path(__file__).parents[1] / "data" / "results"


def stored(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return record


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.glob("*.json")))
def test_a_result_names_the_weights_it_was_measured_on(name: str) -> None:
    provenance = stored(name)["provenance"]
    for role in ("target", "drafter"):
        model = provenance[role]
        if model is not None:
            assert model["weights_sha256"] == find_model(model["name"]).describe()["weights_sha256"]
    assert provenance["harness"]["commit"]
    assert provenance["system"]["torch"]
    assert provenance["prompt_set"]


def test_the_bars_carry_their_intervals_and_sample_size() -> None:
    result = TargetEvaluation.model_validate(stored("evaluate_target.json"))
    assert result.bars
    for bar in result.bars:
        assert bar.trials == result.config.samples
        assert bar.value is not None
        assert bar.low is not None
        assert bar.high is not None
        assert bar.low <= bar.value <= bar.high
