"""Serving under load as pictures: throughput, speed per user and budget against concurrency; and SPS(B), jagged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from companion import figures
from companion.experiments.capacity_profile import Result as Profile
from companion.experiments.load.policies import static_depth
from companion.experiments.load.study import Result
from companion.experiments.load.summary import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# policy -> how it is called, colour, marker; static depths are grey, the deeper the darker
POLICIES = {
    "plain": ("plain decoding", figures.BLACK, "x"),
    "slot": ("threshold on a slot", figures.ORANGE, "v"),
    "prefix-threshold": ("threshold on the prefix", figures.ORANGE, "^"),
    "rejection": ("threshold on a rejection", figures.ORANGE, "s"),
    "prefix": ("Algorithm 1", figures.GREEN, "D"),
    "prefix-raw": ("Algorithm 1, uncalibrated", figures.GREEN, "d"),
    "lagged": ("deployed: two steps old, top K", figures.SKY, "o"),
    "lagged-raw": ("deployed, uncalibrated", figures.SKY, "s"),
    "lagged-threshold": ("the same, drafting limited", figures.BLUE, "o"),
    "goodput": ("goodput", figures.PURPLE, "p"),
    "oracle": ("oracle, only in a simulation", figures.VERMILION, "*"),
}
SHOWN = ("plain", "fixed-1", "fixed-3", "fixed-5", "fixed-7", "slot", "prefix", "lagged", "lagged-threshold", "goodput")


def look(policy: str) -> tuple[str, str, str]:
    """Name, colour and marker."""
    depth = static_depth(policy)
    if depth:
        return f"depth {depth}", f"{0.86 - 0.07 * depth:.2f}", "."
    return POLICIES.get(policy, (policy, figures.BLACK, "h"))


def throughput(result: Result, setting: str = "mixed", threads: int = 1, policies: Sequence[str] = SHOWN) -> Figure:
    """Tokens per second against requests at once, whiskers over repeats; and against the speed of one user.

    ValueError when that setting was not served on so many threads.
    """
    found = _cells(result, setting, threads, policies)
    fig, (load, users) = figures.figure("wide", 1, 2)
    for policy, cells in found.items():
        label, colour, marker = look(policy)
        x, y = [c.concurrency for c in cells], [c.tokens_per_second for c in cells]
        load.vlines(x, [min(c.by_repeat) for c in cells], [max(c.by_repeat) for c in cells], color=colour, linewidth=1)
        load.plot(x, y, marker=marker, color=colour, label=label)
        users.plot([c.per_user for c in cells], y, marker=marker, color=colour)
    _concurrency(load, found)
    load.set(ylabel="tokens per second", ylim=(0, None), title=_title(result, setting, threads))
    users.set(xlabel="tokens per second of one request", xlim=(0, None), ylim=(0, None), title="throughput and speed")
    figures.legend_below(fig, load.get_legend_handles_labels()[0])
    return fig


def budget(result: Result, setting: str = "mixed", threads: int = 1, policies: Sequence[str] = SHOWN) -> Figure:
    """Tokens verified a round, the anchor counted, against requests at once; and the share of drafts wasted.

    ValueError when that setting was not served on so many threads.
    """
    found = _cells(result, setting, threads, [p for p in policies if p != "plain"])
    fig, (spent, wasted) = figures.figure("wide", 1, 2)
    for policy, cells in found.items():
        label, colour, marker = look(policy)
        x = [c.concurrency for c in cells]
        spent.plot(x, [c.budget for c in cells], marker=marker, color=colour, label=label)
        wasted.plot(x, [100 * c.wasted_share for c in cells], marker=marker, color=colour)
    for ax in (spent, wasted):
        _concurrency(ax, found)
    spent.set(ylabel="budget of a request, $B / R$", ylim=(0, None), title=_title(result, setting, threads))
    wasted.set(ylabel="verified in vain, %", ylim=(0, None), title="verified and not accepted")
    figures.legend_below(fig, spent.get_legend_handles_labels()[0])
    return fig


def capacity(profile: Profile, threads: int = 1) -> Figure:
    """Seconds of verifying against B, every cell with its quartiles, by context; and steps per second, SPS(B).

    A line joins the cells of one number of requests; SPS(B) is the table's, of 8 requests that draft to the full, or of
    as many as were measured. ValueError when nothing was measured on so many threads.
    """
    table = next((t for t in profile.tables if t.threads == threads), None)
    if table is None:
        raise ValueError(
            f"nothing was measured on {threads} threads, only on {[t.threads for t in profile.tables]}: "
            "profile with --threads"
        )
    colours = dict(zip(table.contexts, figures.CYCLE, strict=False))
    fig, (cells, speed) = figures.figure("wide", 1, 2)
    for context, colour in colours.items():
        own = [c for c in profile.cells if (c.threads, c.context) == (threads, context)]
        for requests in sorted({c.requests for c in own}):
            line = sorted((c for c in own if c.requests == requests), key=lambda c: c.tokens)
            x = [c.tokens for c in line]
            low, high = ([1e3 * getattr(c.verify, q) for c in line] for q in ("low", "high"))
            cells.vlines(x, low, high, color=colour, linewidth=1)
            cells.plot(x, [1e3 * c.verify.median for c in line], color=colour, linewidth=1, marker=".")
    at_once = min(table.draft.requests, key=lambda r: abs(r - 8))
    sizes = np.array([s for s in table.sizes if s >= at_once])
    for context, colour in colours.items():
        sps = table.capacity.at(context).steps_per_second(sizes, at_once)
        speed.plot(sizes, sps, color=colour, marker=".", label=f"context {context}")
    for ax in (cells, speed):
        ax.set_xscale("log", base=2)
        ax.set(xlabel="tokens in the target's forward, $B$", ylim=(0, None))
        ax.xaxis.set_major_formatter("{x:.0f}")
    cells.set(ylabel="verifying, ms", title=f"{profile.config.target}, {threads} thread{'s' if threads > 1 else ''}")
    speed.set(ylabel="steps per second", title=f"SPS(B), {at_once} request{'s' if at_once > 1 else ''}, with drafting")
    figures.legend_below(fig, speed.get_legend_handles_labels()[0])
    return fig


def _cells(result: Result, setting: str, threads: int, policies: Sequence[str]) -> dict[str, list[Cell]]:
    """Policy -> its cells by concurrency, those that were served."""
    there = [c for c in result.cells if (c.setting, c.threads) == (setting, threads)]
    if not there:
        raise ValueError(
            f"nothing was served in setting {setting!r} on {threads} threads, only in "
            f"{sorted({(c.setting, c.threads) for c in result.cells})}"
        )
    found = {p: sorted((c for c in there if c.policy == p), key=lambda c: c.concurrency) for p in policies}
    return {policy: cells for policy, cells in found.items() if cells}


def _concurrency(ax: Axes, found: dict[str, list[Cell]]) -> None:
    at = sorted({c.concurrency for cells in found.values() for c in cells})
    ax.set_xscale("log", base=2)
    ax.set_xticks(at, [str(x) for x in at])
    ax.minorticks_off()
    ax.set_xlabel("requests at once")


def _title(result: Result, setting: str, threads: int) -> str:
    own = next(s for s in result.config.settings if s.name == setting)
    return (
        f"{result.config.target}, temperature {own.temperature:g}, thinking {'on' if own.thinking else 'off'}, "
        f"{threads} thread{'s' if threads > 1 else ''}"
    )
