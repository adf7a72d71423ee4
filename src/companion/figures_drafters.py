"""Figures of the pages on drafters: accepted length, and what becomes of it along the block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from companion.experiments.accepted_length import AcceptedLengths
from companion.experiments.drafter_statistics import Position
from companion.figures import DRAFTERS, GREY, figure, interval
from companion.training.corpus import DOMAINS, Mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THINKING = {"no_think": "thinking off", "think": "thinking on"}


def accepted_lengths(result: AcceptedLengths, temperature: float, mode: Mode) -> Figure:
    """tau of each drafter by domain: seeds pooled with the 95 % interval over prompts and seeds, beside them each seed.

    ValueError when nothing was measured at this temperature.
    """
    found = [c for c in result.cells if (c.temperature, c.mode) == (temperature, mode) and c.tau is not None]
    drafters = _known({c.drafter for c in found}, temperature)
    fig, axes = figure("wide")
    domains, width = ("all", *DOMAINS), 0.84 / len(drafters)
    for number, drafter in enumerate(drafters):
        name, color, marker = DRAFTERS[drafter]
        own = [c for c in found if c.drafter == drafter]
        whole = [c for c in own if c.seed is None and c.low is not None and c.high is not None]
        x = np.array([domains.index(c.domain) for c in whole]) + width * (number - (len(drafters) - 1) / 2)
        interval(axes, x, [c.low or 0 for c in whole], [c.high or 0 for c in whole], color=color)
        axes.plot(x, [c.tau or 0 for c in whole], marker, color=color, label=name)
        for place, cell in zip(x, whole, strict=True):
            seeds = [c.tau or 0 for c in own if c.seed is not None and c.domain == cell.domain]
            axes.plot(np.full(len(seeds), place + 0.3 * width), seeds, "_", color=color, markersize=5, alpha=0.7)
    axes.axhline(1, color=GREY, linestyle=":", linewidth=1.2)
    axes.set_xticks(range(len(domains)), ["all domains", *DOMAINS])
    axes.grid(axis="x", visible=False)
    axes.set(ylabel=r"accepted length $\tau$ (tokens a round)", ylim=(0.8, None))
    axes.set_title(f"temperature {temperature:g}, {THINKING[mode]}; dashes are single seeds")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    return fig


def by_position(
    result: AcceptedLengths,
    temperature: float,
    mode: Mode,
    drafters: Sequence[str] = ("eagle3", "dflash", "dspark"),
    *,
    rate: Literal["conditional", "survival"] = "conditional",
    at_least: int = 100,
) -> Figure:
    """Acceptance along the block, one panel a domain (the paper's figure 2), bands: 95 % over prompts and seeds.

    Positions that fewer than ``at_least`` rounds judged are left out. ValueError when nothing was measured.
    """
    found = [p for p in result.positions if (p.temperature, p.mode) == (temperature, mode)]
    wanted = [d for d in _known({p.drafter for p in found}, temperature) if d in drafters]
    fig, panels = figure("wide", 1, len(DOMAINS), sharey=True)
    for axes, domain in zip(panels, DOMAINS, strict=True):
        for drafter in wanted:
            name, color, marker = DRAFTERS[drafter]
            curve = [p for p in found if (p.drafter, p.domain) == (drafter, domain) and _trials(p, rate) >= at_least]
            x = [p.position for p in curve]
            low, value, high = np.reshape([_rate(p, rate) for p in curve], (-1, 3)).T
            interval(axes, x, low, high, color=color, band=True)
            axes.plot(x, value, marker=marker, color=color, label=name)
        axes.set(title=domain, xlabel="position in the block", ylim=(0, 1.02))
        axes.set_xticks(range(1, 1 + max(p.position for p in found)))
    panels[0].set_ylabel("conditional acceptance" if rate == "conditional" else "prefix survival")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    fig.suptitle(f"temperature {temperature:g}, {THINKING[mode]}", x=0.01, ha="left", fontsize=11)
    return fig


def _known(drafters: set[str], temperature: float) -> list[str]:
    """Those that were measured, in the order of the figures' list."""
    known = [d for d in DRAFTERS if d in drafters]
    if not known:
        raise ValueError(f"nothing was measured at temperature {temperature:g}, so there is nothing to draw")
    return known


def _trials(p: Position, rate: str) -> int:
    return p.judged if rate == "conditional" else p.verified


def _rate(p: Position, rate: str) -> tuple[float, float, float]:
    low, value, high = (
        (p.low, p.conditional, p.high) if rate == "conditional" else (p.survival_low, p.survival, p.survival_high)
    )
    assert low is not None  # a rate that was judged has all three
    assert value is not None
    assert high is not None
    return low, value, high
