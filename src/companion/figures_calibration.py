"""Figures of calibration: reliability diagrams before and after, ECE and rank AUC along the block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from companion.experiments.calibration import Calibration
from companion.experiments.calibration_ranking import Ranking
from companion.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, figure, interval, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASE = {"off": "thinking off", "span": "inside the span", "after": "behind the span"}
# Method -> how it is called, colour, marker
METHODS = {
    "none": ("no temperature", BLACK, "o"),
    "single": ("one temperature", ORANGE, "s"),
    "sts": ("STS", BLUE, "D"),
    "nll": ("NLL", GREEN, "^"),
    "nll-pull": ("NLL, pulled to 1", SKY, "v"),
}
AUC = {
    "prefix": ("prefix survival, all blocks", BLUE, "o", "-"),
    "if_right": ("the same, were every forecast right", GREY, "", "--"),
    "own": ("own slot, all blocks", VERMILION, "s", "-"),
    "survivors": ("own slot, survivors", PURPLE, "^", "-"),
}


def reliability(result: Calibration, phase: str = "off", domain: str = "all") -> Figure:
    """Share that survived against forecast, one panel a position, before STS and after it, with 95 % bars over prompts;
    the lines below show where the forecasts are. ValueError when there is nothing to draw.
    """
    found = [c for c in result.curves if (c.phase, c.domain) == (phase, domain)]
    positions = sorted({c.position for c in found})
    if not found:
        raise ValueError(f"no reliability diagram was stored of {domain} with thinking {phase}; nothing to draw")
    fig, panels = figure("wide", 1, len(positions), sharex=True, sharey=True, squeeze=False)
    for axes, position in zip(panels[0], positions, strict=True):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1)
        for shift, c in zip((-0.006, 0.006), (c for c in found if c.position == position), strict=True):
            _, color, marker = METHODS[c.method]
            x, share = np.array(c.forecast), np.array(c.count) / sum(c.count)
            low, high = (np.array(ends, dtype=float) for ends in (c.low, c.high))
            interval(axes, x, low, high, color=color)
            axes.plot(x, c.outcome, marker, color=color, markersize=4)
            axes.vlines(x + shift, -0.2, -0.2 + 0.18 * share / max(share), color=color, linewidth=2)
        axes.set(title=f"position {position}", xlabel="forecast", xlim=(-0.02, 1.02), ylim=(-0.21, 1.02))
        axes.set_yticks([0, 0.5, 1])
        axes.set_aspect("equal")
    panels[0][0].set_ylabel("survived")
    marks = [METHODS[name] for name in dict.fromkeys(c.method for c in found)]
    legend_below(fig, [Line2D([], [], color=c, marker=m, linestyle="", label=name) for name, c, m in marks])
    where = "all domains" if domain == "all" else domain
    fig.suptitle(f"prefix survival, {where}, {PHASE[phase]}, held-out prompts", x=0.01, ha="left", fontsize=11)
    return fig


def errors(result: Calibration, sampling: str = "1") -> Figure:
    """ECE by position of every method, one panel a phase; dashed: what chance alone shows. ValueError without data."""
    cells = [c for c in result.cells if (c.sampling, c.domain) == (sampling, "all")]
    phases = [p for p in PHASE if p in {c.phase for c in cells}]
    if not phases:
        raise ValueError(f"nothing was measured at sampling {sampling}, so there is nothing to draw")
    fig, panels = figure("wide", 1, len(phases), sharey=True, squeeze=False)
    handles = []
    for axes, phase in zip(panels[0], phases, strict=True):
        for c in (c for c in cells if c.phase == phase):
            name, color, marker = METHODS[c.method]
            x = range(1, len(c.ece))
            (line,) = axes.plot(x, np.array(c.ece[1:], dtype=float), marker=marker, color=color, label=name)
            handles.append(line)
            if c.method == "sts":
                (floor,) = axes.plot(x, np.array(c.floor[1:], dtype=float), "--", color=GREY, label="chance alone")
        axes.set(title=PHASE[phase], xlabel="position in the block")
        axes.set_xticks(x)
    panels[0][0].set_ylim(bottom=0)
    panels[0][0].set_ylabel("ECE of prefix survival")
    legend_below(fig, [*handles[: len(METHODS)], floor])
    return fig


def auc(result: Calibration) -> Figure:
    """Rank AUC along the block, one panel a phase, with 95 % bands over prompts."""
    fig, panels = figure("wide", 1, len(result.rankings), sharey=True, squeeze=False)
    for axes, ranking in zip(panels[0], result.rankings, strict=True):
        _auc(axes, ranking)
        axes.set(title=PHASE[ranking.phase], xlabel="position in the block", ylim=(0.5, 1.005))
    panels[0][0].set_ylabel("rank AUC")
    legend_below(fig, panels[0][0].get_legend_handles_labels()[0])
    return fig


def _auc(axes: Axes, ranking: Ranking) -> None:
    for name, (label, color, marker, style) in AUC.items():
        value, low, high = (np.array(getattr(ranking, name + end), dtype=float) for end in ("", "_low", "_high"))
        x = np.arange(1, len(value) + 1)
        interval(axes, x, low, high, color=color, band=True)
        axes.plot(x, value, style, marker=marker, color=color, label=label)
    axes.set_xticks(x)
