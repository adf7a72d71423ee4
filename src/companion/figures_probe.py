"""Figures of the probe and of forced exit: one response's signals, both phases' entropies, accuracy by think length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from companion.experiments.forced_exit.design import CUE, FAMILIES
from companion.experiments.forced_exit.study import Point, Result, Trace
from companion.figures import (
    BLACK,
    BLUE,
    DOMAIN,
    GREEN,
    GREY,
    ORANGE,
    PHASE,
    PURPLE,
    SKY,
    VERMILION,
    figure,
    interval,
    legend_below,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Family -> colour, marker; two that share a colour differ in a repair or in the cue
LOOK = {
    "fixed": (GREY, ""),
    "converged": (BLUE, "o"),
    "converged-ready": (SKY, "o"),
    "overthinking": (ORANGE, "s"),
    "overthinking-samples": (VERMILION, "s"),
    "settled": (GREEN, "^"),
    "settled-cued": (GREEN, "v"),
    "certain": (PURPLE, "D"),
    "certain-cued": (PURPLE, "X"),
}


def trace(trace: Trace) -> Figure:
    """e, H and both answer entropies along one response, its span shaded. ValueError for a response without one."""
    inside = [i for i, phase in enumerate(trace.phases) if phase == "think"]
    if not inside:
        raise ValueError("this response has no think span, so there is nothing to shade; choose one with thinking on")
    fig, (top, middle, bottom) = figure("tall", 3, 1, sharex=True)
    at = np.arange(len(trace.mass))
    top.plot(at, trace.mass, color=BLACK, linewidth=1)
    top.set(ylabel="e, mass on </think>", ylim=(-0.03, 1.05))
    middle.plot(at, trace.entropy, color=BLUE, linewidth=1)
    middle.set(ylabel="entropy H (nats)")
    names = {"": "behind </think>", CUE: "behind </think> and a cue"}
    for (cue, values), color in zip(trace.answer_entropy.items(), (GREEN, VERMILION), strict=False):
        bottom.plot(trace.probed, values, color=color, linewidth=1, label=names.get(cue, repr(cue)))
    bottom.set(ylabel="answer entropy (nats)", xlabel="token of the response", xlim=(0, len(at)))
    for axes in (top, middle, bottom):
        axes.axvspan(inside[0] - 0.5, inside[-1] + 0.5, color=PHASE["think"], alpha=0.12, linewidth=0)
    legend_below(fig, bottom.get_legend_handles_labels()[0])
    return fig


Rows = Sequence[tuple[Sequence[str], Sequence[float]]]  # of each response: phases and entropies, nats, token by token


def entropies(by_domain: Mapping[str, Rows]) -> Figure:
    """Cumulative distribution of the rows' entropy, each phase by itself, one panel a domain."""
    fig, panels = figure("wide", 1, len(by_domain), sharey=True, squeeze=False)
    for axes, (domain, responses) in zip(panels[0], by_domain.items(), strict=True):
        for phase, called in (("think", "inside the span"), ("output", "behind it")):
            own = [h for phases, row in responses for p, h in zip(phases, row, strict=True) if p == phase]
            axes.ecdf(own, color=PHASE[phase], label=called)
        axes.set(title=domain, xlabel="entropy H (nats)", xlim=(0, None), ylim=(0, 1.02))
    panels[0][0].set_ylabel("share of rows at most so uncertain")
    legend_below(fig, panels[0][0].get_legend_handles_labels()[0])
    return fig


def accuracy(result: Result, families: Sequence[str] | None = None) -> Figure:
    """Share of right answers against mean think length on the judging prompts, one panel a domain.

    Small: every setting that was tried; large, with 95 % intervals over prompts: those that the tuning prompts chose.
    The line is the foil, an exit at a fixed length. Diamond and cross: full thinking and thinking off.
    """
    wanted = list(LOOK) if families is None else list(families)
    if unknown := sorted(set(wanted) - set(LOOK)):
        raise ValueError(f"there is no rule family {unknown[0]!r}; choose from {', '.join(LOOK)}")
    found = [p for p in result.points if p.split == "judging"]
    domains = [d for d in DOMAIN if any(p.domain == d for p in found)]
    fig, panels = figure("wide", 1, len(domains), sharey=True, squeeze=False)
    for axes, domain in zip(panels[0], domains, strict=True):
        _panel(axes, result, [p for p in found if p.domain == domain], domain, wanted)
    panels[0][0].set_ylabel("right answers")
    handles: dict[str, object] = {}
    for axes in panels[0]:
        own, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, own, strict=True))
    legend_below(fig, list(handles.values()))
    return fig


def _panel(axes: Axes, result: Result, points: Sequence[Point], domain: str, wanted: Sequence[str]) -> None:
    for family in wanted:
        color, marker = LOOK[family]
        own = sorted((p for p in points if p.family == family), key=lambda p: p.think_tokens.value)
        x, y = [p.think_tokens.value for p in own], [p.accuracy.value for p in own]
        if family == "fixed":
            low, high = ([getattr(p.accuracy, end) for p in own] for end in ("low", "high"))
            interval(axes, x, low, high, color=color, band=True)
            axes.plot(x, y, color=color, label=FAMILIES[family])
            continue
        axes.plot(x, y, marker, color=color, markersize=2.5, alpha=0.35)
        chosen = [j.point for j in result.judged if (j.point.family, j.point.domain) == (family, domain)]
        for k, p in enumerate(chosen):
            ends = (p.accuracy.low or 0.0, p.accuracy.high or 1.0)
            interval(axes, [p.think_tokens.value], [ends[0]], [ends[1]], color=color)
            label = FAMILIES[family] if k == 0 else None
            axes.plot(p.think_tokens.value, p.accuracy.value, marker, color=color, markersize=7, label=label)
    (full,) = [p for p in points if p.family == "none"]
    axes.plot(full.think_tokens.value, full.accuracy.value, "d", color=BLACK, markersize=7, label="full thinking")
    (off,) = [r for r in result.references if r.domain == domain]
    axes.plot(0, off.off_accuracy.value, "x", color=BLACK, markersize=7, label="thinking off")
    axes.set(title=domain, xlabel="think tokens", ylim=(-0.03, 1.05))
