r"""The empty system, queues, and what a drafter adds in memory and time.

Where verifying one request's block is as good as free, as on the roofline of a GPU, every scheduler verifies all of it
(the second text, A6) and the speed of the only user is

    tau_gamma / (draft(1) + verify(1 + gamma)),

which no scheduler raises: perfect foresight does not, and a drafter of which everything is accepted reaches
(gamma + 1) / (the same time). What drafting takes is paid whatever is verified. Where verifying is not free, as on a
core of a CPU, `Empty` says how much is left to a scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel
from safetensors import safe_open

from companion.costs import QWEN3_4B, round_bytes
from companion.experiments.load.policies import DEPLOYED, LIMITED, PLAIN
from companion.experiments.simulation.points import ORACLE, Estimate, Served, column, estimate, loads, make
from companion.experiments.simulation.tables import Clock
from companion.serving import Arrivals, Replay, Window, simulate, workload


class Empty(BaseModel):
    """One user alone, tokens per second."""

    table: str
    temperature: float
    plain: float
    whole_block: Estimate  # all drafts verified
    scheduled_over_whole: Estimate
    limited_over_whole: Estimate  # by the policy that also limits what is drafted
    oracle_over_whole: Estimate
    tau: float
    everything_accepted: float  # gamma + 1 tokens in the same step
    free_drafting: float  # the same tau, and no time for drafting


class Queue(BaseModel):
    """Requests that arrive at random, served by at most ``max_batch`` at once. Seconds, and tokens per second."""

    table: str
    temperature: float
    max_batch: int
    load: float  # offered requests over those that static depth 1 serves in a full closed loop
    rate: float  # requests a second
    policy: str
    wait_mean: Estimate
    wait_p95: Estimate
    speed: Estimate
    concurrency: Estimate  # requests a step


class Share(BaseModel):
    """What the drafter adds, as a share of what is there without it."""

    what: str
    drafter: float
    target: float
    unit: str

    @property
    def share(self) -> float:
        return self.drafter / self.target


def empty(clock: Clock, served: Served, seeds: Sequence[int]) -> Empty:
    """The limit of low load."""
    depth = served.calibrated[0].depth
    whole = f"fixed-{depth}"
    found = loads([PLAIN, whole, DEPLOYED, LIMITED, ORACLE], clock, served, 1, seeds)
    rates = {name: column(own, "mean_speed") for name, own in found.items()}
    seconds = 1 / np.mean(rates[whole] / column(found[whole], "committed"))
    drafting = float(np.mean(column(found[whole], "drafting_share")))
    tau = float(np.mean(column(found[whole], "committed")))
    return Empty(
        table=clock.name,
        temperature=served.temperature,
        plain=float(rates[PLAIN].mean()),
        whole_block=estimate(rates[whole]),
        scheduled_over_whole=estimate(rates[DEPLOYED] / rates[whole]),
        limited_over_whole=estimate(rates[LIMITED] / rates[whole]),
        oracle_over_whole=estimate(rates[ORACLE] / rates[whole]),
        tau=tau,
        everything_accepted=float((depth + 1) / seconds),
        free_drafting=float(tau / (seconds * (1 - drafting))),
    )


def queues(
    clock: Clock,
    served: Served,
    max_batch: int,
    seeds: Sequence[int],
    offered: Sequence[float] = (0.5, 0.8, 1.0),
    policies: Sequence[str] = (PLAIN, "fixed-1", "fixed-3", "fixed-7", DEPLOYED, LIMITED, ORACLE),
) -> Iterator[Queue]:
    """Poisson arrivals at shares of what static depth 1 can serve; every policy sees the same arrivals."""
    depth, prefill = served.calibrated[0].depth, clock.measured
    base = loads(["fixed-1"], clock, served, max_batch, seeds)["fixed-1"]
    length = np.mean([r.length for s in seeds for r in workload(served.raw, 400, seed=s)])
    most = float(np.mean(column(base, "throughput"))) / float(length)
    for share in offered:
        for name in policies:
            found = []
            for seed in seeds:
                count = max(40, 4 * max_batch)
                arrivals = Arrivals.poisson(share * most, count, max_batch, seed=seed)
                responses = workload(served.of(name), count, seed=seed)
                log = simulate(make(name, clock.capacity, depth), clock.capacity, responses, arrivals, prefill=prefill)
                found.append(Window.steady(log, count // 4).load())
            yield Queue(
                table=clock.name,
                temperature=served.temperature,
                max_batch=max_batch,
                load=share,
                rate=share * most,
                policy=name,
                wait_mean=estimate(column(found, "wait_mean")),
                wait_p95=estimate(column(found, "wait_p95")),
                speed=estimate(column(found, "mean_speed")),
                concurrency=estimate(column(found, "concurrency")),
            )


def shares(target: Path, drafter: Path, tables: Sequence[Clock], served: Sequence[Replay]) -> Iterator[Share]:
    """Weights of the two folders, those of Qwen3-4B by arithmetic, and the time of a step that verifies all drafts, at
    the mean context of the responses.

    The drafter's embedding and head are the target's own: its file holds them once more, and an engine need not.
    """
    yield Share(
        what="weights of its own, as shipped",
        drafter=_parameters(drafter, without=("embed_tokens", "lm_head")),
        target=_parameters(target),
        unit="parameters",
    )
    once = round_bytes(QWEN3_4B, gamma=1, rank=2 * 256, drafter_layers=5)  # both factors of the Markov head
    arithmetic = "weights of its own, Qwen3-4B by arithmetic"
    yield Share(what=arithmetic, drafter=once.drafter_layers + once.markov_head, target=once.target, unit="bytes")
    anchors = [r.length - 1 for r in served]
    context = float(np.average([r.prompt_length + r.length / 2 for r in served], weights=anchors))
    for clock in tables:
        for requests in (1, 32):
            capacity, tokens = clock.capacity.at(context), requests * (1 + served[0].depth)
            verifying = float(capacity.seconds(tokens, requests, drafted=0))
            drafting = float(capacity.seconds(tokens, requests)) - verifying
            what = f"time of a step, {requests} at once, {clock.name}"
            yield Share(what=what, drafter=drafting, target=verifying, unit="seconds")


def _parameters(folder: Path, without: Sequence[str] = ()) -> int:
    """Of all tensors in a folder's safetensors files whose names hold none of ``without``."""
    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            names = [name for name in file.keys() if not any(part in name for part in without)]  # noqa: SIM118
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    return count
