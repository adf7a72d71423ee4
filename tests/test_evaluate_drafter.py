"""The evaluation of a drafter: what it counts, its bar, and that nothing decoded proves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from companion.cli import EXIT
from companion.experiments import evaluate_drafter as experiment
from companion.experiments.bars import judge, verdict

SMALL = experiment.Config(prompts=3, settings=((0.0, "greedy"), (1.0, "sampled")), max_new_tokens=160, max_batch=9)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, experiment.DrafterEvaluation]:
    path = tmp_path_factory.mktemp("drafter") / "result.json"
    return path, experiment.run(SMALL, path)


def test_cells_add_up(evaluated: tuple[Path, experiment.DrafterEvaluation]) -> None:
    path, result = evaluated
    assert experiment.DrafterEvaluation.model_validate(json.loads(path.read_text())) == result
    cells = {(c.temperature, c.domain, c.mode, c.phase): c for c in result.cells}
    assert len(cells) == len(result.cells) == 2 * 4 * 4
    for t, _ in SMALL.settings:
        for mode in ("no_think", "think"):
            parts = [cells[t, d, mode, "all"] for d in ("math", "code", "chat")]  # type: ignore[index]
            whole = cells[t, "all", mode, "all"]  # type: ignore[index]
            assert whole.rounds == sum(c.rounds for c in parts)
            assert whole.responses == 3 * SMALL.prompts
            assert whole.tau is not None
            assert whole.low is not None
            assert whole.high is not None
            assert 1 <= whole.low <= whole.tau <= whole.high <= SMALL.depth + 1
            committed = sum(round((c.tau or 0) * c.rounds) for c in parts)
            assert round(whole.tau * whole.rounds) == committed
        inside, outside = cells[t, "all", "think", "think"], cells[t, "all", "think", "output"]
        straddling = round((cells[t, "all", "think", "all"].straddling or 0) * cells[t, "all", "think", "all"].rounds)
        assert inside.rounds + outside.rounds + straddling == cells[t, "all", "think", "all"].rounds
    experiment.show(result)


def test_the_embedded_draft_model_clears_its_bar_and_an_impossible_one_fails(
    evaluated: tuple[Path, experiment.DrafterEvaluation],
) -> None:
    result = evaluated[1]
    assert EXIT[result.verdict] == 0, result.bars
    assert [b.threshold for b in result.bars] == [2.5, 2.5]
    assert verdict([judge(b.name, 6.1, b.value, b.low, b.high, b.trials) for b in result.bars]) == "fails"
    assert judge("sure", 2.0, 2.5, 2.1, 2.9, 10).outcome == "holds clearly"
    assert judge("close", 2.0, 2.5, 1.9, 2.9, 10).outcome == "holds"
    assert verdict([judge("none", 2.5, None, None, None, 0)]) == verdict([]) == "inconclusive"


def test_a_drafter_without_weights_is_measured_too() -> None:
    config = SMALL.model_copy(update={"drafter": "lookup", "settings": ((0.7, "greedy"),), "at_least": 1.0})
    result = experiment.run(config)
    assert result.provenance["drafter"] is None
    assert result.provenance["settings"]["drafter_name"] == "lookup"
    assert result.verdict == "holds"


def test_bad_settings_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        experiment.run(SMALL.model_copy(update={"prompts": 1}))
    with pytest.raises(ValueError, match="drafts nothing"):
        experiment.run(SMALL.model_copy(update={"drafter": "none"}))
