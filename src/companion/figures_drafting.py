"""Figures of the pages on two ways to draft, on bytes against operations, and on the paper's Table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.experiments import paper_table
from companion.experiments.bias_cost import Result
from companion.experiments.second_token import by_domain
from companion.figures import BLACK, BLUE, CYCLE, DOMAIN, GREEN, GREY, ORANGE, PURPLE, VERMILION, figure, interval
from companion.roofline import Device, Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

F64 = NDArray[np.float64]


def joint_laws(laws: Mapping[str, F64], first: Sequence[str], second: Sequence[str]) -> Figure:
    """Laws [V_1, V_2] of two tokens side by side, each cell with its probability."""
    fig, panels = figure("wide", 1, len(laws), sharey=True)
    for axes, (name, law) in zip(panels, laws.items(), strict=True):
        axes.imshow(law, cmap="Blues", vmin=0, vmax=1)
        for (row, column), chance in np.ndenumerate(law):
            axes.text(column, row, f"{chance:.2f}", ha="center", va="center", color="white" if chance > 0.5 else BLACK)
        axes.set(title=name, xticks=range(len(second)), yticks=range(len(first)), xlabel="second token")
        axes.set_xticklabels(second)
        axes.set_yticklabels(first)
        axes.grid(visible=False)
    panels[0].set_ylabel("first token")
    return fig


def collision_curves(
    shares: F64, by_share: Mapping[str, F64], strengths: F64, by_strength: F64, share: float
) -> Figure:
    """Acceptance of the second token: left, against how the target divides its mass; right, against the bias."""
    fig, (left, right) = figure("wide", 1, 2, sharey=True)
    for (name, values), color, line in zip(by_share.items(), (GREEN, BLUE, ORANGE), ("-", "--", "-"), strict=True):
        left.plot(shares, values, line, color=color, label=name)
    left.axvline(share, color=GREY, linestyle=":", linewidth=1.2)
    left.set(xlabel="target's mass on “of course”", ylabel="acceptance of the second token", ylim=(0.45, 1.02))
    right.plot(strengths, by_strength, color=GREEN)
    right.plot(0, by_strength[0], "s", color=ORANGE)
    right.annotate("no bias: parallel", (0, by_strength[0]), xytext=(10, -3), textcoords="offset points")
    right.set(xlabel=r"strength $\beta$ of a bias of rank one")
    right.legend(*left.get_legend_handles_labels(), loc="lower right", bbox_to_anchor=(1.0, 0.15))
    return fig


def second_token_by_domain(rows: pd.DataFrame) -> Figure:
    """Anchors in order of what the best parallel drafter reaches there, one curve a domain."""
    fig, axes = figure("single")
    for domain, own in by_domain(rows).items():
        share = np.arange(1, len(own) + 1) / len(own)
        axes.plot(share, np.sort(own["best"]), color=DOMAIN[domain], label=domain)
    axes.axhline(1, color=BLACK, linestyle=":", linewidth=1.2)
    axes.set(xlabel="share of anchors", ylabel="second token, best parallel drafter", ylim=(0, 1.03), xlim=(0, 1))
    axes.legend(loc="lower right")
    return fig


def roofline(device: Device, batches: Mapping[int, Mapping[str, Work]], of: str = "of weights") -> Figure:
    """The device's roof, and the parts of a round under it, one marker a part; the first batch filled, others open.

    At most seven parts.
    """
    colors = (BLUE, ORANGE, PURPLE, VERMILION, GREEN, BLACK, GREY)
    fig, axes = figure("single")
    x = np.sort(np.append(np.logspace(-0.5, 4), device.ridge))
    axes.loglog(x, [device.attainable(i) / 1e12 for i in x], color=BLACK)
    axes.axvline(device.ridge, color=GREY, linestyle=":", linewidth=1.2)
    axes.annotate(
        f"ridge: {device.ridge:.0f}", (device.ridge, 2.0), xytext=(-5, 0), textcoords="offset points", ha="right"
    )
    for number, works in enumerate(batches.values()):
        for (name, work), color, marker in zip(works.items(), colors, "sD^ovP*", strict=False):
            style: dict[str, Any] = {"fillstyle": "none"} if number else {"label": name}
            height = device.attainable(work.intensity) / 1e12
            axes.plot(work.intensity, height, marker, color=color, markersize=8, **style)
    axes.set(xlabel=f"operations per byte {of}".strip(), ylabel="attainable TFLOP/s", ylim=(1, 2000))
    axes.set_title(f"{device.name}, from its data sheet (not measured)")
    axes.legend(loc="upper left")
    return fig


def round_shares(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """Each part's share of a round (percent), one panel a way to count it."""
    fig, panels = figure("wide", 1, len(shares), sharey=True)
    for axes, (name, parts) in zip(panels, shares.items(), strict=True):
        y = np.arange(len(parts))[::-1]
        axes.barh(y, list(parts.values()), color=(BLUE, ORANGE, PURPLE, VERMILION))
        for place, value in zip(y, parts.values(), strict=True):
            axes.annotate(f"{value:.1f} %", (value, place), xytext=(4, -4), textcoords="offset points")
        axes.set(title=name, xlabel="percent of the round", yticks=y, yticklabels=list(parts), xlim=(0, 105))
        axes.grid(axis="y", visible=False)
    return fig


def bias_costs(result: Result) -> Figure:
    """Measured: left, a product with W_2 by the rows that share it; right, the ways to serve one round."""
    fig, (left, right) = figure("wide", 1, 2)
    products = result.products
    rows = products.index.to_numpy()
    low, high, median = (products[name].to_numpy() for name in ("low", "high", "median"))
    interval(left, rows, low, high, median, color=BLUE, label="one product, measured")
    left.plot(rows, median[0] * rows, "--", color=VERMILION, label="if each row read $W_2$ anew")
    in_turn = float(result.ways["median"]["one row at a time"])
    left.plot(result.gamma, in_turn, "D", color=VERMILION, label=f"{result.gamma} rows in turn, measured")
    left.set(xlabel="rows that share one reading of $W_2$", ylabel="milliseconds", xscale="log", yscale="log")
    left.set(xticks=rows, xticklabels=[str(n) for n in rows], title="one product")
    left.minorticks_off()
    left.legend(loc="upper left")
    y = np.arange(len(result.ways))[::-1]
    right.barh(y, result.ways["median"], color=(VERMILION, BLUE, PURPLE, GREEN))
    right.set(xlabel="milliseconds", yticks=y, yticklabels=list(result.ways.index))
    right.set_title("a round's bias")
    right.grid(axis="y", visible=False)
    return fig


def gains_by_benchmark(table: pd.DataFrame) -> Figure:
    """DSpark's tau over Eagle3's and over DFlash's, for each benchmark and target of the paper's table."""
    fig, panels = figure("wide", 1, 2, sharey=True)
    for axes, over in zip(panels, ("Eagle3", "DFlash"), strict=True):
        found = 100 * (paper_table.ratios(table, over) - 1)
        for number, (target, color, marker) in enumerate(zip(found.index, CYCLE, "osD^", strict=False)):
            x = np.arange(found.shape[1]) + 0.14 * (number - 1.5)
            axes.plot(x, found.loc[target], marker, color=color, label=str(target), linestyle="none")
        for edge in (2.5, 5.5):
            axes.axvline(edge, color=GREY, linewidth=0.8)
        axes.set_xticks(range(found.shape[1]), list(found.columns), rotation=40, ha="right")
        axes.set(title=f"DSpark over {over}", ylim=(0, None))
        axes.grid(axis="x", visible=False)
    panels[0].set_ylabel("longer accepted length (%)")
    panels[1].legend(loc="upper left", ncols=2)
    return fig
