"""The tables of Phase 1 on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from companion.experiments.phase_gap.contrasts import ALL, sampling_name
from companion.experiments.phase_gap.gaps import Contrast, Side

if TYPE_CHECKING:
    from companion.experiments.phase_gap.study import PhaseGap


def show(result: PhaseGap) -> None:
    """Print verdicts, contrasts, calibration errors and bars."""
    from rich.console import Console

    console = Console()
    _gaps(result, console)
    _pooled(result, console)
    _contrasts(result, console)
    _calibration(result, console)
    for claim in dict.fromkeys(gap.claim for gap in result.gaps if gap.claim):
        console.print(claim, "", sep="\n")
    for bar in result.bars:
        console.print(f"{bar.name}: {text(Contrast(value=bar.value, low=bar.low, high=bar.high))}: {bar.outcome}")
    console.print(f"verdict: {result.verdict}")


def text(contrast: Contrast, digits: int = 2) -> str:
    if contrast.value is None:
        return "no data"
    value = f"{contrast.value:.{digits}f}"
    return value if contrast.low is None else f"{value} [{contrast.low:.{digits}f}, {contrast.high:.{digits}f}]"


def _gaps(result: PhaseGap, console: Any) -> None:
    from rich.table import Table

    columns = ("drafter", "T", "domain", "inside", "outside", "gap", "domains", "straddling", "verdict", "by steps")
    table = Table(*columns, title="H1, every recording by itself; 95 % intervals over prompts")
    for gap in result.gaps:
        spread = "" if gap.between_domain_gap is None else f"{gap.between_domain_gap:.2f}"
        rate = "none" if gap.straddle_rate is None else f"{gap.straddling} ({100 * gap.straddle_rate:.1f} %)"
        table.add_row(
            f"{gap.drafter}-{gap.seed}",
            sampling_name(gap.sampling),
            gap.domain,
            _side(gap.think),
            _side(gap.output),
            text(gap.gap),
            spread,
            rate,
            gap.verdict,
            gap.note_verdict,
        )
    console.print(table)
    if short := next((gap.short for gap in result.gaps if gap.short), None):
        console.print(f"fewer than the protocol asks for, in the first recording that is short: {'; '.join(short)}")


def _side(side: Side) -> str:
    return "no steps" if side.length.value is None else f"{side.length.value:.2f} of {side.steps:g}"


def _pooled(result: PhaseGap, console: Any) -> None:
    from rich.table import Table

    columns = ("drafter", "seeds", "sampling", "domain", "inside", "outside", "thinking off", "gap", "inside - off")
    table = Table(*columns, title="training seeds pooled; 95 % intervals over prompts and seeds")
    for p in result.pooled:
        sides = (text(p.think), text(p.output), text(p.off), text(p.gap), text(p.think_minus_off))
        table.add_row(p.drafter, str(p.seeds), p.sampling, p.domain, *sides)
    console.print(table)


def _contrasts(result: PhaseGap, console: Any) -> None:
    from rich.table import Table

    if result.differences:
        table = Table("difference in differences", "sampling", "domain", "tokens")
        for d in result.differences:
            table.add_row(f"{d.first} - {d.second}", d.sampling, d.domain, text(d.value))
        console.print(table)
    if result.doses:
        table = Table("slope in the share of thinking traces", "sampling", "domain", "tokens from 0 to 100 %")
        for dose in result.doses:
            table.add_row(dose.side, dose.sampling, dose.domain, text(dose.slope))
        console.print(table)
    curves = [p for p in result.points if p.domain == ALL]
    if curves:
        depth = max(p.position for p in curves)
        table = Table("conditional acceptance", "sampling", "side", *map(str, range(1, depth + 1)))
        for drafter, sampling, side in dict.fromkeys((p.drafter, p.sampling, p.side) for p in curves):
            own = {p.position: p for p in curves if (p.drafter, p.sampling, p.side) == (drafter, sampling, side)}
            rates = ("" if k not in own else text(own[k].rate).split(" ")[0] for k in range(1, depth + 1))
            table.add_row(drafter, sampling, side, *rates)
        console.print(table)


def _calibration(result: PhaseGap, console: Any) -> None:
    from rich.table import Table

    if not result.calibration:
        return
    columns = (
        "drafter",
        "sampling",
        "domain",
        "inside",
        "floor",
        "outside",
        "floor",
        "difference",
        "excess, difference",
    )
    table = Table(*columns, title="H2: calibration error (ECE) of the confidence head's forecasts of prefix survival")
    for c in result.calibration:
        numbers = (c.think, c.output)
        cells = [cell for e in numbers for cell in (text(e.ece, 3), "" if e.floor is None else f"{e.floor:.3f}")]
        last = (text(c.difference, 3), text(c.excess_difference, 3))
        table.add_row(f"{c.drafter}-{c.seed}", c.sampling, c.domain, *cells, *last)
    console.print(table)
