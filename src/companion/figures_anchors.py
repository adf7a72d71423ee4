"""Figures from many anchors: conditional acceptance along the block, and where the real loop lands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from companion.experiments.suffix_decay import SuffixDecay
from companion.figures import DRAFTERS, GREY, figure, interval
from companion.figures_drafters import THINKING
from companion.training.corpus import DOMAINS, Mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def suffix_decay(
    result: SuffixDecay,
    temperature: float = 1.0,
    mode: Mode = "no_think",
    drafters: Sequence[str] = ("eagle3", "dflash", "dspark"),
    *,
    at_least: int = 300,
) -> Figure:
    """Conditional acceptance by position at every anchor, one panel a domain: expected, with its 95 % band over prompts
    and seeds, and sampled as open marks. Positions that fewer than ``at_least`` blocks reach are left out.

    ValueError when nothing was measured.
    """
    sampled, analytic = (
        {(p.drafter, p.domain, p.position): p for p in found if (p.temperature, p.mode) == (temperature, mode)}
        for found in (result.positions, result.analytic)
    )
    wanted = [d for d in DRAFTERS if d in drafters and d in {name for name, _, _ in sampled}]
    if not wanted:
        raise ValueError(f"no such drafter was measured at temperature {temperature:g}, so there is nothing to draw")
    fig, panels = figure("wide", 1, len(DOMAINS), sharey=True)
    for axes, domain in zip(panels, DOMAINS, strict=True):
        for drafter in wanted:
            name, color, marker = DRAFTERS[drafter]
            reached = [p for key, p in sampled.items() if key[:2] == (drafter, domain) and p.judged >= at_least]
            x = [p.position for p in reached]
            expected = [analytic[drafter, domain, k] for k in x]
            ends = np.array([(p.low, p.conditional, p.high) for p in expected], dtype=float)
            low, value, high = ends.reshape(-1, 3).T
            interval(axes, x, low, high, color=color, band=True)
            axes.plot(x, value, color=color, label=name)
            axes.plot(x, [p.conditional or 0 for p in reached], marker, color=color, markerfacecolor="white")
        axes.set(title=domain, xlabel="position in the block", ylim=(0, 1.02))
        axes.set_xticks(range(1, 1 + max(position for _, _, position in sampled)))
    panels[0].set_ylabel("conditional acceptance")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    title = f"every anchor, temperature {temperature:g}, {THINKING[mode]}; lines expected, marks sampled"
    fig.suptitle(title, x=0.01, ha="left", fontsize=11)
    return fig


def visited_anchors(result: SuffixDecay, temperature: float, mode: Mode = "no_think") -> Figure:
    """tau of each drafter at uniform anchors, at anchors weighted as the real loop visits them, and in the real loop.

    ValueError when nothing was measured.
    """
    found = {
        c.drafter: c
        for c in result.comparisons
        if (c.temperature, c.mode, c.position) == (temperature, mode, 0) and c.drafter in DRAFTERS
    }
    if not found:
        raise ValueError(f"no drafter was compared at temperature {temperature:g}, so there is nothing to draw")
    fig, axes = figure()
    names = [d for d in DRAFTERS if d in found]
    for x, drafter in enumerate(names):
        c, (_, color, marker) = found[drafter], DRAFTERS[drafter]
        axes.plot([x - 0.2, x], [c.uniform, c.visited], color=GREY, linewidth=1, zorder=1)
        axes.plot(x - 0.2, c.uniform, marker, color=color, markerfacecolor="white")
        axes.plot(x, c.visited, marker, color=color)
        if c.real is not None and c.gap_low is not None and c.gap_high is not None:
            interval(axes, [x + 0.2], [c.visited + c.gap_low], [c.visited + c.gap_high], color=color)
            axes.plot(x + 0.2, c.real, "_", color=color, markersize=9)
    axes.set_xticks(range(len(names)), [DRAFTERS[d][0] for d in names])
    axes.grid(axis="x", visible=False)
    axes.set(ylabel=r"accepted length $\tau$ (tokens a round)", xlim=(-0.6, len(names) - 0.4))
    key = "open: every anchor, filled: as the loop visits them, dash: the real loop"
    axes.set_title(f"temperature {temperature:g}, {THINKING[mode]}\n{key}")
    return fig
