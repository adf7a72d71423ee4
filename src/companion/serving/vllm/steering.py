"""A policy applied to vLLM's requests, and every step of them written down as a round. Knows no class of vLLM.

vLLM drafts as deep as it is configured to and its scheduler decides what is verified, so a depth is set by shortening
``request.spec_token_ids`` before the step that would verify them; verification is saved, drafting is not. The decision
uses the past alone, so the output's law stays the target's.

What the scheduler knows then depends on how vLLM runs. Synchronously, the drafts and all that is committed. With
asynchronous scheduling (its default on a GPU) the drafts are placeholders, and a depth is set while the two steps
before its own are on their way: the phase that a policy sees is two steps old. Entropies and confidences never get
here.

A round's ``drafted`` is what vLLM offered, ``verified`` what was kept; tokens, phases and the end are what it
committed, nothing behind a stop token. The first token, from the prefill, belongs to no round. A step in which nothing
was drafted is a round of depth 0, which vLLM's own metrics leave out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from companion.engine.frontier import DraftFrontier
from companion.phase.tracker import PhaseTracker, ThinkTokens
from companion.protocols import Draft, Outcome, Policy, RequestView, Sampling
from companion.rounds import Round, RoundsWriter
from companion.serving.vllm.options import NAME_ARGUMENT, OFF, depth_asked

PLACEHOLDER = -1  # what asynchronous scheduling has in the place of a draft that the worker has yet to make
log = logging.getLogger("companion.vllm")


class UnseenDrafts(DraftFrontier):
    """Slots whose tokens exist on the worker only."""

    def revealed(self, row: int) -> Sequence[int]:
        if self.admitted(row):
            raise ValueError(
                "this policy looks at drafted tokens, and with asynchronous scheduling vLLM's scheduler has none of "
                "them; run vLLM with async_scheduling off"
            )
        return []


@dataclass(slots=True)
class Followed:
    """What is kept of one of vLLM's requests while it runs."""

    number: int
    name: str
    tracker: PhaseTracker
    prompt_length: int
    sampling: Sampling
    most: int | None  # tokens that the request itself wants drafted at most
    left_alone: str | None  # why no policy is applied to it
    rounds: int = 0
    offered: int = 0  # drafts that wait for the next step
    running: deque[int] = field(default_factory=deque)  # offered to each step that is scheduled and not over

    def view(self, request: Any) -> RequestView:
        emitted = len(request.output_token_ids)
        return RequestView(
            request=self.number,
            position=self.prompt_length + emitted,
            phase=self.tracker.phase,
            room=request.max_tokens - emitted,
            sampling=self.sampling,
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """A request's step before vLLM has taken its tokens in."""

    request: Any
    before: int  # tokens emitted so far
    offered: int
    verified: int
    made: int  # tokens that came out of the step: accepted drafts and the target's own
    batch: int


class Steering:
    """The state behind our schedulers: requests by vLLM's id, the policy, and the file of rounds."""

    def __init__(self, policy: Policy | None, tags: ThinkTokens, writer: RoundsWriter | None = None) -> None:
        self.policy, self.tags, self.writer = policy, tags, writer
        self._followed: dict[str, Followed] = {}
        self._count = 0
        self._said: set[str] = set()

    def shorten(self, requests: Iterable[Any]) -> None:
        """Cut the drafts of the next step to what the policy admits."""
        drafted = [(request, self._follow(request)) for request in requests if request.spec_token_ids]
        for request, state in drafted:
            state.offered = len(request.spec_token_ids)
        ours = [(request, state) for request, state in drafted if state.left_alone is None]
        if self.policy is None or not ours:
            return
        views = [state.view(request) for request, state in ours]
        try:
            depths = self.policy.draft_depths(views)
            drafts = [
                Draft(list(request.spec_token_ids[: _least(depth, state.most)]))
                for (request, state), depth in zip(ours, depths, strict=True)
            ]
            frontier = (UnseenDrafts if _placeholders(drafts) else DraftFrontier)(views, drafts)
            self.policy.admit(frontier)
        except ValueError as error:  # raised here it would end the engine, with everybody's requests
            self._say(f"the policy {self.policy.name} gave no depths, and vLLM's own were kept: {error}")
            return
        for row, (request, _) in enumerate(ours):
            # vLLM shares one list of placeholders among all requests: never cut in place
            request.spec_token_ids = request.spec_token_ids[: frontier.admitted(row)]

    def scheduled(self, requests: Mapping[str, Any], output: Any) -> None:
        """A step was put together: what had been offered to its requests belongs to it."""
        for name in output.finished_req_ids:
            self._followed.pop(name, None)
        for name in output.num_scheduled_tokens:
            if (request := requests.get(name)) is not None:
                state = self._follow(request)
                state.running.append(state.offered)
                state.offered = 0

    def before(self, requests: Mapping[str, Any], output: Any, result: Any) -> list[Pending]:
        """What a finished step brought, to be read before vLLM cuts it at stop tokens."""
        found = []
        decoding = sum(len(_sampled(result, name)) > 0 for name in output.num_scheduled_tokens)
        for name in output.num_scheduled_tokens:
            request = requests.get(name)
            if request is None:  # ended, or was given up, while the step ran
                continue
            state = self._follow(request)
            offered = state.running.popleft() if state.running else 0
            verified = len(output.scheduled_spec_decode_tokens.get(name, ()))
            made = len(_sampled(result, name))
            before = len(request.output_token_ids)
            if made:
                found.append(Pending(request, before, max(offered, verified), verified, made, decoding))
        return found

    def after(self, steps: Iterable[Pending]) -> None:
        """Record the steps, now that vLLM has committed what it keeps of them."""
        rows, outcomes = [], []
        for step in steps:
            state = self._follow(step.request)
            row = self._round(state, step)
            if row is not None:
                rows.append(row)
                if state.left_alone is None:
                    outcomes.append(Outcome(row.request, None, row.verified, row.accepted, row.rejected))
            if step.request.is_finished():
                self._followed.pop(step.request.request_id, None)
        if self.writer is not None:
            self.writer.extend(rows)
            self.writer.rows.clear()  # a server runs for weeks
        if self.policy is not None and outcomes:
            self.policy.observe(outcomes)

    def _round(self, state: Followed, step: Pending) -> Round | None:
        """The round of a step; None for a prefill's token and for tokens that vLLM dropped."""
        tokens = list(step.request.output_token_ids[step.before :])
        phases = state.tracker.label(tokens)
        if step.before == 0 or not tokens:
            return None
        accepted = step.made - 1
        reason = str(step.request.get_finished_reason()) if step.request.is_finished() else None
        state.rounds += 1
        return Round(
            request=state.number,
            round=state.rounds,
            position=state.prompt_length + step.before,
            drafted=step.offered,
            verified=step.verified,
            accepted=min(accepted, len(tokens)),
            rejected=accepted < step.verified and len(tokens) == step.made,
            bonus=len(tokens) == step.made,
            tokens=tokens,
            phases=phases,
            ended=cast(Any, reason) if reason in ("stop", "length") else None,
            batch=step.batch,
            prompt_id=state.name,
        )

    def _follow(self, request: Any) -> Followed:
        state = self._followed.get(request.request_id)
        if state is None:
            state = self._followed[request.request_id] = self._begin(request)
        return state

    def _begin(self, request: Any) -> Followed:
        extra = request.sampling_params.extra_args or {}
        prompt = request.prompt_token_ids or []
        most, reason = None, None if prompt else "its prompt has no token ids"
        try:
            asked = depth_asked(extra)
            reason = "it asked for that" if asked == OFF else reason
            most = asked if isinstance(asked, int) else None
        except ValueError as error:
            reason = str(error)
        tracker = PhaseTracker(self.tags, prompt)
        tracker.label(request.output_token_ids)
        self._count += 1
        state = Followed(
            number=self._count - 1,
            name=str(extra.get(NAME_ARGUMENT, request.request_id)),
            tracker=tracker,
            prompt_length=len(prompt),
            sampling=sampling_of(request.sampling_params),
            most=most,
            left_alone=reason,
        )
        if self.policy is not None and reason is None:
            try:
                self.policy.draft_depths([state.view(request)])
            except ValueError as error:
                state.left_alone = str(error)
                self._say(f"requests like {state.name} keep vLLM's own depths: {error}")
        elif reason not in (None, "it asked for that"):
            self._say(f"request {state.name} keeps vLLM's own depths: {reason}")
        return state

    def _say(self, text: str) -> None:
        """Each warning once: a batch repeats it a hundred times a second."""
        if text not in self._said:
            self._said.add(text)
            log.warning(text)


def sampling_of(parameters: Any) -> Sampling:
    """Ours from vLLM's SamplingParams, which write "all" as top_k 0 or -1."""
    if parameters.temperature == 0.0:
        return Sampling(0.0)
    top_k = parameters.top_k if parameters.top_k > 0 else None
    return Sampling(parameters.temperature, top_k, parameters.top_p, parameters.min_p)


def _sampled(result: Any, name: str) -> Sequence[int]:
    """Tokens that a step made for a request; none while its prompt is still being read."""
    index = result.req_id_to_index.get(name)
    return result.sampled_token_ids[index] if index is not None and result.sampled_token_ids else ()


def _least(depth: int, most: int | None) -> int:
    return max(0, depth if most is None else min(depth, most))


def _placeholders(drafts: Sequence[Draft]) -> bool:
    return any(PLACEHOLDER in draft.tokens for draft in drafts)
