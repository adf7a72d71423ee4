"""One prompt answered by all arms, which take turns (`companion.experiments.turns`).

A step serves one request, so its time, all of it, belongs to the tokens that it commits. A step whose tokens lie in
both phases is divided by their number. The prefill and the token that comes from it belong to no round and are left
out; what a drafter catches up on after a span without drafts is in the step that drafts again.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Mapping
from typing import get_args

import numpy as np
from pydantic import BaseModel

from companion.engine.decode import Engine
from companion.engine.request import Request
from companion.experiments.turns import take_turns
from companion.protocols import Drafter, Phase, Policy, Target

PHASES: tuple[Phase, ...] = get_args(Phase)


class Spent(BaseModel):
    """Sums over the rounds of one phase; rounds that straddle are counted by token."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: float = 0.0
    drafted: float = 0.0


class Answer(BaseModel):
    """One arm on one prompt."""

    arm: str
    prompt: int
    domain: str
    repeat: int
    think: Spent
    output: Spent
    straddling: int  # rounds
    prefill_seconds: float
    running_seconds: float  # of all steps, in which this thread had a core
    crc32: int  # of the answer's tokens
    ended: str

    def of(self, phase: Phase) -> Spent:
        return self.think if phase == "think" else self.output


class Runner:
    """An engine with one request, and where its time went."""

    def __init__(self, target: Target, drafter: Drafter | None, policy: Policy, request: Request) -> None:
        self.request = request
        capacity = request.prompt_length + request.stop.max_new_tokens
        self._engine = Engine(target, drafter, policy, max_batch=1, capacity=capacity)
        self._engine.submit(request)
        self.spent = {phase: Spent() for phase in PHASES}
        self.straddling, self.prefill_seconds, self.running_seconds = 0, 0.0, 0.0

    def step(self) -> None:
        thread, started = time.thread_time(), time.perf_counter()
        self._engine.step()
        seconds = time.perf_counter() - started
        self.running_seconds += time.thread_time() - thread
        if not self.request.rounds:
            self.prefill_seconds += seconds
            return
        row = self.request.rounds[-1]
        self.straddling += len(set(row.phases)) == 2
        for phase, spent in self.spent.items():
            tokens = row.phases.count(phase)
            share = tokens / row.committed
            spent.tokens += tokens
            spent.seconds += share * seconds
            spent.rounds += share
            spent.drafted += share * row.drafted

    def answer(self, arm: str, prompt: int, domain: str, repeat: int) -> Answer:
        assert self.request.finish_reason is not None
        return Answer(
            arm=arm,
            prompt=prompt,
            domain=domain,
            repeat=repeat,
            think=self.spent["think"],
            output=self.spent["output"],
            straddling=self.straddling,
            prefill_seconds=self.prefill_seconds,
            running_seconds=self.running_seconds,
            crc32=zlib.crc32(np.array(self.request.emitted, dtype=np.int64).tobytes()),
            ended=self.request.finish_reason,
        )


def race(runners: Mapping[str, Runner], order: random.Random) -> None:
    """Let all answer, in turns."""
    take_turns(
        runners,
        lambda name: runners[name].step(),
        lambda name: bool(runners[name].request.finish_reason),
        order,
    )
