"""The speed benchmarks as pictures: methods over transformers' generate; drafters over plain decoding; T_draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from companion import figures
from companion.experiments.bench_decode import Result
from companion.experiments.bench_drafters import Result as Drafters
from companion.experiments.round_stages import Stages
from companion.experiments.speedups import ALL, LOOKUP
from companion.experiments.timing import PLAIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "transformers": "transformers, generate",
    "transformers-lookup": "transformers, prompt lookup",
    "transformers-assisted": "transformers, assisted",
    "plain": "companion, plain",
    "lookup": "companion, lookup",
    "draft": "companion, draft model",
}
COLOURS = dict(
    zip(
        LABELS,
        (figures.GREY, figures.SKY, figures.PURPLE, figures.BLACK, figures.GREEN, figures.VERMILION),
        strict=True,
    )
)


def speed(result: Result) -> Figure:
    """Bars: median over passes; whiskers: slowest and fastest pass. Both over the median of transformers' generate."""
    fig, ax = figures.figure("wide")
    domains = list(dict.fromkeys(row.domain for row in result.speeds))
    rows = {(row.domain, row.method): row for row in result.speeds}
    width = 0.8 / len(LABELS)
    for position, (method, label) in enumerate(LABELS.items()):
        at = [i + width * (position - (len(LABELS) - 1) / 2) for i in range(len(domains))]
        found = [rows[domain, method] for domain in domains]
        base = [rows[domain, "transformers"].tokens_per_second for domain in domains]
        ax.bar(at, [row.over_transformers for row in found], 0.92 * width, color=COLOURS[method], label=label)
        low = [row.low / b for row, b in zip(found, base, strict=True)]
        high = [row.high / b for row, b in zip(found, base, strict=True)]
        ax.vlines(at, low, high, color=figures.BLACK, linewidth=1)
    ax.axhline(1, color=figures.GREY, linestyle=":", linewidth=1.2)
    ax.set_xticks(range(len(domains)), domains)
    ax.set(ylabel="tokens per second\nover transformers' generate")
    ax.set_title(
        f"{result.config.target}, greedy, batch 1, thinking off, {result.config.threads} "
        f"thread{'s' if result.config.threads > 1 else ''}"
    )
    ax.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    return fig


def drafter_speeds(result: Drafters, threads: int = 1) -> Figure:
    """Speed-up of each drafter and of lookup over plain decoding by domain; whiskers: 95 % over prompts.

    ValueError when nothing was raced on so many threads.
    """
    rows = {(r.domain, r.method): r for r in result.speeds if r.threads == threads}
    if not rows:
        raise ValueError(
            f"nothing was raced on {threads} threads, only on {sorted({r.threads for r in result.speeds})}"
        )
    methods = figures.in_order([LOOKUP, *dict.fromkeys(s.drafter for s in result.stages)])
    domains = list(dict.fromkeys(domain for domain, _ in rows))
    fig, ax = figures.figure("wide")
    width = 0.8 / len(methods)
    called, grey, _ = figures.look(PLAIN)
    handles: list[Any] = [ax.axhline(1, color=grey, linestyle=":", linewidth=1.2, label=called)]
    for position, method in enumerate(methods):
        name, colour, _ = figures.look(method)
        at = [i + width * (position - (len(methods) - 1) / 2) for i in range(len(domains))]
        found = [rows[domain, method].over_plain for domain in domains]
        handles.append(ax.bar(at, [r.value for r in found], 0.92 * width, color=colour, label=name))
        ax.vlines(at, [r.low for r in found], [r.high for r in found], color=figures.BLACK, linewidth=1)
    ax.set_xticks(range(len(domains)), ["all domains" if domain == ALL else domain for domain in domains])
    ax.grid(axis="x", visible=False)
    ax.set(ylabel="speed over plain decoding")
    ax.set_title(f"{result.config.target}, greedy, batch 1, thinking off, {threads} thread{'s' if threads > 1 else ''}")
    figures.legend_below(fig, handles)
    return fig


def draft_times(result: Drafters) -> Figure:
    """T_draft against gamma: whole proposals with quartiles, dashed their floors; and the loop over slots alone.

    Left at the lowest temperature that was timed, right at every one of them.
    """
    times = result.draft_times
    temperatures, gammas = sorted({t.temperature for t in times}), sorted({t.gamma for t in times})
    cells = {(t.family, t.temperature, t.gamma): t for t in times}
    fig, (whole, loop) = figures.figure("wide", 1, 2)
    for family in figures.in_order(dict.fromkeys(t.family for t in times)):
        label, colour, marker = figures.look(family)
        for number, temperature in enumerate(temperatures):
            own = [cells[family, temperature, gamma] for gamma in gammas]
            if number == 0:
                figures.interval(whole, gammas, [t.low for t in own], [t.high for t in own], color=colour)
                whole.plot(gammas, [t.milliseconds for t in own], marker=marker, color=colour, label=label)
                whole.plot(gammas, [t.floor for t in own], "--", color=colour, linewidth=1)
            parts = [t.sequential for t in own if t.sequential is not None]
            if parts:
                fill = colour if number == 0 else "white"
                loop.plot(gammas, parts, ("-", "--", ":")[min(number, 2)], marker=marker, color=colour, mfc=fill)
    at = " and dashed ".join(f"{temperature:g}" for temperature in temperatures)
    whole.set(title=f"whole proposal, temperature {temperatures[0]:g}; dashed: floor", ylabel="drafting, ms")
    loop.set_title(f"the loop over slots, temperature {at}")
    for ax in (whole, loop):
        ax.set(xlabel=r"proposal length $\gamma$", ylim=(0, None), xticks=gammas)
    figures.legend_below(fig, whole.get_legend_handles_labels()[0])
    return fig


PARTS = {  # of a round -> what it is called, colour
    "parallel": ("parallel forward", figures.PURPLE),
    "sequential": ("sequential loop", figures.VERMILION),
    "drafting": ("all else of drafting", "#EBC9DC"),
    "forward": ("target's forward", figures.BLACK),
    "accept": ("acceptance, rollback", figures.GREY),
}


def round_stages(result: Drafters, threads: int = 1) -> Figure:
    """Where a round's time goes, in plain steps; and measured tau against it, which is break-even tau.

    On the right a line through the origin is a speed-up by Eq. 1, tau over the cost of a round. ValueError when nothing
    was timed on so many threads.
    """
    stages = [s for s in result.stages if s.threads == threads]
    if not stages:
        raise ValueError(
            f"nothing was timed on {threads} threads, only on {sorted({s.threads for s in result.stages})}"
        )
    by_name = {s.drafter: s for s in stages}
    names = figures.in_order(by_name)
    fig, (bars, plane) = figures.figure("wide", 1, 2)
    left = [0.0] * len(names)
    handles: list[Any] = []
    for part, (label, colour) in PARTS.items():
        widths = [stage_parts(by_name[name])[part] / by_name[name].plain for name in names]
        handles.append(bars.barh(range(len(names)), widths, 0.62, left, color=colour, label=label))
        left = [a + b for a, b in zip(left, widths, strict=True)]
    bars.axvline(1, color=figures.look(PLAIN)[1], linestyle=":", linewidth=1.2)
    bars.set_yticks(range(len(names)), [figures.look(name)[0] for name in names])
    bars.invert_yaxis()
    bars.grid(axis="y", visible=False)
    bars.set(title="one round", xlabel="time, in steps of plain decoding")
    top = 1.15 * max(s.tau for s in stages)
    right = 1.3 * max(s.breakeven for s in stages)
    for speed in (1, 2, 3):
        end, at = min(right, top / speed), 0.3 * right  # the label lies below all measured costs
        plane.plot([0, end], [0, speed * end], ":", color=figures.GREY, linewidth=1.2)
        label = {1: "as fast as plain"}.get(speed, f"{speed} times as fast")
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        plane.text(at, speed * at, label, ha="center", va="center", fontsize=9, color=figures.GREY, bbox=box)
    for name in names:
        label, colour, marker = figures.look(name)
        own = by_name[name]
        plane.plot(own.breakeven, own.tau, marker, color=colour, markersize=8)
        plane.annotate(label, (own.breakeven, own.tau), (8, -4), textcoords="offset points", color=figures.BLACK)
    plane.set(
        title="Equation 1",
        xlabel=r"cost of a round = break-even $\tau$",
        ylabel=r"measured $\tau$",
        xlim=(0, right),
        ylim=(0, top),
    )
    figures.legend_below(fig, handles)
    return fig


def stage_parts(stages: Stages) -> dict[str, float]:
    """Milliseconds of a round's disjoint parts, the keys of `PARTS`; a drafter that is one loop has only "drafting"."""
    known = (stages.parallel or 0.0) + (stages.sequential or 0.0)
    return {
        "parallel": stages.parallel or 0.0,
        "sequential": stages.sequential or 0.0,
        "drafting": max(0.0, stages.draft - known),
        "forward": stages.forward,
        "accept": stages.accept,
    }
