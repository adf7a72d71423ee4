"""Figures of the ablations: accepted length by a size, and what single changes do, beside the noise of one training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from companion.experiments.ablations import AblationResults
from companion.experiments.accepted_length import AcceptedLengths
from companion.figures import BLACK, BLUE, DRAFTERS, GREY, figure, interval
from companion.training.corpus import DOMAINS
from companion.training.zoo import KNOWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIELDS = {"depth": "layers", "gamma": "block_size", "rank": "rank"}  # what a group of sizes varies
LABELS = {"depth": "layers of the drafter", "gamma": r"proposal length $\gamma$", "rank": "rank of the Markov head"}


def by_size(result: AblationResults, group: str, temperature: float) -> Figure:
    """tau over the size that the group varies, all domains and each; a line for each kind of drafter, bars 95 %.

    ValueError for a group that varies no size, or of which nothing was measured at this temperature.
    """
    if group not in FIELDS:
        raise ValueError(f"a figure by size needs one of the groups {', '.join(FIELDS)}, got {group!r}")
    cells = [c for g in result.groups if g.group == group for c in g.cells if c.temperature == temperature]
    if not cells:
        raise ValueError(f"nothing was measured of the group {group} at temperature {temperature:g}")
    domains = ("all", *DOMAINS)
    fig, axes = figure("wide", 1, len(domains), sharey=True)
    for panel, domain in zip(axes, domains, strict=True):
        own = [c for c in cells if c.domain == domain and c.tau is not None]
        for base in dict.fromkeys(_kind(c.drafter) for c in own):
            label, colour, marker = DRAFTERS[base]
            line = sorted((c for c in own if _kind(c.drafter) == base), key=lambda c: _size(c.drafter, group))
            x = [_size(c.drafter, group) for c in line]
            interval(panel, x, [c.low or 0 for c in line], [c.high or 0 for c in line], color=colour)
            panel.plot(x, [c.tau or 0 for c in line], marker=marker, color=colour, label=label)
        panel.set(title="all domains" if domain == "all" else domain, xlabel=LABELS[group])
        panel.set_xticks(sorted({_size(c.drafter, group) for c in own}))
    axes[0].set(ylabel=r"accepted length $\tau$ (tokens a round)")
    axes[0].legend(loc="best")
    return fig


def changes(
    result: AblationResults,
    lengths: AcceptedLengths,
    temperature: float,
    groups: Sequence[str] = ("head", "rank", "anchor", "weight", "confidence", "mix"),
) -> Figure:
    """tau of each changed drafter minus DSpark's, all domains and each, bars 95 % over prompts.

    The grey band is how far single trainings of DSpark itself are from their mean (the extremes of its seeds): a change
    that was trained once and lies inside it is not told from another seed. ValueError when nothing was measured.
    """
    rows = [
        d
        for g in result.groups
        if g.group in groups
        for d in g.differences
        if (d.second, d.temperature) == ("dspark", temperature) and d.value is not None
    ]
    if not rows:
        raise ValueError(f"none of the groups {', '.join(groups)} was measured at temperature {temperature:g}")
    names = list(dict.fromkeys(d.first for d in rows))
    fig, axes = figure("wide", 1, 1 + len(DOMAINS), sharey=True)
    for panel, domain in zip(axes, ("all", *DOMAINS), strict=True):
        low, high = spread(lengths, "dspark", temperature, domain)
        panel.axvspan(low, high, color=GREY, alpha=0.25, linewidth=0)
        panel.axvline(0, color=GREY, linewidth=1)
        for d in (d for d in rows if d.domain == domain):
            y = names.index(d.first)
            value = d.value or 0.0
            panel.hlines(y, d.low or value, d.high or value, color=BLUE, linewidth=1.4)
            panel.plot(value, y, "o", color=BLACK if low <= value <= high else BLUE)
        panel.set(title="all domains" if domain == "all" else domain, xlabel=r"$\Delta\tau$")
        panel.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    return fig


def spread(lengths: AcceptedLengths, drafter: str, temperature: float, domain: str) -> tuple[float, float]:
    """Lowest and highest tau of a drafter's single trainings, minus their mean; thinking off. ValueError for one."""
    seeds = [
        c.tau
        for c in lengths.cells
        if (c.drafter, c.temperature, c.domain, c.mode) == (drafter, temperature, domain, "no_think")
        and c.seed is not None
        and c.tau is not None
    ]
    if len(seeds) < 2:
        raise ValueError(f"{drafter} was trained with {len(seeds)} seeds: the noise of a training needs two at least")
    mean = sum(seeds) / len(seeds)
    return min(seeds) - mean, max(seeds) - mean


def _kind(drafter: str) -> str:
    """The drafter of the book whose kind this is."""
    recipe = KNOWN[drafter]
    return "dflash" if recipe.rank == 0 else "dspark-rnn" if recipe.head == "rnn" else "dspark"


def _size(drafter: str, group: str) -> int:
    return int(getattr(KNOWN[drafter], FIELDS[group]))
