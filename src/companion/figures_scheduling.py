"""Figures of the pages on scheduling: expected throughput along the greedy path, and what stopping early loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from companion.figures import BLACK, BLUE, CYCLE, ORANGE, figure
from companion.scheduling.prefix import ThroughputPath

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def throughput(paths: Mapping[str, ThroughputPath], requests: Mapping[str, int]) -> Figure:
    """Theta over B, a panel each: where the early stop ends, what it looked at, and the best point of the path."""
    fig, panels = figure("wide", columns=len(paths), squeeze=False)
    for axes, (name, path) in zip(panels[0], paths.items(), strict=True):
        b = requests[name] + np.arange(len(path.theta))
        falls = np.flatnonzero(np.diff(path.theta) <= 0)
        stop = int(falls[0]) if len(falls) else len(b) - 1
        best = int(np.argmax(path.theta))
        axes.plot(b[: stop + 2], path.theta[: stop + 2], color=BLUE, marker="o", label="looked at")
        axes.plot(b[stop + 1 :], path.theta[stop + 1 :], color=BLUE, ls=":")
        axes.plot(b[stop + 2 :], path.theta[stop + 2 :], "o", color=BLUE, mfc="white", label="not seen")
        axes.plot(b[stop], path.theta[stop], "s", color=ORANGE, markersize=10, zorder=1, label="early stop")
        axes.plot(b[best], path.theta[best], "x", color=BLACK, markersize=9, zorder=3, label="best point")
        axes.set(title=name, xlabel="$B$, tokens in the forward", ylim=(0, 1.08 * path.theta.max()))
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0][0].set_ylabel(r"$\Theta$, expected tokens per unit of time")
    panels[0][0].plot([], [], "o", color=BLUE, mfc="white", label="not seen")  # a panel may have none
    handles, names = panels[0][0].get_legend_handles_labels()
    panels[0][0].legend(dict(zip(names, handles, strict=True)).values(), dict.fromkeys(names), loc="lower left")
    return fig


def early_stop_loss(
    tiles: Sequence[int],  # [n] tokens between two steps of the curve
    losses: Mapping[str, Sequence[Sequence[float]]],  # [n] samples of 1 - Theta / Theta*, by policy
) -> Figure:
    """Mean loss against how jagged the curve is, with 95 % intervals of the mean."""
    fig, axes = figure("single")
    for (name, samples), colour, marker in zip(losses.items(), CYCLE, "os^v", strict=False):
        mean = np.array([np.mean(s) for s in samples])
        half = np.array([1.96 * np.std(s, ddof=1) / np.sqrt(len(s)) for s in samples])
        axes.errorbar(tiles, 100 * mean, yerr=100 * half, color=colour, marker=marker, capsize=2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(tiles), [str(t) for t in tiles])
    axes.set(xlabel="tokens in one tile of the curve", ylabel="mean loss of throughput, %", ylim=(0, None))
    axes.minorticks_off()
    axes.legend()
    return fig
