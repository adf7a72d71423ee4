"""Figures of the phase gap: which drafter wins where, position curves, dose response, and calibration by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from companion.experiments.phase_gap.contrasts import ALL, Pooled
from companion.experiments.phase_gap.gaps import Contrast
from companion.experiments.phase_gap.study import PhaseGap
from companion.figures import GREY, PHASE, figure, in_order, interval, legend_below, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDES = {"think": "inside the span", "output": "behind it", "off": "thinking off"}
COLOR = {"think": PHASE["think"], "output": PHASE["output"], "off": GREY}


def crossover(result: PhaseGap, sampling: str, drafters: Sequence[str] | None = None) -> Figure:
    """Mean accepted length of each drafter inside the span, behind it and with thinking off, one panel a domain.

    ValueError when nothing was measured at this sampling.
    """
    found = _pooled(result, sampling)
    wanted = [d for d in in_order({p.drafter for p in found}) if drafters is None or d in drafters]
    domains = [d for d in dict.fromkeys(p.domain for p in found) if d != ALL]
    fig, panels = figure("wide", 1, len(domains), sharey=True, squeeze=False)
    handles: list[Any] = []
    for axes, domain in zip(panels[0], domains, strict=True):
        handles = []
        for number, drafter in enumerate(wanted):
            name, color, marker = look(drafter)
            own = next(p for p in found if (p.drafter, p.domain) == (drafter, domain))
            x = np.arange(len(SIDES)) + 0.09 * (number - (len(wanted) - 1) / 2)
            _intervals(axes, x, [getattr(own, side) for side in SIDES], color)
            values = [_value(getattr(own, side)) for side in SIDES]
            handles += axes.plot(x, values, marker=marker, color=color, label=name, linewidth=1.0)
        axes.axhline(1, color=GREY, linestyle=":", linewidth=1.2)
        axes.set_xticks(range(len(SIDES)), [text.replace(" ", "\n", 1) for text in SIDES.values()])
        axes.set_title(domain)
    panels[0][0].set_ylabel(r"accepted length $\tau$ (tokens a round)")
    legend_below(fig, handles)
    return fig


def position_curves(result: PhaseGap, sampling: str, drafters: Sequence[str], domain: str = ALL) -> Figure:
    """Conditional acceptance along the draft, each side by itself, one panel a drafter; bands: 95 % over prompts and
    seeds. ValueError when a drafter was not measured at this sampling."""
    fig, panels = figure("wide", 1, len(drafters), sharey=True, squeeze=False)
    for axes, drafter in zip(panels[0], drafters, strict=True):
        own = [p for p in result.points if (p.drafter, p.sampling, p.domain) == (drafter, sampling, domain)]
        if not own:
            raise ValueError(f"{drafter} was not measured at {sampling} in {domain}, so there is nothing to draw")
        for side, called in SIDES.items():
            curve = [p for p in own if p.side == side and p.rate.low is not None]
            x = [p.position for p in curve]
            ends = [(p.rate.low or 0.0, p.rate.high or 0.0) for p in curve]
            interval(axes, x, [e[0] for e in ends], [e[1] for e in ends], color=COLOR[side], band=True)
            axes.plot(x, [_value(p.rate) for p in curve], marker="o", color=COLOR[side], label=called)
        axes.set(title=look(drafter)[0], xlabel="position in the draft", ylim=(0, 1.02))
    panels[0][0].set_ylabel("conditional acceptance")
    legend_below(fig, panels[0][0].get_legend_handles_labels()[0])
    return fig


def dose_response(result: PhaseGap, sampling: str) -> Figure:
    """Mean accepted length against the share of thinking traces that the drafter was trained on, one panel a domain;
    training seeds pooled. ValueError with fewer than three shares."""
    found = _pooled(result, sampling)
    doses = [d for d in result.doses if d.sampling == sampling]
    if not doses:
        raise ValueError(f"at {sampling} no drafter was trained on three shares of thinking traces; nothing to draw")
    drafters = doses[0].drafters
    domains = [d for d in dict.fromkeys(p.domain for p in found) if d != ALL]
    fig, panels = figure("wide", 1, len(domains), sharey=True, squeeze=False)
    for axes, domain in zip(panels[0], domains, strict=True):
        own = [next(p for p in found if (p.drafter, p.domain) == (d, domain)) for d in drafters]
        x = np.arange(len(own), dtype=float)  # the shares are far from even: places, not a scale
        for side, called in SIDES.items():
            _intervals(axes, x, [getattr(p, side) for p in own], COLOR[side])
            axes.plot(x, [_value(getattr(p, side)) for p in own], marker="o", color=COLOR[side], label=called)
        axes.set_xticks(x, [f"{100 * (p.think_share or 0):g} %" for p in own])
        axes.set(title=domain, xlabel="thinking traces in training")
    panels[0][0].set_ylabel(r"accepted length $\tau$ (tokens a round)")
    legend_below(fig, panels[0][0].get_legend_handles_labels()[0])
    return fig


def calibration(result: PhaseGap, drafter: str, sampling: str) -> Figure:
    """Reliability of the first position's confidence, each side by itself, one panel a domain; the diagonal is right.

    ValueError when no confidence of this drafter was kept at this sampling.
    """
    found = [c for c in result.calibration if (c.drafter, c.sampling) == (drafter, sampling)]
    found = [c for c in found if c.seed == min(c.seed for c in found)]
    if not found:
        raise ValueError(f"no confidence of {drafter} was kept at {sampling}, so there is nothing to draw")
    fig, panels = figure("wide", 1, len(found), sharey=True, squeeze=False)
    for axes, cell in zip(panels[0], found, strict=True):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, linestyle=":")
        for side, called in SIDES.items():
            diagram = np.reshape([row for row in getattr(cell, side).diagram if row[2] >= 10], (-1, 3))
            axes.plot(*diagram[:, :2].T, marker="o", color=COLOR[side], label=called)
        axes.set(title=cell.domain, xlabel="confidence at position 1", xlim=(0, 1), ylim=(0, 1))
    panels[0][0].set_ylabel("accepted")
    legend_below(fig, panels[0][0].get_legend_handles_labels()[0])
    return fig


def _pooled(result: PhaseGap, sampling: str) -> list[Pooled]:
    found = [p for p in result.pooled if p.sampling == sampling]
    if not found:
        known = ", ".join(dict.fromkeys(p.sampling for p in result.pooled)) or "none"
        raise ValueError(f"nothing was measured at {sampling} (measured: {known}), so there is nothing to draw")
    return found


def _value(contrast: Contrast) -> float:
    return np.nan if contrast.value is None else contrast.value


def _intervals(axes: Axes, x: np.ndarray, contrasts: Sequence[Contrast], color: str) -> None:
    """Of those that have one."""
    known = [(place, c.low, c.high) for place, c in zip(x, contrasts, strict=True) if c.low is not None]
    places, lows, highs = np.reshape(np.array(known, dtype=float), (-1, 3)).T
    interval(axes, places, lows, highs, color=color)
