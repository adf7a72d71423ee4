r"""A discrete-event simulator of the engine: real policies and recorded drafts against the clock of a capacity table.

A step is the engine's: requests join where there is room, those that have been read draft, the policy admits what it
wants of the drafts (`companion.serving.lengths`), one forward verifies, and whoever has emitted its last token leaves.
A request that joins has its prompt read in that same forward, which gives its first token; it drafts a step later. The
step takes

    capacity.at(mean context of the requests that decode).seconds(B, R, drafted, depth)

with B the anchors, admitted drafts and prompt tokens, R the requests, ``drafted`` those that drafted anything, and the
depth of the longest draft. The time that the scheduling itself takes, and that of everything around a step, is not in
it unless the table has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from companion.protocols import Draft, Outcome, Policy, RequestView
from companion.scheduling.capacity import Capacity, CapacityTable
from companion.serving.arrivals import Arrivals
from companion.serving.foresight import Foresight
from companion.serving.lengths import lengths_of
from companion.serving.replay import Replay


class Step(NamedTuple):
    end: float  # seconds
    seconds: float
    drafting: float  # of these
    requests: int
    decoding: int  # those past their prompt
    prompt_tokens: int
    tokens: int  # B


class SimulatedRound(NamedTuple):
    step: int
    request: int
    anchor: int  # its place in the response
    drafted: int
    verified: int
    accepted: int
    committed: int


@dataclass(slots=True)
class Served:
    """One request; times in seconds, ``waited`` from arrival to the step it joined."""

    number: int
    replay: Replay
    arrived: float
    joined: float = 0.0
    first: float = 0.0  # when its first token was there
    finished: float = 0.0
    at: int = -1  # the anchor's place in the response; -1: nothing is emitted yet

    @property
    def waited(self) -> float:
        return self.joined - self.arrived

    def view(self) -> RequestView:
        replay, at = self.replay, self.at
        return RequestView(
            request=self.number,
            position=replay.prompt_length + at + 1,
            phase=replay.phases[at + 1] if replay.phases else "output",
            room=replay.limit - at - 1,
            last_entropy=replay.entropy[at - 1] if replay.entropy is not None and at else None,
            sampling=replay.sampling,
        )


@dataclass(frozen=True, slots=True)
class Log:
    """Everything that happened, in order."""

    policy: str
    steps: list[Step]
    rounds: list[SimulatedRound]
    requests: list[Served]
    closed: bool

    def column(self, name: str) -> NDArray[np.float64]:  # [rounds]
        """One field of all rounds."""
        place = SimulatedRound._fields.index(name)
        return np.array([row[place] for row in self.rounds], dtype=np.float64)


def simulate(
    policy: Policy | Foresight,
    capacity: Capacity | CapacityTable,
    responses: Sequence[Replay],  # one for each arrival
    arrivals: Arrivals,
    *,
    prefill: bool = True,
) -> Log:
    """Serve ``responses`` until all are done. ``prefill`` False: prompts are read elsewhere, at no time here.

    ValueError when there are not as many responses as arrivals, or for a policy that wants confidences of a recording
    without any.
    """
    if len(responses) != len(arrivals.times):
        raise ValueError(f"each arrival needs a response, got {len(arrivals.times)} and {len(responses)}")
    if not isinstance(policy, Policy | Foresight):
        raise ValueError(f"policy must say how deep to draft and what to verify, got {policy!r}")
    foresight = policy if isinstance(policy, Foresight) else None
    everyone = [Served(i, r, t) for i, (r, t) in enumerate(zip(responses, arrivals.times, strict=True))]
    waiting, running = deque(everyone), list[Served]()
    steps, rounds, now = list[Step](), list[SimulatedRound](), 0.0
    while waiting or running:
        if not running:
            now = max(now, waiting[0].arrived)
        while waiting and len(running) < arrivals.max_batch and waiting[0].arrived <= now:
            request = waiting.popleft()
            request.joined = now
            if not prefill:
                request.first, request.at = now, 0
            running.append(request)
        decoding = [r for r in running if r.at >= 0]
        found, drafts = _rounds(policy, foresight, decoding, len(steps))
        prompts = sum(r.replay.prompt_length for r in running if r.at < 0)
        tokens = len(decoding) + sum(row.verified for row in found) + prompts
        context = sum(r.replay.prompt_length + r.at + 1 for r in decoding) / max(1, len(decoding))
        cost, drafted = capacity.at(context), sum(row.drafted > 0 for row in found)
        depth = max((row.drafted for row in found), default=0)
        seconds, drafting = float(cost.seconds(tokens, len(running), drafted, depth)), cost.drafting(drafted, depth)
        now += seconds
        steps.append(Step(now, seconds, drafting, len(running), len(decoding), prompts, tokens))
        outcomes = []
        for request, row, draft in zip(decoding, found, drafts, strict=True):
            rejected = row.accepted < row.verified and row.committed == row.accepted + 1
            outcomes.append(Outcome(row.request, draft.confidence, row.verified, row.accepted, rejected))
            request.at += row.committed
        rounds.extend(found)
        for request in running:
            if request.at < 0:
                request.first, request.at = now, 0
            if request.at == request.replay.length - 1:
                request.finished = now
        policy.observe(outcomes)
        running = [r for r in running if r.at < r.replay.length - 1]
    return Log(policy.name, steps, rounds, everyone, arrivals.closed)


def _rounds(
    policy: Policy | Foresight, foresight: Foresight | None, decoding: Sequence[Served], step: int
) -> tuple[list[SimulatedRound], list[Draft]]:
    """One round of each request, in the order of the batch, as the engine would decide and verify it."""
    if not decoding:
        return [], []
    views = [request.view() for request in decoding]
    drafts = [
        request.replay.draft(request.at, max(0, min(depth, request.replay.depth, view.room - 1)))
        for request, view, depth in zip(decoding, views, policy.draft_depths(views), strict=True)
    ]
    leading = [request.replay.leading[request.at] for request in decoding]
    if foresight is not None:
        lengths = list(foresight.lengths_seeing(views, drafts, leading))
    else:
        lengths = lengths_of(cast(Policy, policy), views, drafts)
    found = []
    for request, draft, length, run in zip(decoding, drafts, lengths, leading, strict=True):
        passed = min(run, length)
        committed = min(passed + 1, request.replay.length - 1 - request.at)  # nothing behind the text's end
        accepted = min(passed, committed)
        found.append(SimulatedRound(step, request.number, request.at, len(draft), length, accepted, committed))
    return found, drafts
