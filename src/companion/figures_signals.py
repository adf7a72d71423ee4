"""Figures of what a signal sees of acceptance: how it ranks, and whether it notices that the phase has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from companion.experiments.phase_gap.contrasts import ALL
from companion.experiments.phase_gap.signals import Signal
from companion.experiments.phase_signals import PhaseSignals
from companion.figures import GREEN, GREY, PHASE, figure, interval, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDES = {
    "think": ("inside the span", PHASE["think"], "o"),
    "output": ("behind it", PHASE["output"], "s"),
    "off": ("thinking off", GREY, "D"),
    "on": ("a whole response, thinking on", GREEN, "^"),
}
NAMES = {
    "ceiling": "entropy ceiling, a row late",
    "not_closing": "1 - mass on </think>",
    "answer": "answer behind </think>",
    "answer_cued": "answer behind a cue",
    "confidence": "confidence head",
    "phase_rate": "rate of the phase",
    "own_row": "its own row's mode",
}


def ranking(result: PhaseSignals, drafter: str, sampling: str, domain: str = ALL) -> Figure:
    """Rank AUC of every signal for the first slot's acceptance, each side by itself, 95 % over prompts; right: mean
    forecast minus mean acceptance. ValueError when that was not measured."""
    found = [s for s in result.signals if (s.drafter, s.sampling, s.domain) == (drafter, sampling, domain)]
    if not found:
        raise ValueError(f"{drafter} was not measured at {sampling} in {domain}, so there is nothing to draw")
    names = [name for name in NAMES if any(s.signal == name for s in found)]
    fig, (left, right) = figure("wide", 1, 2, sharey=True)
    for offset, (side, (called, color, marker)) in enumerate(SIDES.items()):
        own = [s for s in found if s.side == side and s.auc.value is not None]
        y = [_place(names, s) + 0.18 * (offset - 1.5) for s in own]
        for place, s in zip(y, own, strict=True):
            if s.auc.low is not None and s.auc.high is not None:
                left.hlines(place, s.auc.low, s.auc.high, color=color, linewidth=1.6)
        left.plot([s.auc.value for s in own], y, marker, color=color, label=called)
        judged = [(s, place) for s, place in zip(own, y, strict=True) if s.forecast is not None]
        gaps = [(s.forecast or 0.0) - (s.accepted or 0.0) for s, _ in judged]
        right.plot(gaps, [place for _, place in judged], marker, color=color)
    left.axvline(0.5, color=GREY, linestyle=":", linewidth=1.2)
    right.axvline(0.0, color=GREY, linestyle=":", linewidth=1.2)
    left.set_yticks(range(len(names)), [NAMES[name] for name in names])
    left.invert_yaxis()
    left.set(xlabel="rank AUC for the first slot's acceptance", xlim=(0.2, 1.02))
    right.set(xlabel="mean signal minus mean acceptance", xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1))
    legend_below(fig, left.get_legend_handles_labels()[0])
    return fig


def _place(names: Sequence[str], signal: Signal) -> int:
    return names.index(signal.signal)


def autocorrelation(result: PhaseSignals, sampling: str, domains: Sequence[str]) -> Figure:
    """Correlation of the entropy of rows so many tokens apart, each side by itself, one panel a domain.

    ValueError when that was not measured."""
    fig, panels = figure("wide", 1, len(domains), sharey=True, squeeze=False)
    for axes, domain in zip(panels[0], domains, strict=True):
        own = [g for g in result.lags if (g.sampling, g.domain) == (sampling, domain)]
        if not own:
            raise ValueError(f"nothing was measured at {sampling} in {domain}, so there is nothing to draw")
        for g in own:
            called, color, marker = SIDES[g.side]
            known = {lag: value for lag, value in g.autocorrelation.items() if value is not None}
            axes.plot(list(known), list(known.values()), marker=marker, color=color, label=called)
        axes.axhline(0, color=GREY, linestyle=":", linewidth=1.2)
        axes.set(title=domain, xlabel="rows apart", ylim=(-0.2, 1))
    panels[0][0].set_ylabel("correlation of entropies")
    legend_below(fig, panels[0][0].get_legend_handles_labels()[0])
    return fig


def alike(result: PhaseSignals, gaps: dict[str, tuple[float, float, float]], ylabel: str) -> Figure:
    """A gap with its interval (value, low, high) of each domain, over how different the words of the phases are."""
    fig, axes = figure()
    for o in result.overlaps:
        if o.domain in gaps and o.think_off is not None:
            value, low, high = gaps[o.domain]
            interval(axes, [o.think_off], [low], [high], [value], color=GREEN)
            axes.annotate(o.domain, (o.think_off, value), xytext=(-6, 4), textcoords="offset points", ha="right")
    axes.axhline(0, color=GREY, linestyle=":", linewidth=1.2)
    axes.set(xlabel="divergence of the span's words from those without thinking (bits)", ylabel=ylabel, xlim=(0, None))
    return fig
