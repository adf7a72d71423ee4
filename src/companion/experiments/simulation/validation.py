"""The simulator against the real engine: the same table, policies, loads and calibration, other responses.

The real runs answered prompts of their own; the simulator serves the recorded responses to others of the same kinds, in
equal shares of the domains, as the real runs did. So an error of throughput has two parts, which are stated beside it:
the time of a step, which is the table's affair, and the tokens that a round commits, which are the responses'.

A machine is not as fast at every hour, and the table is of another hour than the runs. So besides the error of
throughput there is that of the same hour, with all times scaled by what a yardstick took then and now; and that of a
policy's throughput relative to all others at its load, which took turns and shared the hour: policies are what a
simulation is asked to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from companion.experiments.bars import Bar, judge
from companion.experiments.load.study import Result
from companion.experiments.load.summary import Cell
from companion.experiments.simulation.points import Estimate, Served, column, estimate, loads
from companion.experiments.simulation.tables import Clock

WITHIN = 0.10


class Validated(BaseModel):
    """One policy at one load; errors are simulated over real, minus 1."""

    setting: str
    threads: int
    concurrency: int
    policy: str
    real: float  # tokens per second
    simulated: Estimate
    error: float
    same_hour_error: float | None = (
        None  # of throughput with the table's times scaled by the yardstick, where there is one
    )
    relative_error: float  # of throughput over the geometric mean of all policies at this load
    step_error: float  # of the mean time of a step
    tau_error: float  # of the tokens that a round commits
    budget_error: float  # of the tokens that a round verifies, the anchor among them
    policy_share: float  # of the real time, which the table does not know


def validate(
    real: Result,
    clock: Callable[[int], Clock],  # threads -> table
    served: Callable[[str], Served | None],  # setting -> responses of its temperature and mode, if recorded
    seeds: Sequence[int],
    done: Callable[[], object] = lambda: None,
) -> Iterator[Validated]:
    """Every real cell that there are responses for."""
    for setting in real.config.settings:
        pool = served(setting.name)
        for threads in setting.threads if pool is not None else ():
            assert pool is not None
            table = clock(threads)
            for concurrency in setting.concurrency:
                cells = [c for c in real.cells if c.place == (setting.name, threads, concurrency)]
                found = loads([c.policy for c in cells], table, pool, concurrency, seeds)
                rates = {c.policy: column(found[c.policy], "throughput").mean() for c in cells}
                mood = float(np.exp(np.mean([np.log(rates[c.policy] / c.tokens_per_second) for c in cells])))
                for cell in cells:
                    then = None
                    if table.yardstick and cell.yardstick:
                        then = cell.yardstick / table.yardstick
                    yield _compared(cell, {n: column(found[cell.policy], n) for n in _NAMES}, mood, then)
                    done()


_NAMES = ("throughput", "step_seconds", "committed", "budget")


def _compared(cell: Cell, simulated: Mapping[str, np.ndarray], mood: float, then: float | None) -> Validated:
    def error(name: str, real: float) -> float:
        return float(simulated[name].mean()) / real - 1

    return Validated(
        setting=cell.setting,
        threads=cell.threads,
        concurrency=cell.concurrency,
        policy=cell.policy,
        real=cell.tokens_per_second,
        simulated=estimate(simulated["throughput"]),
        error=error("throughput", cell.tokens_per_second),
        same_hour_error=None if then is None else (1 + error("throughput", cell.tokens_per_second)) / then - 1,
        relative_error=(1 + error("throughput", cell.tokens_per_second)) / mood - 1,
        step_error=error("step_seconds", cell.seconds / cell.steps),
        tau_error=error("committed", cell.tau),
        budget_error=error("budget", cell.budget),
        policy_share=cell.policy_share,
    )


def bars(found: Sequence[Validated]) -> list[Bar]:
    """Whether the simulator is within `WITHIN` of real throughput everywhere, and of the policies' ratios: 1 - the
    largest error."""
    errors = {
        "simulated throughput is within 10 % of the real one": [abs(v.error) for v in found],
        "simulated throughput of the same hour is": [
            abs(v.same_hour_error) for v in found if v.same_hour_error is not None
        ],
        "simulated throughput relative to the other policies is": [abs(v.relative_error) for v in found],
    }
    return [
        judge(f"{name}: 1 - largest error", 1 - WITHIN, 1 - max(own) if own else None, None, None, len(own))
        for name, own in errors.items()
    ]
