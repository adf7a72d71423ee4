"""The simulator against the real engine: the same table, policies, loads and calibration, other responses.

The real runs answered prompts of their own; the simulator serves the recorded responses to others of the same kinds, in
equal shares of the domains, as the real runs did. So an error of throughput has two parts, which are stated beside it:
the time of a step, which is the table's affair, and the tokens that a round commits, which are the responses'.
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
                for cell in cells:
                    yield _compared(cell, {n: column(found[cell.policy], n) for n in _NAMES})
                    done()


_NAMES = ("throughput", "step_seconds", "committed", "budget")


def _compared(cell: Cell, simulated: Mapping[str, np.ndarray]) -> Validated:
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
        step_error=error("step_seconds", cell.seconds / cell.steps),
        tau_error=error("committed", cell.tau),
        budget_error=error("budget", cell.budget),
        policy_share=cell.policy_share,
    )


def bar(found: Sequence[Validated]) -> Bar:
    """Whether the simulator is within `WITHIN` of real throughput everywhere: 1 - the largest error."""
    errors = [abs(v.error) for v in found]
    worst = 1 - max(errors) if errors else None
    name = "simulated throughput is within 10 % of the real one: 1 - largest error"
    return judge(name, 1 - WITHIN, worst, None, None, len(found))
