"""Serving under load as pictures: throughput against speed, budgets, open questions, simulated against real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from companion import figures
from companion.experiments.simulation.points import Point
from companion.experiments.simulation.questions import Compared
from companion.experiments.simulation.study import Result
from companion.figures_load import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRONTIER = ("plain", "fixed-1", "fixed-3", "fixed-7", "goodput", "lagged", "lagged-threshold", "oracle")
UNREAL = ("plain", "oracle")  # bounds from below and above
BUDGETS = ("fixed-1", "prefix-threshold", "goodput", "prefix", "lagged", "lagged-threshold", "oracle")
PARTS = {
    "depth": figures.ORANGE,
    "drafter": figures.PURPLE,
    "whole block": figures.GREY,
    "scheduler": figures.SKY,
    "depth limit": figures.BLUE,
}


def frontier(result: Result, tables: Sequence[str], temperature: float | None = None) -> Figure:
    """Throughput of the system against the speed of a user, one panel a table; points are concurrencies.

    ``temperature`` None: the first that was simulated. ValueError for a table that is not in the result.
    """
    fig, axes = figures.figure("wide", 1, len(tables), squeeze=False)
    for ax, table in zip(axes[0], tables, strict=True):
        for policy in FRONTIER:
            own = _curve(result, table, temperature, policy)
            ax.plot([p.speed.value for p in own], [p.throughput.value for p in own], **_line(policy))
        ax.set(title=table, xlabel="tokens per second of a user", ylabel="tokens per second, all users")
        ax.set(xlim=(0, None), ylim=(0, None))
    figures.legend_below(fig, axes[0, 0].get_legend_handles_labels()[0])
    return fig


def budgets(result: Result, tables: Sequence[str], temperature: float | None = None) -> Figure:
    """Tokens verified a round, the anchor among them, against the number of users; one panel a table."""
    fig, axes = figures.figure("wide", 1, len(tables), squeeze=False)
    for ax, table in zip(axes[0], tables, strict=True):
        for policy in BUDGETS:
            own = _curve(result, table, temperature, policy)
            ax.plot([p.concurrency for p in own], [p.budget for p in own], **_line(policy))
        users = [p.concurrency for p in _curve(result, table, temperature, "lagged")]
        ax.set_xscale("log", base=2)
        ax.set_xticks(users, [str(u) for u in users])
        ax.minorticks_off()
        ax.set(title=table, xlabel="users at once", ylabel="budget, tokens a round", ylim=(0, None))
    figures.legend_below(fig, axes[0, 0].get_legend_handles_labels()[0])
    return fig


def parts(result: Result) -> Figure:
    """The gain over static depth 1 as factors, one row a table and load; the axis is logarithmic, so that they add."""
    places = list(dict.fromkeys((p.table, p.concurrency) for p in result.parts))
    factors = {(p.table, p.concurrency, p.part): p.factor for p in result.parts}
    fig, ax = figures.figure("single")
    height = 0.8 / len(PARTS)
    handles: dict[str, Any] = {}
    for row, place in enumerate(places):
        left = 1.0
        for number, (part, colour) in enumerate(PARTS.items()):
            if (factor := factors.get((*place, part))) is not None:
                low, high = sorted((left, left * factor.value))
                at = row + height * (number - (len(PARTS) - 1) / 2)
                handles[part] = ax.barh(at, high - low, height, low, color=colour, label=part)
                left *= factor.value
        ax.plot([left, left], [row - 0.4, row + 0.4], color=figures.BLACK, linewidth=1)
        ax.text(left * 1.02, row + 0.4, f"{left:.2f}", va="bottom", fontsize=9)
    ax.axvline(1, color=figures.GREY, linewidth=1)
    ax.set_xscale("log", base=2)
    ax.set_yticks(range(len(places)), [f"{table}, {users} at once" for table, users in places])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="throughput over static depth 1, factor by factor")
    ax.set_xticks([0.7, 1, 1.5, 2, 3], ["0.7", "1", "1.5", "2", "3"])
    ax.minorticks_off()
    figures.legend_below(fig, list(handles.values()))
    return fig


def gaps(result: Result) -> Figure:
    """What the delay, the early stop and missing foresight cost; and what wrong confidences do. 95 % over seeds."""
    fig, (left, right) = figures.figure("wide", 1, 2)
    places = list(dict.fromkeys((c.table, c.concurrency) for c in result.gaps))
    _ratios(left, result.gaps, places, "throughput over the search of the same step")
    wrong = [d for d in result.drifts if d.over == "calibrated"]
    _ratios(right, wrong, places, "deployed policy: over calibrated confidences")
    figures.legend_below(fig, left.get_legend_handles_labels()[0])
    return fig


def fairness(result: Result, table: str, policy: str = "lagged") -> Figure:
    """Share of drafted slots by domain: verified, expected by confidence, accepted; and who goes without.

    ValueError for a table that is not in the result.
    """
    rows = [f for f in result.fairness if (f.table, f.policy) == (table, policy) and f.domain != "all"]
    if not rows:
        raise ValueError(f"there is no fairness of {policy} on {table}")
    users = sorted({f.concurrency for f in rows})
    fig, axes = figures.figure("wide", 1, 2)
    for domain in dict.fromkeys(f.domain for f in rows):
        own = sorted((f for f in rows if f.domain == domain), key=lambda f: f.concurrency)
        colour = figures.DOMAIN[domain]
        axes[0].plot(range(len(own)), [f.verified for f in own], "o-", color=colour, label=domain)
        axes[0].plot(range(len(own)), [f.accepted for f in own], "x:", color=colour)
        axes[1].plot(range(len(own)), [f.longest for f in own], "o-", color=colour)
        axes[1].plot(range(len(own)), [f.longest_of_all for f in own], "x:", color=colour)
    axes[0].set(title="share of drafts: verified (line), accepted (dots)", ylim=(0, 1))
    axes[1].set(title="longest time without a slot: mean (line), worst", ylabel="rounds", ylim=(0, None))
    for ax in axes:
        ax.set_xticks(range(len(users)), [str(u) for u in users])
        ax.set(xlabel=f"users at once, {table}")
    figures.legend_below(fig, axes[0].get_legend_handles_labels()[0])
    return fig


def validation(result: Result) -> Figure:
    """Simulated against real throughput of every policy at every load, with the 10 % of the bar."""
    if not result.validated:
        raise ValueError("nothing was validated: there were no real runs when this result was made")
    fig, ax = figures.figure("single")
    settings = list(dict.fromkeys((v.setting, v.threads) for v in result.validated))
    for place, colour in zip(settings, figures.CYCLE, strict=False):
        own = [v for v in result.validated if (v.setting, v.threads) == place]
        label = f"{place[0]}, {place[1]} thread{'s' if place[1] > 1 else ''}"
        ax.plot([v.real for v in own], [v.simulated.value for v in own], "o", color=colour, label=label, alpha=0.7)
    ends = [f(v.real for v in result.validated) for f in (min, max)]
    ax.fill_between(ends, [0.9 * e for e in ends], [1.1 * e for e in ends], color=figures.GREY, alpha=0.2, linewidth=0)
    ax.plot(ends, ends, color=figures.GREY, linewidth=1)
    ax.set(xlabel="real engine, tokens per second", ylabel="simulated", xscale="log", yscale="log")
    ticks = [t for t in (100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000) if 0.7 * ends[0] <= t <= 1.3 * ends[1]]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(ticks, [str(t) for t in ticks])
    ax.minorticks_off()
    figures.legend_below(fig, ax.get_legend_handles_labels()[0])
    return fig


def _curve(result: Result, table: str, temperature: float | None, policy: str) -> list[Point]:
    at = result.config.temperatures[0] if temperature is None else temperature
    own = [p for p in result.points if (p.table, p.temperature, p.policy) == (table, at, policy)]
    if not own and table not in {p.table for p in result.points}:
        raise ValueError(f"{table!r} is not among the tables, {sorted({p.table for p in result.points})}")
    return sorted(own, key=lambda p: p.concurrency)


def _line(policy: str) -> dict[str, Any]:
    label, colour, marker = look(policy)
    return {"label": label, "color": colour, "marker": marker, "linestyle": ":" if policy in UNREAL else "-"}


def _ratios(ax: Axes, found: Sequence[Compared], places: Sequence[tuple[str, int]], title: str) -> None:
    """Points with whiskers: a row for each comparison, a colour for each table and load."""
    whats = list(dict.fromkeys(c.what for c in found))
    step = 0.7 / max(1, len(places))
    for number, (place, colour) in enumerate(zip(places, figures.CYCLE * 3, strict=False)):
        own = [c for c in found if (c.table, c.concurrency) == place]
        at = [whats.index(c.what) + step * (number - (len(places) - 1) / 2) for c in own]
        low = [c.ratio.value if c.ratio.low is None else c.ratio.low for c in own]
        high = [c.ratio.value if c.ratio.high is None else c.ratio.high for c in own]
        marker = ("o", "s", "^")[number // len(figures.CYCLE)]
        ax.hlines(at, low, high, color=colour, linewidth=1.2)
        ax.plot([c.ratio.value for c in own], at, marker, color=colour, markersize=4, label=f"{place[0]}, {place[1]}")
    ax.axvline(1, color=figures.GREY, linewidth=1)
    ax.set_yticks(range(len(whats)), whats)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel=title)
