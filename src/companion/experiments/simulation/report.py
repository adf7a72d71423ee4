"""What the simulation found, as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from companion.experiments.simulation.points import Estimate
from companion.experiments.simulation.study import Result
from companion.experiments.simulation.validation import Validated


def show(result: Result) -> None:
    """Everything, the largest first."""
    console = Console()
    for table, temperature in dict.fromkeys((p.table, p.temperature) for p in result.points):
        own = [p for p in result.points if (p.table, p.temperature) == (table, temperature)]
        _grid(
            console,
            f"T {temperature:g}; {table}",
            ("at once", "policy", "tokens/s", "a user", "p10", "B/R", "tau", "wasted", "drafting", "over static"),
            [
                (
                    p.concurrency,
                    p.policy,
                    text(p.throughput, 0),
                    text(p.speed, 0),
                    f"{p.p10_speed:.0f}",
                    f"{p.budget:.2f}",
                    f"{p.tau:.2f}",
                    f"{p.wasted:.2f}",
                    f"{100 * p.drafting_share:.0f} %",
                    text(p.over_static),
                )
                for p in own
            ],
        )
    _grid(
        console,
        "throughput at a demanded speed, in speeds of a user alone without drafts",
        ("table", "T", "demanded", "policy", "tokens/s", "over static depth 1"),
        [
            (
                a.table,
                f"{a.temperature:g}",
                f"{a.times_plain:g} x",
                a.policy,
                _number(a.throughput),
                _number(a.over_mtp),
            )
            for a in result.agreements
        ],
    )
    for title, compared in (("delay, early stop, foresight", result.gaps), ("wrong confidences", result.drifts)):
        _grid(
            console,
            f"throughput: {title}",
            ("table", "at once", "what", "over", "ratio"),
            [(c.table, c.concurrency, c.what, c.over, text(c.ratio)) for c in compared],
        )
    _grid(
        console,
        "a gain over static depth 1, taken apart",
        ("table", "at once", "part", "factor"),
        [(p.table, p.concurrency, p.part, text(p.factor)) for p in result.parts],
    )
    _grid(
        console,
        "who gets the slots",
        ("table", "at once", "policy", "domain", "verified", "expected", "accepted", "longest", "of all", "starving"),
        [
            (
                f.table,
                f.concurrency,
                f.policy,
                f.domain,
                f"{f.verified:.2f}",
                f"{f.expected:.2f}",
                f"{f.accepted:.2f}",
                f"{f.longest:.1f}",
                f.longest_of_all,
                f"{100 * f.starving:.0f} %",
            )
            for f in result.fairness
        ],
    )
    _grid(
        console,
        "one user alone, tokens/s",
        (
            "table",
            "T",
            "plain",
            "whole block",
            "deployed",
            "limited",
            "oracle",
            "tau",
            "all accepted",
            "free drafting",
        ),
        [
            (
                e.table,
                f"{e.temperature:g}",
                f"{e.plain:.0f}",
                text(e.whole_block, 0),
                text(e.scheduled_over_whole),
                text(e.limited_over_whole),
                text(e.oracle_over_whole),
                f"{e.tau:.2f}",
                f"{e.everything_accepted:.0f}",
                f"{e.free_drafting:.0f}",
            )
            for e in result.empty
        ],
    )
    _grid(
        console,
        "arrivals at random",
        ("table", "load", "policy", "wait, s", "p95", "a user", "at once"),
        [
            (
                q.table,
                f"{q.load:g}",
                q.policy,
                text(q.wait_mean),
                text(q.wait_p95),
                text(q.speed, 0),
                text(q.concurrency, 1),
            )
            for q in result.queues
        ],
    )
    for s in result.shares:
        console.print(f"{s.what}: the drafter's are {100 * s.share:.1f} % of the target's")
    _grid(
        console,
        "against the real engine",
        (
            "setting",
            "threads",
            "at once",
            "policy",
            "real",
            "simulated",
            "error",
            "same hour",
            "relative",
            "step",
            "tau",
            "policy's time",
        ),
        [
            (
                v.setting,
                v.threads,
                v.concurrency,
                v.policy,
                f"{v.real:.0f}",
                text(v.simulated, 0),
                *("" if e is None else f"{100 * e:+.1f} %" for e in _errors(v)),
                f"{100 * v.policy_share:.1f} %",
            )
            for v in result.validated
        ],
    )
    for b in result.bars:
        console.print(f"{b.name}: {_number(b.value)} [{_number(b.low)}, {_number(b.high)}] ({b.trials}): {b.outcome}")
    console.print(f"verdict: {result.verdict}")


def _errors(v: Validated) -> tuple[float | None, ...]:
    return v.error, v.same_hour_error, v.relative_error, v.step_error, v.tau_error


def _grid(console: Console, title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    grid = Table(*header, title=title)
    for row in rows:
        grid.add_row(*map(str, row))
    if grid.row_count:
        console.print(grid)


def text(value: Estimate | None, digits: int | None = None) -> str:
    """A value and its interval, to three decimals unless it is large."""
    if value is None:
        return ""
    digits = (0 if abs(value.value) >= 100 else 3) if digits is None else digits
    ends = "" if value.low is None else f" [{value.low:.{digits}f}, {value.high:.{digits}f}]"
    return f"{value.value:.{digits}f}{ends}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
