"""Figures of the pages on the accept/reject rule, the latency equation and EAT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.acceptance import residual
from companion.accepted_length import tau
from companion.costs import breakeven_tau, speedup
from companion.figures import BLACK, BLUE, CYCLE, GREEN, ORANGE, PHASE, PURPLE, VERMILION, figure, interval
from companion.planning import CostModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

F64 = NDArray[np.float64]
_LIGHT = "#DCE9F3"


def one_step(p_t: F64, p_d: F64, names: Sequence[str]) -> Figure:  # [V], [V]
    """Left, where draft and target agree; right, the emitted token's law put together from its two parts."""
    fig, (left, right) = figure("wide", 1, 2, sharey=True)
    x, kept = np.arange(len(p_t)), np.minimum(p_t, p_d)
    left.bar(x - 0.2, p_t, 0.4, color=BLUE, label="target $p_t$")
    left.bar(x + 0.2, p_d, 0.4, color=ORANGE, label="draft $p_d$")
    left.hlines(kept, x - 0.4, x + 0.4, color=BLACK, linewidth=1.6, label=r"$\min(p_d, p_t)$")
    left.set(title=f"overlap c* = {kept.sum():.2f}", ylabel="probability")
    refill = (1 - kept.sum()) * residual(p_t, p_d)
    right.bar(x, kept, 0.5, color=GREEN, label="accepted draft")
    right.bar(x, refill, 0.5, bottom=kept, color=PURPLE, hatch="///", edgecolor="white", label="residual, resampled")
    right.hlines(p_t, x - 0.35, x + 0.35, color=BLACK, linewidth=1.6, label="target $p_t$")
    right.set(title="what is emitted")
    for axes in (left, right):
        axes.set(xticks=x, xticklabels=names, xlabel="token")
        axes.grid(axis="x", visible=False)
        axes.legend(loc="upper right")
    return fig


def rule_laws(p_t: F64, laws: Mapping[str, F64], names: Sequence[str]) -> Figure:
    """Each rule's exact law against the target, token by token."""
    fig, axes = figure("wide")
    x = np.arange(len(p_t))
    axes.bar(x, p_t, 0.86, color=_LIGHT, edgecolor=BLUE, linewidth=1.0, label="target $p_t$")
    for number, (name, law) in enumerate(laws.items()):
        place = x + 0.18 * (number - (len(laws) - 1) / 2)
        axes.plot(place, law, "osD^"[number % 4], color=(BLACK, *CYCLE[1:])[number], label=name)
    axes.set(xticks=x, xticklabels=names, xlabel="token", ylabel="probability of being emitted", ylim=(-0.015, None))
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper right")
    return fig


def forward_cost(forwards: pd.DataFrame, cost: CostModel) -> Figure:
    """Time of one forward by its number of tokens, with quartiles and the fitted line, and the share of each token."""
    fig, (left, right) = figure("wide", 1, 2)
    tokens = forwards.index.to_numpy()
    low, high, median = (forwards[name].to_numpy() / 1000 for name in ("low", "high", "median"))
    interval(left, tokens, low, high, median, label="measured, median and quartiles")
    line = np.linspace(1, tokens[-1])
    fitted = cost.verify_fixed_us / 1000 + cost.verify_token_us / 1000 * (line - 1)
    left.plot(line, fitted, "--", color=VERMILION, label="line through 1 to 8 tokens")
    top = 1.3 * max(high.max(), fitted.max())  # room for the legend
    left.set(xlabel="tokens in one forward", ylabel="milliseconds", ylim=(0, top), title="one forward")
    left.legend(loc="upper left")
    interval(right, tokens, low / tokens, high / tokens, median / tokens)
    right.set(xscale="log", xticks=tokens, xlabel="tokens in one forward", ylabel="milliseconds per token")
    right.set_xticklabels([str(n) for n in tokens])
    right.minorticks_off()
    right.set(ylim=(0, None), title="each token's share")
    return fig


def speedup_by_depth(cost: CostModel, rates: Sequence[float], depths: Sequence[int], title: str) -> Figure:
    """Eq. 1 read forwards: the speed-up over plain decoding that an i.i.d. acceptance would give at each depth."""
    fig, axes = figure("single")
    for rate, color, marker in zip(rates, CYCLE, "osD^v", strict=False):
        values = [
            speedup(cost.verify_fixed_us, g * cost.draft_token_us, cost.verify_fixed_us + g * cost.verify_token_us, t)
            for g, t in zip(depths, tau(rate, np.asarray(depths)), strict=True)
        ]
        axes.plot(depths, values, marker=marker, color=color, label=f"a = {rate:g}")
    axes.axhline(1.0, color=BLACK, linewidth=1.2, linestyle=":", label="plain decoding")
    axes.set(xlabel="depth (drafted tokens a round)", ylabel="predicted speed-up", title=title, xticks=depths)
    axes.set(ylim=(0, None))
    axes.legend(ncols=3)
    return fig


def two_eats(mass: F64, entropy_after: F64, phases: Sequence[str]) -> Figure:  # [T], [T], [T]
    """Along one response: the note's e on top, the entropy after an appended `</think>` below."""
    fig, (top, bottom) = figure("tall", 2, 1, sharex=True)
    steps, end = np.arange(len(mass)), max((i for i, phase in enumerate(phases) if phase == "think"), default=0)
    top.semilogy(steps, np.maximum(mass, 1e-12), color=BLUE)
    top.set(ylabel="e: mass on </think>", title="the note's EAT: an acceptance rate", ylim=(1e-12, 3))
    bottom.plot(steps, entropy_after, color=VERMILION)
    bottom.set(ylabel="entropy after </think> (nats)", xlabel="token of the response", ylim=(0, None))
    bottom.set(title="arXiv:2509.26522's EAT: an entropy")
    for axes in (top, bottom):
        axes.axvspan(0, end, color=PHASE["think"], alpha=0.08, linewidth=0)
        axes.axvline(end, color=PHASE["think"], linewidth=1.2, linestyle="--")
    ends = "the span ends here" if "output" in phases[end:] else "cut off inside the span"
    top.annotate(ends, (end, 0.05), xytext=(-8, 0), textcoords="offset points", ha="right", color=BLACK)
    return fig


def boundary_scatter(acceptance: F64, eat: F64, covers: NDArray[np.bool_]) -> Figure:  # [N] each
    """Proposition 3: acceptance never above e, and on the diagonal where the draft covers the target on E."""
    fig, axes = figure("single")
    low = max(float(eat.min()), 1e-9)
    axes.plot([low, 1], [low, 1], color=BLACK, linewidth=1.0)
    axes.loglog(
        eat[~covers],
        np.maximum(acceptance[~covers], low),
        "o",
        color=ORANGE,
        alpha=0.5,
        label="$p_d < p_t$ somewhere on E",
    )
    axes.loglog(eat[covers], acceptance[covers], "s", color=BLUE, alpha=0.5, label="$p_d$ covers $p_t$ on E: equality")
    axes.annotate("c* = e", (low * 3, low * 3), xytext=(0, 8), textcoords="offset points", rotation=35, color=BLACK)
    axes.set(xlabel="e, the target's mass on E", ylabel="c*, acceptance of the drafter")
    axes.legend(loc="lower right")
    return fig


def latency_levers(t_plain: float, t_draft: float, t_verify: float) -> Axes:
    """Speed-up against accepted length for the review's times, with its two drafters marked."""
    fig, axes = figure("single")
    lengths = np.linspace(1, 9)
    axes.plot(lengths, [speedup(t_plain, t_draft, t_verify, t) for t in lengths], color=BLUE)
    for length, note in ((3.5, "suffix decay"), (5.5, "decay repaired")):
        value = speedup(t_plain, t_draft, t_verify, length)
        axes.plot(length, value, "o", color=VERMILION)
        axes.annotate(f"{note}: {value:.2f}x", (length, value), xytext=(8, -10), textcoords="offset points")
    even = breakeven_tau(t_plain, t_draft, t_verify)
    axes.axhline(1.0, color=BLACK, linestyle=":", linewidth=1.2)
    axes.plot(even, 1.0, "s", color=BLACK)
    axes.annotate(f"break-even: {even:.2f} tokens a round", (even, 1.0), xytext=(10, -14), textcoords="offset points")
    axes.set(xlabel=r"accepted length $\tau$ (tokens a round)", ylabel="speed-up over plain decoding", ylim=(0, None))
    del fig
    return axes
