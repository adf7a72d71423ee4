"""Runs under load: closed loops, in which an engine always serves the same number of requests.

Whenever a request ends the next one joins. The measured window opens with the step after which half as many requests
have ended as are served at once, so that they are no longer in step with each other, and closes with the first step
after which it holds the demanded number of committed tokens; what is still running is then given up. Inside the window
the engine is always full. Joining requests are read in the same forwards, as in any server: their tokens are counted
apart from the budget.

The runs that are to be compared take turns (`companion.experiments.turns`).
"""

from __future__ import annotations

import random
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

import numpy as np
from pydantic import BaseModel

from companion.engine.decode import Commit, Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.load import TextTarget
from companion.engine.request import Request, StopRule
from companion.experiments.turns import take_turns
from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, Drafter, Frontier, Outcome, Policy, RequestView, Sampling


class RunKey(BaseModel, frozen=True):
    """Which run of the design."""

    setting: str
    threads: int
    concurrency: int
    policy: str
    repeat: int


class Run(BaseModel):
    """Sums over the window's steps. A round is one request's part of a step."""

    key: RunKey
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0  # committed, those that prefills gave included
    in_rounds: int = 0  # of these, those that rounds committed
    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    prompt_tokens: int = 0  # of requests that joined
    context: int = 0  # summed over rounds
    draft_seconds: float = 0.0  # all of a step that is not verifying
    verify_seconds: float = 0.0
    policy_seconds: float = 0.0  # a part of the former
    step_squares: float = 0.0  # seconds squared, summed
    speeds: list[float] = []  # tokens per second of each request that ended inside
    outputs: dict[int, int] = {}  # number of a prompt -> crc32 of its answer, of all that ended in the run
    busy: float = 1.0  # share of the window in which this thread had a core
    yardstick: float | None = None  # seconds of `Yardstick` before the run's turns, median


class Clocked:
    """A policy with a clock around it."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name, self.seconds = policy, policy.name, 0.0

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        started = time.perf_counter()
        depths = self.policy.draft_depths(requests)
        self.seconds += time.perf_counter() - started
        return depths

    def admit(self, frontier: Frontier) -> None:
        started = time.perf_counter()
        self.policy.admit(frontier)
        self.seconds += time.perf_counter() - started

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        started = time.perf_counter()
        self.policy.observe(outcomes)
        self.seconds += time.perf_counter() - started


class LoadedEngine(Engine):
    """An engine that is kept full, and counts what it does."""

    def __init__(
        self,
        key: RunKey,
        target: TextTarget,
        drafter: Drafter | None,
        policy: Policy,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        window: int,
        seed: int,
    ) -> None:
        if not prompts:
            raise ValueError("there is nothing to serve: give at least one prompt")
        if key.concurrency < 1 or window < 1:
            raise ValueError(f"a load is at least 1 request and 1 token, got {key.concurrency} and {window}")
        self.clocked = Clocked(policy)
        longest = max(map(len, prompts))
        super().__init__(target, drafter, self.clocked, max_batch=key.concurrency, capacity=longest + max_new_tokens)
        self.measured, self.window = Run(key=key), window
        self._supply = self._requests(target, prompts, sampling, max_new_tokens, seed)
        self._first: dict[int, tuple[float, int]] = {}  # when a request's first tokens came, and how many
        self._alive, self._ended = 0, 0
        self._before = 0.0  # of the policy's clock, when the window opened
        self._clock = 0.0  # seconds of all steps so far: what others do in between does not count
        self._running_on = 0.0  # seconds of the window in which this thread had a core
        self.done = False
        self._fill()

    def _fill(self) -> None:
        while self._alive < self.measured.key.concurrency:
            self.submit(next(self._supply))
            self._alive += 1

    def _requests(
        self,
        target: TextTarget,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        max_new_tokens: int,
        seed: int,
    ) -> Iterator[Request]:
        """The prompts in order, again and again; a prompt that comes again is answered with other random numbers."""
        rule, number = StopRule(max_new_tokens, target.eos_token_ids), 0
        while True:
            for ids in prompts:
                draws = KeyedDraws(seed, request_key(list(ids), number // len(prompts)))
                context = Context(number, list(ids), sampling, draws)
                yield Request(context, len(ids), rule, PhaseTracker(target.tags, ids))
                number += 1

    def step(self) -> list[Commit]:
        inside = self._opened()
        thread, started = time.thread_time(), time.perf_counter()
        commits = super().step()
        seconds = time.perf_counter() - started
        self._clock += seconds
        if inside:
            self._running_on += time.thread_time() - thread
            self._count(commits, seconds)
        self._follow(commits, inside)
        self._fill()
        return commits

    def _opened(self) -> bool:
        run = self.measured
        if 2 * self._ended < run.key.concurrency or not self._ended:
            return False
        if not run.steps:
            self._before = self.clocked.seconds
        return True

    def _count(self, commits: Sequence[Commit], seconds: float) -> None:
        run = self.measured
        run.seconds, run.steps = run.seconds + seconds, run.steps + 1
        run.step_squares += seconds * seconds
        verify = 0.0
        for commit in commits:
            run.tokens += len(commit.tokens)
            if len(commit.request.emitted) == len(commit.tokens):
                run.prompt_tokens += commit.request.prompt_length
                continue
            row = commit.request.rounds[-1]
            run.rounds += 1
            run.in_rounds += row.committed
            run.drafted += row.drafted
            run.verified += row.verified
            run.accepted += row.accepted
            run.context += row.position
            verify = row.verify_seconds  # of the step
        run.verify_seconds += verify
        run.draft_seconds += seconds - verify

    def _follow(self, commits: Sequence[Commit], inside: bool) -> None:
        run, now = self.measured, self._clock
        for commit in commits:
            request, number = commit.request, commit.request.context.request
            self._first.setdefault(number, (now, len(commit.tokens)))
            if request.finish_reason:
                self._alive, self._ended = self._alive - 1, self._ended + 1
                since, given = self._first.pop(number)
                if inside and now > since:
                    run.speeds.append((len(request.emitted) - given) / (now - since))
                run.outputs[number] = zlib.crc32(np.array(request.emitted, dtype=np.int64).tobytes())
        if inside and run.tokens >= self.window and not self.done:
            run.policy_seconds = self.clocked.seconds - self._before
            run.busy = self._running_on / run.seconds
            self.done = True


def serve(engines: Mapping[RunKey, LoadedEngine], yardstick: Callable[[], float] | None = None) -> list[Run]:
    """Let the engines serve in turns until every window is full; ``yardstick`` is taken before each turn."""
    taken = defaultdict[RunKey, list[float]](list)

    def measure(key: RunKey) -> None:
        if yardstick is not None:
            taken[key].append(yardstick())

    with ExitStack() as stack:
        loops = {key: stack.enter_context(closing(engine.run())) for key, engine in engines.items()}  # type: ignore[type-var]
        take_turns(loops, lambda key: next(loops[key]), lambda key: engines[key].done, random.Random(0), measure)
    for key, seconds in taken.items():
        engines[key].measured.yardstick = float(np.median(seconds))
    return [engine.measured for engine in engines.values()]
