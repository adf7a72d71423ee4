"""Figures of the page on the entropy ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from companion.ceiling import entropy_ceiling, entropy_floor, top_m_ceiling
from companion.experiments.entropy_ceiling import SUPPORTS
from companion.figures import BLACK, BLUE, CYCLE, DOMAIN, GREEN, GREY, ORANGE, VERMILION, figure, interval
from companion.metrics import wilson
from companion.planning import CostModel, Planner, plan_depths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def bracket(vocab_sizes: Sequence[int], axes: Axes | None = None) -> Axes:
    """The floor e^-H and the ceiling p*(H, V) of several vocabularies, over H in nats."""
    if axes is None:
        _, axes = figure("single")
    top = np.log(max(vocab_sizes))
    H = np.linspace(0, top, 400)
    axes.plot(H, entropy_floor(H), color=GREY, label=r"floor $e^{-H}$")
    for size, color, style in zip(vocab_sizes, CYCLE, ("-", "--", "-."), strict=False):
        h = np.linspace(0, np.log(size), 400)
        axes.plot(h, entropy_ceiling(h, size), style, color=color, label=f"ceiling p*(H, {size:,})")
    axes.set(xlabel="entropy H of the target's distribution (nats)", ylabel="largest probability M", ylim=(0, 1.02))
    axes.set(xlim=(0, top))
    axes.legend(loc="upper right")
    return axes


def rows_under_the_curve(rows: pd.DataFrame, vocab: int) -> Figure:
    """Every row at temperature 1 as a point (H, M), inside the bracket that its vocabulary sets."""
    fig, axes = figure("wide")
    plain = rows[rows["served"] == "T=1"]
    for (domain, color), marker in zip(DOMAIN.items(), "o^s", strict=True):
        part = plain[plain["domain"] == domain]
        axes.plot(part["entropy"], part["max_p"], marker, color=color, markersize=3, alpha=0.45, label=domain)
    H = np.linspace(0, max(plain["entropy"].max() * 1.08, 0.5), 300)
    axes.fill_between(H, entropy_floor(H), entropy_ceiling(H, vocab), color=GREY, alpha=0.12, linewidth=0)
    axes.plot(H, entropy_ceiling(H, vocab), color=BLACK, label=f"ceiling p*(H, {vocab:,})")
    axes.plot(H, entropy_floor(H), "--", color=BLACK, label=r"floor $e^{-H}$")
    axes.set(xlabel="entropy H (nats)", ylabel="largest probability M", xlim=(0, H[-1]), ylim=(0, 1.02))
    axes.legend(loc="upper right", ncols=2)
    return fig


def supports(vocab: int) -> Figure:
    """P*_m(H, V) for drafters with 1, 2, 4 and 8 tokens in their support."""
    fig, axes = figure("single")
    H = np.linspace(0, np.log(vocab), 500)
    for m, color, style in zip(SUPPORTS, CYCLE, ("-", "--", "-.", ":"), strict=False):
        axes.plot(H, top_m_ceiling(H, vocab, m), style, color=color, label=f"m = {m}")
    axes.set(xlabel="entropy H (nats)", ylabel="ceiling on acceptance", ylim=(0, 1.02), xlim=(0, H[-1]))
    axes.legend(title="tokens in the support")
    return fig


def reliability(slots: pd.DataFrame, bins: Sequence[float]) -> Figure:
    """How often a deterministic drafter's tokens were accepted, by the ceiling of their row, with Wilson intervals."""
    fig, axes = figure("single")
    axes.plot([0, 1], [0, 1], color=BLACK, linewidth=1.0, label="the ceiling")
    groups = slots.groupby(pd.cut(slots["ceiling"], list(bins)), observed=True)
    mean, total, hits = groups["ceiling"].mean(), groups.size(), groups["accepted"].sum()
    rate = (hits / total).to_numpy()
    low, high = np.array([wilson(int(h), int(n)) for h, n in zip(hits, total, strict=True)]).reshape(-1, 2).T
    interval(axes, mean.to_numpy(), low, high, rate, color=BLUE, label="accepted, with 95 % interval")
    axes.set(
        xlabel="ceiling p*(H, V) of the judged row", ylabel="share of drafts accepted", xlim=(0, 1.02), ylim=(0, 1.02)
    )
    axes.legend(loc="upper left")
    return fig


def forecast(rows: pd.DataFrame, vocab: int) -> Figure:
    """The row before as a forecast: its entropy against the entropy of the row that is judged, and against its mode."""
    fig, (left, right) = figure("wide", 1, 2)
    plain = rows[rows["served"] == "T=1"].sort_values(["response", "step"])
    before = plain.groupby("response")["entropy"].shift(1)
    left.plot(before, plain["entropy"], "o", color=BLUE, markersize=3, alpha=0.35)
    left.set(xlabel="entropy of the row before (nats)", ylabel="entropy of the judged row (nats)")
    top = max(float(plain["entropy"].max()), 0.1)
    left.plot([0, top], [0, top], color=GREY, linewidth=1.0)
    left.set(title="how alike neighbours are")
    H = np.linspace(0, top * 1.05, 300)
    above = plain["max_p"] > entropy_ceiling(before.fillna(0.0).to_numpy(), vocab)
    for part, color, label in ((~above, BLUE, "below the line"), (above, VERMILION, "above it")):
        right.plot(before[part], plain.loc[part, "max_p"], "o", color=color, markersize=3, alpha=0.35, label=label)
    right.plot(H, entropy_ceiling(H, vocab), color=BLACK)
    right.set(xlabel="entropy of the row before (nats)", ylabel="largest probability of the judged row")
    right.set(title="the ceiling of the row before", ylim=(0, 1.02))
    right.legend(loc="lower center", bbox_to_anchor=(0.5, -0.34), ncols=2)
    return fig


def planners(vocab: int, cost: CostModel | None = None) -> Figure:
    """Depth against entropy for the two planners on one cost model."""
    fig, axes = figure("single")
    H = np.linspace(0, np.log(vocab), 1200)
    styles: tuple[tuple[Planner, str, str], ...] = (("iid", ORANGE, "-"), ("certified", GREEN, "--"))
    for planner, color, style in styles:
        depths = plan_depths(entropy_ceiling(H, vocab), cost, planner=planner)
        axes.step(H, depths, style, color=color, where="mid", label=planner)
    axes.set(xlabel="entropy H (nats)", ylabel="planned depth (tokens)", ylim=(0, 7.6), xlim=(0, H[-1]))
    axes.legend(title="planner", loc="lower left")
    return fig
