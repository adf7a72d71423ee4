"""The speed benchmarks as pictures: methods over transformers' generate; drafters over plain decoding; T_draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from companion import figures
from companion.experiments.bench_decode import Result
from companion.experiments.bench_drafters import Result as Drafters
from companion.experiments.speedups import ALL, LOOKUP

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


FAMILIES = {  # of draft_cost -> label, colour, marker
    "dspark": ("DSpark", figures.BLUE, "o"),
    "dspark-gated": ("DSpark, gated head", figures.PURPLE, "v"),
    "dspark-rnn": ("DSpark, RNN head", figures.SKY, "D"),
    "dflash": ("DFlash", figures.ORANGE, "s"),
    "eagle3": ("Eagle3", figures.GREEN, "^"),
    "draft model": ("draft model", figures.VERMILION, "P"),
}


def drafter_speeds(result: Drafters, threads: int = 1) -> Figure:
    """Speed-up of each drafter and of lookup over plain decoding by domain; whiskers: 95 % over prompts.

    ValueError when nothing was raced on so many threads.
    """
    rows = {(r.domain, r.method): r for r in result.speeds if r.threads == threads}
    if not rows:
        raise ValueError(
            f"nothing was raced on {threads} threads, only on {sorted({r.threads for r in result.speeds})}"
        )
    methods = [LOOKUP, *dict.fromkeys(s.drafter for s in result.stages)]
    domains = list(dict.fromkeys(domain for domain, _ in rows))
    fig, ax = figures.figure("wide")
    width = 0.8 / len(methods)
    colours = (
        figures.GREY,
        figures.BLUE,
        figures.ORANGE,
        figures.SKY,
        figures.GREEN,
        figures.PURPLE,
        figures.VERMILION,
    )
    for position, method in enumerate(methods):
        at = [i + width * (position - (len(methods) - 1) / 2) for i in range(len(domains))]
        found = [rows[domain, method].over_plain for domain in domains]
        ax.bar(at, [r.value for r in found], 0.92 * width, color=colours[position % len(colours)], label=method)
        ax.vlines(at, [r.low for r in found], [r.high for r in found], color=figures.BLACK, linewidth=1)
    ax.axhline(1, color=figures.GREY, linestyle=":", linewidth=1.2)
    ax.set_xticks(range(len(domains)), ["all domains" if domain == ALL else domain for domain in domains])
    ax.set(ylabel="speed over plain decoding")
    ax.set_title(f"{result.config.target}, greedy, batch 1, thinking off, {threads} thread{'s' if threads > 1 else ''}")
    ax.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    return fig


def draft_times(result: Drafters) -> Figure:
    """T_draft against gamma, one panel a temperature: whole proposals, and dotted the sequential loop inside them."""
    temperatures = sorted({t.temperature for t in result.draft_times})
    fig, panels = figures.figure("wide", 1, len(temperatures), sharey=True, squeeze=False)
    for ax, temperature in zip(panels[0], temperatures, strict=True):
        for family, (label, colour, marker) in FAMILIES.items():
            own = [t for t in result.draft_times if (t.family, t.temperature) == (family, temperature)]
            gammas = [t.gamma for t in own]
            figures.interval(ax, gammas, [t.low for t in own], [t.high for t in own], color=colour)
            ax.plot(gammas, [t.milliseconds for t in own], marker=marker, color=colour, label=label)
            if own and own[0].sequential is not None:
                ax.plot(gammas, [t.sequential or 0 for t in own], ":", color=colour)
        ax.set(title=f"temperature {temperature:g}", xlabel=r"proposal length $\gamma$", ylim=(0, None))
        ax.set_xticks(sorted({t.gamma for t in result.draft_times}))
    panels[0][0].set_ylabel("drafting, ms")
    fig.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig
