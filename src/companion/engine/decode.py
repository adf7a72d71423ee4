"""The engine: rounds of draft, admit, verify and commit over a changing batch of requests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from companion.engine.frontier import verification_lengths
from companion.engine.judge import judge
from companion.engine.request import Request
from companion.engine.target import ragged
from companion.engine.transfer import upload
from companion.protocols import Draft, Drafter, Outcome, Policy, Target
from companion.rounds import Round
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.retrospective import Retrospective


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that became final in one step, and the request they belong to."""

    request: Request
    tokens: list[int]


class Engine:
    """Decodes requests that join and leave, one ragged target forward per step.

    ``drafter`` None is plain decoding through the same code. ``max_batch`` requests run at once; the rest wait in
    order. ``allow_lossy`` lets the retrospective counterexample run; nothing else can change the output's law.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        policy: Policy | Retrospective | None = None,
        *,
        max_batch: int = 8,
        capacity: int | None = None,
        allow_lossy: bool = False,
    ) -> None:
        if drafter is not None and not isinstance(drafter, Drafter):
            raise ValueError(f"drafter must be None or a loaded drafter, got {drafter!r}; load it with load_drafter")
        if policy is not None and not isinstance(policy, Policy | Retrospective):
            raise ValueError(f"policy must say how deep to draft, such as FixedDepth(4), got {policy!r}")
        if drafter is not None and drafter.vocab_size != target.vocab_size:
            raise ValueError(
                f"drafter {drafter.name} has a vocabulary of {drafter.vocab_size} tokens and target "
                f"{target.name} one of "
                f"{target.vocab_size}: they must share one tokenizer"
            )
        if not hasattr(max_batch, "__index__") or max_batch < 1:
            raise ValueError(f"max_batch must be an integer of at least 1, got {max_batch!r}")
        if capacity is not None and not 1 <= capacity <= target.max_context:
            raise ValueError(
                f"capacity must be 1 to {target.max_context} tokens, what {target.name} holds, got {capacity}"
            )
        if isinstance(policy, Retrospective) and not allow_lossy:
            raise ValueError(
                "the retrospective policy changes the output's distribution; it runs only with allow_lossy=True"
            )
        self.target, self.drafter = target, drafter
        self.policy = policy or FixedDepth(drafter.max_depth if drafter else 0)
        self.taps = tuple(drafter.taps) if drafter else ()
        self.cache = target.new_cache(max_batch, capacity or target.max_context)
        self._free = list(range(max_batch))[::-1]
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    def submit(self, request: Request) -> None:
        """Queue a request; it joins the batch at the next step with a free slot."""
        needed = request.prompt_length + request.stop.max_new_tokens
        if needed > self.cache.capacity:
            raise ValueError(
                f"the prompt has {request.prompt_length} tokens and max_new_tokens is "
                f"{request.stop.max_new_tokens}, together "
                f"{needed}; the context holds {self.cache.capacity}: shorten the prompt or ask for fewer tokens"
            )
        limit = self.drafter.max_context if self.drafter else None
        if self.drafter is not None and limit is not None and needed > limit:
            raise ValueError(
                f"prompt and max_new_tokens make {needed} tokens, and drafter {self.drafter.name} reads at most "
                f"{limit}: "
                "ask for fewer tokens, or decode without a drafter"
            )
        self._waiting.append(request)

    def run(self) -> Iterator[Commit]:
        """Step until every request is done, yielding each commit as it happens."""
        try:
            while self._waiting or self._running:
                yield from self.step()
        finally:
            self._release(list(self._running))

    def step(self) -> list[Commit]:
        """One round for every running request; new ones are prefilled in the same forward.

        On a GPU the host waits for the device twice: for the drafts, on which a policy written in Python decides, and
        for what was committed (`judge`). Without a drafter only the second is left. Counted on no GPU yet:
        `benchmarks/gpu_decode.sh` counts them.
        """
        while self._free and self._waiting:
            request = self._waiting.popleft()
            request.slot = self._free.pop()
            self._running.append(request)
        running = list(self._running)
        started = time.perf_counter()
        drafts, lengths = self._draft(running)
        drafted = time.perf_counter()
        batch = ragged(
            [(r.slot, r.cached, [*r.pending, *d.tokens[:n]]) for r, d, n in zip(running, drafts, lengths, strict=True)],
            self.target.device,
        )
        wanted: list[int] = []  # the anchor's row and one per verified draft
        for end, n in zip(batch.starts[1:], lengths, strict=True):
            wanted.extend(range(end - n - 1, end))
        if len(wanted) < len(batch.tokens):
            batch.logit_rows = upload(wanted, self.target.device)
        output = self.target.forward(batch, self.cache, self.taps)
        commits = self._verify(running, drafts, lengths, output.logits)
        features = self._settle(running, commits, batch.starts, output.features)
        verified = time.perf_counter()
        outcomes = []
        for request in running:
            if request.rounds and request.rounds[-1].round == request.context.round:
                row = request.rounds[-1]
                row.draft_seconds, row.verify_seconds, row.batch = drafted - started, verified - drafted, len(running)
                outcomes.append(Outcome(row.request, row.confidence, row.verified, row.accepted, row.rejected))
            request.context.round += 1
        self.policy.observe(outcomes)
        self._release([r for r in running if r.finish_reason])
        if self.drafter is not None:
            alive = [(r.context, f) for r, f in zip(running, features, strict=True) if not r.finish_reason]
            self.drafter.observe([c for c, _ in alive], [f for _, f in alive])
        return commits

    def _draft(self, running: list[Request]) -> tuple[list[Draft], list[int]]:
        """Drafts and admitted lengths; a request that is being prefilled drafts nothing."""
        drafts = [Draft([]) for _ in running]
        lengths = [0] * len(running)
        decoding = [i for i, r in enumerate(running) if r.cached]
        if self.drafter is None or not decoding:
            return drafts, lengths
        views = [running[i].view() for i in decoding]
        depths = [
            max(0, min(depth, self.drafter.max_depth, view.room - 1))  # a round commits up to depth + 1 tokens
            for depth, view in zip(self.policy.draft_depths(views), views, strict=True)
        ]
        if not any(depths):  # nothing to draft: a step of plain decoding
            return drafts, lengths
        proposals = self.drafter.propose([running[i].context for i in decoding], depths)
        for proposal, depth in zip(proposals, depths, strict=True):
            if len(proposal) > depth:
                raise ValueError(
                    f"drafter {self.drafter.name} proposed {len(proposal)} tokens where {depth} were asked for"
                )
            if not all(0 <= token < self.target.vocab_size for token in proposal.tokens):
                raise ValueError(
                    f"drafter {self.drafter.name} proposed {proposal.tokens}; token ids run from 0 to "
                    f"{self.target.vocab_size - 1}"
                )
        admitted = verification_lengths(self.policy, views, proposals)
        for i, proposal, length in zip(decoding, proposals, admitted, strict=True):
            drafts[i], lengths[i] = proposal, length
        return drafts, lengths

    def _verify(
        self,
        running: list[Request],
        drafts: list[Draft],
        lengths: list[int],
        logits: Tensor,  # [sum(lengths) + R, V]
    ) -> list[Commit]:
        """Apply the rule to each request, cut at stops, and record the round."""
        contexts, depth = [r.context for r in running], self.drafter.max_depth if self.drafter else 0
        close = sorted({token for r in running if (token := r.tracker.tags.close) is not None})
        verdicts, statistics = judge(contexts, drafts, lengths, logits, close, depth)
        ends = [0, *accumulate(n + 1 for n in lengths)]
        commits = []
        for request, draft, n, start, (accepted, token) in zip(running, drafts, lengths, ends, verdicts, strict=False):
            context, position = request.context, len(request.context.tokens)
            new = [*draft.tokens[:accepted], token]
            count, request.finish_reason = request.stop.cut(request.emitted, new)
            new = new[:count]
            anchor_row = start + count - 1
            request.last_entropy = statistics.entropy[anchor_row]
            request.last_served_entropy = statistics.served_entropy[anchor_row]
            phases = request.tracker.label(new)
            context.tokens.extend(new)
            if request.cached:  # the token sampled from the prefill belongs to no round
                row = Round(
                    request=context.request,
                    round=context.round,
                    position=position,
                    drafted=len(draft),
                    verified=n,
                    accepted=min(accepted, count),
                    rejected=accepted < n and count == accepted + 1,
                    bonus=count == accepted + 1,
                    tokens=new,
                    phases=phases,
                    ended=request.finish_reason,
                    confidence=draft.confidence,
                    **statistics.of_rows(slice(start, start + n + 1)),
                    **request.labels,
                )
                request.rounds.append(row)
            commits.append(Commit(request, new))
        return commits

    def _settle(
        self, running: list[Request], commits: list[Commit], starts: list[int], features: Tensor | None
    ) -> list[Tensor | None]:
        """Keep in the cache what was committed, all but the last token, which is the next anchor."""
        kept: list[Tensor | None] = []
        for request, commit, start in zip(running, commits, starts, strict=False):
            fed = len(request.context.tokens) - len(commit.tokens) - request.cached  # pending tokens
            new = fed + len(commit.tokens) - 1
            request.cached += new
            self.cache.rollback(request.slot, request.cached)
            kept.append(features[start : start + new] if features is not None else None)
        return kept

    def _release(self, finished: Sequence[Request]) -> None:
        for request in finished:
            self._running.remove(request)
            self.cache.rollback(request.slot, 0)
            self._free.append(request.slot)
            if self.drafter is not None:
                self.drafter.reset(request.context.request)
