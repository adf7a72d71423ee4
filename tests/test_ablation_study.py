"""The ablation tables: groups from stored Rounds, differences with their sign, forecasts of the confidence heads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_drafter_rounds import DECAYING, STEADY, made
from typer.testing import CliRunner

from companion import figures_ablations
from companion.cli import app
from companion.compact import save_compact
from companion.experiments import ablations as study
from companion.experiments.accepted_length import AcceptedLengths
from companion.experiments.drafter_statistics import Cell
from companion.rounds import Rounds

FEW = study.Config(resamples=200)


def with_confidence(table: Rounds, rates: list[float], bias: float) -> Rounds:
    """Confidence that knows the rates, moved by ``bias``."""
    for row in table:
        row.confidence = [min(1.0, max(0.0, rate + bias)) for rate in rates]
    return table


@pytest.fixture(scope="module")
def tables() -> list[Rounds]:
    found = [with_confidence(made("dspark", s, STEADY), STEADY, 0.0) for s in (0, 1)]
    found += [with_confidence(made("confidence-sampled", s, STEADY), STEADY, 0.15) for s in (0, 1)]
    found += [made("depth-1", s, DECAYING) for s in (0, 1)]
    found += [made("dspark-think-50", 0, STEADY), made("plain", 0, [])]  # in no group
    return found


def test_groups_show_what_was_measured_and_name_what_was_not(tables: list[Rounds]) -> None:
    result = study.summarise(tables, FEW)
    groups = {group.group: group for group in result.groups}
    assert set(groups) == {"depth", "confidence"}
    assert {c.drafter for c in groups["depth"].cells} == {"dspark", "depth-1"}
    assert groups["depth"].missing == ["dflash-depth-5", "depth-3", "depth-5"]
    assert {c.mode for group in result.groups for c in group.cells} == {"no_think"}
    for domain in ("all", "math", "code", "chat"):
        (found,) = [d for d in groups["depth"].differences if d.domain == domain]
        assert (found.first, found.second) == ("depth-1", "dspark")
        assert found.value == pytest.approx(np.cumprod(DECAYING).sum() - np.cumprod(STEADY).sum(), abs=0.2)
        assert found.high is not None
        assert found.high < 0


def test_a_confidence_that_knows_the_rates_forecasts_better(tables: list[Rounds]) -> None:
    base, bold = study.summarise(tables, FEW).forecasts
    assert (base.drafter, base.base, base.brier_difference) == ("dspark", None, None)
    assert (bold.drafter, bold.base) == ("confidence-sampled", "dspark")
    survival = np.cumprod(STEADY)
    assert base.brier == pytest.approx((survival * (1 - survival)).mean(), abs=0.01)
    assert base.ece < 0.03 < bold.ece
    assert bold.brier_difference_low is not None
    assert bold.ece_difference_low is not None
    assert bold.brier_difference_low > 0
    assert bold.ece_difference_low > 0
    assert base.slots == 2 * 3 * 20 * 15 * 4


def test_equal_drafters_are_not_told_apart() -> None:
    inside = 0
    for trial in range(0, 20, 2):
        pair = [
            with_confidence(made(n, trial + s, STEADY, prompts=8), STEADY, 0.0)
            for n in ("dspark", "confidence-sampled")
            for s in (0, 1)
        ]
        result = study.summarise(pair, FEW)
        low, high = result.forecasts[1].brier_difference_low, result.forecasts[1].brier_difference_high
        assert low is not None
        assert high is not None
        inside += low <= 0 <= high
    assert inside >= 7


def test_tables_without_a_pair_are_refused_and_the_command_prints_what_it_stores(
    tables: list[Rounds], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"none of the groups depth.*has two drafters.*companion train drafters GROUP"):
        study.summarise([tables[0]], FEW)
    for number, table in enumerate(tables):
        assert table.provenance is not None
        table.provenance |= {
            "target": {"weights_sha256": {}},
            "drafter": {"name": str(number), "weights_sha256": {"a": number}},
        }
        table.provenance["settings"] |= {"max_new_tokens": 9}
        save_compact(table, tmp_path / ("a" if number < 2 else "b") / f"{number}.npz")
    arguments = ["experiment", "ablations", "--resamples", "20", "--rounds", str(tmp_path / "a"), "--rounds"]
    stored = tmp_path / "out.json"
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "b"), "--json", "--output", str(stored)])
    assert result.exit_code == 0, result.output
    read = study.AblationResults.model_validate_json(stored.read_text(encoding="utf-8"))
    assert study.AblationResults.model_validate(json.loads(result.stdout)) == read
    shown = CliRunner().invoke(app, [*arguments, str(tmp_path / "b")], env={"COLUMNS": "200"}).stdout
    for text in ("depth: tau, T 1", "depth-1 - dspark", "no rounds of dflash-depth-5", "Brier"):
        assert text in shown


def test_figures_show_sizes_and_changes_beside_the_noise_of_a_training(tables: list[Rounds]) -> None:
    from matplotlib import pyplot as plt

    result = study.summarise(tables, FEW)
    lengths = AcceptedLengths.model_construct(
        cells=[
            Cell.model_construct(
                drafter="dspark", temperature=c.temperature, domain=c.domain, mode="no_think", seed=s, tau=c.tau + move
            )
            for c in result.groups[0].cells
            if c.drafter == "dspark"
            for s, move in enumerate((-0.3, 0.1, 0.2))
        ]
    )
    temperature = result.groups[0].cells[0].temperature
    low, high = figures_ablations.spread(lengths, "dspark", temperature, "chat")
    assert (low, high) == (pytest.approx(-0.3), pytest.approx(0.2))
    panels = figures_ablations.by_size(result, "depth", temperature).axes
    assert panels[0].lines[0].get_xdata().tolist() == [1, 2]
    panels = figures_ablations.changes(result, lengths, temperature).axes
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["confidence-sampled"]
    for make in (
        lambda: figures_ablations.by_size(result, "head", temperature),
        lambda: figures_ablations.by_size(result, "gamma", temperature),
        lambda: figures_ablations.changes(result, lengths, temperature, groups=("mix",)),
        lambda: figures_ablations.spread(lengths, "dflash", temperature, "chat"),
    ):
        with pytest.raises(ValueError, match=r"by size needs|nothing was measured|was measured at|two at least"):
            make()
    plt.close("all")
