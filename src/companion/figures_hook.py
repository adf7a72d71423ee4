"""The hook as a picture: speed inside the span over plain decoding, and behind it over the drafter without a hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.experiments.phase_hook import design
from companion.experiments.phase_hook.study import Result
from companion.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, figure, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# arm -> colour, marker
ARMS: Mapping[str, tuple[str, str]] = {
    design.OFF: (GREY, "D"),
    design.AGAIN: (GREY, "x"),
    design.SHIPPED: (SKY, "<"),
    design.SHRUNK: (SKY, ">"),
    design.PLACEHOLDERS: (ORANGE, "v"),
    design.NOTE: (VERMILION, "s"),
    design.SOLVED: (BLUE, "o"),
    design.CURVE: (GREEN, "P"),
    design.ORACLE: (PURPLE, "*"),
}


def speeds(result: Result, temperature: float) -> Figure:
    """Each drafter and arm, 95 % over prompts; the dotted lines are 1 and the bar, 0.97. The cross at the right is the
    negative control, which covers 1 where the clock was fair.

    ValueError when nothing was measured at this temperature.
    """
    found = [r for r in result.ratios if r.temperature == temperature]
    if not found:
        raise ValueError(f"nothing was measured at temperature {temperature:g}, so there is nothing to draw")
    drafters = list(dict.fromkeys(r.drafter for r in found))
    fig, panels = figure("tall", 1, 2, sharey=True)
    demands = (("think", design.PLAIN, "inside, over plain decoding"), ("output", design.OFF, "behind, over no hook"))
    for axes, (part, over, title) in zip(panels, demands, strict=True):
        for number, (arm, (color, marker)) in enumerate(ARMS.items()):
            own = [r for r in found if (r.arm, r.part, r.over) == (arm, part, over) and r.value is not None]
            y = [drafters.index(r.drafter) + 0.1 * (number - (len(ARMS) - 1) / 2) for r in own]
            for place, r in zip(y, own, strict=True):
                if r.low is not None and r.high is not None:
                    axes.hlines(place, r.low, r.high, color=color, linewidth=1.4)
            axes.plot([r.value for r in own], y, marker, color=color, label=arm)
        axes.axvline(1.0, color=BLACK, linestyle=":", linewidth=1.0)
        axes.axvline(design.AT_LEAST, color=GREY, linestyle=":", linewidth=1.0)
        axes.set(title=title, xlabel="ratio of speeds")
    panels[0].set_yticks(range(len(drafters)), drafters)
    panels[0].invert_yaxis()
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    legend_below(fig, list(handles.values()))
    return fig
