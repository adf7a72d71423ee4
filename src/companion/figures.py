"""One look for every figure: a palette that colour-blind readers can tell apart, fixed sizes, and intervals.

Call `use_style` once per notebook, draw on what `figure` returns, and end the cell with ``plt.show()`` so that its
output does not depend on the last expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.rcsetup import cycler

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette (2008) without its yellow, which is too light for lines on white
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
BLACK, GREY = "#222222", "#8A8A8A"
CYCLE = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK)
PHASE = {"think": PURPLE, "output": BLUE}  # one meaning, one colour, on every page
DOMAIN = {"math": BLUE, "code": ORANGE, "chat": GREEN}
# Name of a drafter -> how it is called in a figure, colour, marker. There are more drafters than colours: two that
# share one are never drawn together, and differ in their markers. What needs no training is grey.
DRAFTERS = {
    "plain": ("plain decoding", GREY, ""),
    "lookup": ("lookup", "#B5B5B5", "x"),
    "draft model": ("draft model", VERMILION, "p"),
    "eagle3": ("Eagle3", GREEN, "^"),
    "dflash": ("DFlash", ORANGE, "s"),
    "dspark": ("DSpark", BLUE, "o"),
    "dspark-gated": ("DSpark, gated head", PURPLE, "<"),
    "dspark-rnn": ("DSpark, RNN head", SKY, "D"),
    "dspark-think-5": ("DSpark, 5 % thinking traces", PURPLE, "v"),
    "dspark-think-50": ("DSpark, 50 % thinking traces", VERMILION, "P"),
    "dspark-think-100": ("DSpark, 100 % thinking traces", BLACK, "X"),
}

SIZES = {"single": (6.4, 4.0), "wide": (9.6, 4.0), "tall": (6.4, 6.4)}  # inches
DPI = 160

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": BLACK,
    "axes.prop_cycle": cycler(color=CYCLE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "figure.dpi": DPI,
    "figure.figsize": SIZES["single"],
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same
    "font.size": 10,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "savefig.dpi": DPI,
}


def use_style() -> None:
    """Set matplotlib's defaults for this process, from matplotlib's own and not from what was set before."""
    mpl.rcdefaults()
    mpl.rcParams.update(cast(Any, _STYLE))


def figure(
    size: Literal["single", "wide", "tall"] = "single", rows: int = 1, columns: int = 1, **subplots: Any
) -> tuple[Figure, Any]:
    """``plt.subplots`` at one of three fixed sizes; the axes are an array when there are several."""
    return plt.subplots(rows, columns, figsize=SIZES[size], **subplots)


def look(drafter: str) -> tuple[str, str, str]:
    """Name, colour and marker of a drafter by its name in `DRAFTERS`, or by that of a run of it, NAME-SEED.

    One that is not in the table keeps its name and is drawn in black.
    """
    name = _recipe(drafter)
    if name is None:
        return drafter, BLACK, "h"
    called, colour, marker = DRAFTERS[name]
    return (called if name == drafter else f"{called}, seed {drafter.rpartition('-')[2]}"), colour, marker


def in_order(drafters: Iterable[str]) -> list[str]:
    """As in `DRAFTERS`, runs of one in the order given, those that are not in it last."""
    order = list(DRAFTERS)
    return sorted(drafters, key=lambda d: len(order) if (name := _recipe(d)) is None else order.index(name))


def _recipe(drafter: str) -> str | None:
    name, _, seed = drafter.rpartition("-")
    return drafter if drafter in DRAFTERS else name if seed.isdigit() and name in DRAFTERS else None


def legend_below(fig: Figure, handles: Sequence[Any]) -> None:
    """A legend below all panels, in as few rows as the figure is wide enough for."""
    labels = [handle.get_label() for handle in handles]
    for columns in range(len(handles), 0, -1):
        legend = fig.legend(handles, labels, loc="outside lower center", ncols=columns)
        if legend.get_window_extent().width <= 0.98 * fig.bbox.width or columns == 1:
            return
        legend.remove()


def interval(
    axes: Axes,
    x: Sequence[float] | np.ndarray,  # [n]
    low: Sequence[float] | np.ndarray,  # [n]
    high: Sequence[float] | np.ndarray,  # [n]
    middle: Sequence[float] | np.ndarray | None = None,  # [n]
    *,
    color: str = BLUE,
    label: str | None = None,
    band: bool = False,
) -> None:
    """Draw intervals from ``low`` to ``high``, as bars or as a shaded band, with the estimates on top when given.

    The ends are drawn where they are: an interval need not be symmetric about its estimate. ValueError when an
    interval is upside down or does not contain its estimate.
    """
    xs, lows, highs = (np.asarray(values, dtype=float) for values in (x, low, high))
    if np.any(lows > highs):
        raise ValueError("an interval has low > high; pass the lower ends first")
    if middle is not None:
        estimates = np.asarray(middle, dtype=float)
        if np.any((estimates < lows) | (estimates > highs)):
            raise ValueError("an estimate lies outside its interval; low and high are end points, not distances")
    if band:
        axes.fill_between(
            xs, lows, highs, color=color, alpha=0.2, linewidth=0, label=None if middle is not None else label
        )
    else:
        own = label if label is not None and middle is None else ""  # else the estimates carry it
        axes.vlines(xs, lows, highs, color=color, linewidth=1.4, label=own)
    if middle is not None:
        axes.plot(xs, estimates, color=color, marker="o", linestyle="-" if band else "none", label=label)
