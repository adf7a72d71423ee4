"""Figures of the phase gap draw what the result holds, and say so where it holds nothing."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from phase_tables import DOMAINS, same, table

from companion import figures_phase
from companion.experiments.phase_gap.study import Analysis, PhaseGap, summarise


@pytest.fixture(scope="module")
def result() -> PhaseGap:
    confidence = {"think": 0.3, "output": 0.7, "off": 0.7}
    tables = [table(same(0.3, 0.7, 0.7), confidence=confidence)]
    for share in (0.05, 0.5):
        name = f"dspark-think-{100 * share:g}"
        tables.append(table(same(0.3 + share, 0.7, 0.7), drafter_name=name, think_share=share, seed=1))
    return summarise(tables, Analysis(resamples=50))


@pytest.fixture(autouse=True)
def closed() -> None:
    plt.close("all")


def test_the_crossover_shows_every_drafter_on_every_side(result: PhaseGap) -> None:
    panels = figures_phase.crossover(result, "T1").axes
    assert [axes.get_title(loc="left") or axes.get_title() for axes in panels] == list(DOMAINS)
    drawn = [line for line in panels[0].lines if len(line.get_xdata()) == 3]
    assert [line.get_label() for line in drawn] == [
        "DSpark", "DSpark, 5 % thinking traces", "DSpark, 50 % thinking traces",
    ]  # fmt: skip
    pooled = next(p for p in result.pooled if (p.drafter, p.domain) == ("dspark", "math"))
    assert np.allclose(drawn[0].get_ydata(), [pooled.think.value, pooled.output.value, pooled.off.value])
    only = figures_phase.crossover(result, "T1", ["dspark"]).axes[0]
    assert len([line for line in only.lines if len(line.get_xdata()) == 3]) == 1


def test_position_curves_have_a_line_a_side(result: PhaseGap) -> None:
    (axes,) = figures_phase.position_curves(result, "T1", ["dspark"]).axes
    assert [line.get_label() for line in axes.lines] == list(figures_phase.SIDES.values())
    with pytest.raises(ValueError, match="eagle3 was not measured at T1"):
        figures_phase.position_curves(result, "T1", ["eagle3"])


def test_the_dose_response_is_in_the_order_of_the_doses(result: PhaseGap) -> None:
    axes = figures_phase.dose_response(result, "T1").axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0 %", "5 %", "50 %"]
    inside = np.asarray(next(line for line in axes.lines if line.get_label() == "inside the span").get_ydata())
    assert (np.diff(inside) > 0).all()
    alone = result.model_copy(update={"doses": []})
    with pytest.raises(ValueError, match="three shares"):
        figures_phase.dose_response(alone, "T1")


def test_calibration_draws_bins_beside_the_diagonal(result: PhaseGap) -> None:
    panels = figures_phase.calibration(result, "dspark", "T1").axes
    assert len(panels) == len(DOMAINS)
    inside = next(line for line in panels[0].lines if line.get_label() == "inside the span")
    assert np.allclose(inside.get_xdata(), [0.3], atol=0.01)
    with pytest.raises(ValueError, match="no confidence of dflash"):
        figures_phase.calibration(result, "dflash", "T1")


def test_a_sampling_that_was_not_measured_is_named(result: PhaseGap) -> None:
    with pytest.raises(ValueError, match=r"nothing was measured at T0 \(measured: T1\)"):
        figures_phase.crossover(result, "T0")
