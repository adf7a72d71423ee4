"""The decode benchmark as one picture: each method's speed over transformers' generate, by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from companion import figures
from companion.experiments.bench_decode import Result

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
