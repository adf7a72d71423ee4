"""The book in one figure: what a drafter buys, and what a thought costs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from companion.figures import GREY, figure, interval, look
from companion.resampling import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from companion.experiments.phase_gap.gaps import Contrast
    from companion.experiments.phase_gap.study import PhaseGap

TRAINED_WITHOUT = ("eagle3", "dflash", "dspark")
PARTS = {"off": "thinking off", "think": "inside\nthe thought", "output": "the answer\nbehind it"}
FOREIGN, AT_HOME = "dspark", "dspark-think-50"


def story(result: PhaseGap, sampling: str = "T1") -> Figure:
    """Tokens a round of a target, over all domains and trainings, with 95 % intervals over responses and trainings.

    Left: thinking off, drafters that were trained that way. Right: one of them, and one that was trained on thinking
    traces by half, in the three parts of what a reasoning model writes. ValueError where one of them was not measured.
    """
    found = {p.drafter: p for p in result.pooled if (p.sampling, p.domain) == (sampling, "all")}
    missing = {*TRAINED_WITHOUT, AT_HOME} - set(found)
    if missing:
        raise ValueError(f"nothing was measured of {', '.join(sorted(missing))} at {sampling}, so there is no story")
    fig, (left, right) = figure("wide", 1, 2, sharey=True, width_ratios=(4, 5))
    left.bar(0, 1, 0.6, color=GREY)
    for x, name in enumerate(TRAINED_WITHOUT, start=1):
        own, (_, colour, _) = _ends(found[name].off), look(name)
        left.bar(x, own.value, 0.6, color=colour)
        interval(left, [x], [own.low], [own.high], color="black")
    left.set_xticks(range(len(TRAINED_WITHOUT) + 1), ["no drafter", *(look(name)[0] for name in TRAINED_WITHOUT)])
    left.set(title="What a drafter buys, thinking off", ylabel="tokens for one forward of the target")
    left.grid(axis="x", visible=False)
    for name, label in ((AT_HOME, "half of its training text thoughts"), (FOREIGN, "trained without")):
        values, (_, colour, marker) = [_ends(getattr(found[name], part)) for part in PARTS], look(name)
        interval(right, range(3), [v.low for v in values], [v.high for v in values], color=colour)
        right.plot(range(3), [v.value for v in values], marker=marker, color=colour, label=f"DSpark, {label}")
    right.axhline(1, color=GREY, linestyle=":")
    right.set_xticks(range(3), list(PARTS.values()))
    right.set(title="What a thought costs it", xlim=(-0.3, 2.3), ylim=(0, 8.4))
    right.legend(loc="upper right")
    return fig


def _ends(found: Contrast) -> Interval:
    if found.value is None or found.low is None or found.high is None:
        raise ValueError("a part of the response has no interval, so there is no story")
    return Interval(found.value, found.low, found.high)
