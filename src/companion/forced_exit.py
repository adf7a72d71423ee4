"""Decoding that may end a think span early: forced exit, which changes the output on purpose.

An entry point of its own, so that it cannot slip into a lossless run: it decodes plainly, knows no drafter and no
policy, its rules are neither, a rule that can fire runs only with ``allow_lossy=True``, and what it returns has no
Rounds. With the rule `Watch` it probes and changes nothing: tokens are those of `companion.generate`.

The answer entropy is computed for real. At a probed row `</think>` (and a cue behind it) is read in a forward of its
own, the entropy of the next token is taken, and the cache is rolled back by its length. A separate forward, and not a
row more in the same one, leaves the shape of the decoding forward and with it every bit of its logits alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from companion.engine.draws import KeyedDraws, request_key
from companion.engine.load import TextTarget
from companion.engine.request import FinishReason, StopRule
from companion.engine.sampling import distribution, greedy
from companion.engine.target import ragged
from companion.kernels.probe import moments
from companion.phase.exit_rules import Exit, ExitControl, ExitRule, Watch
from companion.phase.probe import Sample
from companion.phase.tracker import PhaseTracker
from companion.protocols import Phase, Sampling


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Of the row that each new token was drawn from, at temperature 1: lists as long as the response."""

    mass: list[float] = field(default_factory=list)  # on </think>
    entropy: list[float] = field(default_factory=list)  # nats
    max_p: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProbedResponse:
    """One response and what was seen of it; no `GenerationResult`, so that no lossless comparison can take it."""

    prompt_tokens: list[int]
    emitted: list[int]
    text: str
    phases: list[Phase]
    finish_reason: FinishReason
    exit: Exit | None  # what was forced, if anything
    think_tokens: int  # of all spans, their ends included
    rows: TokenRows
    samples: list[Sample]


@dataclass(slots=True)
class _Running:
    tokens: list[int]
    prompt_length: int
    draws: KeyedDraws
    control: ExitControl
    slot: int = -1
    cached: int = 0
    finish_reason: FinishReason | None = None
    rows: TokenRows = field(default_factory=TokenRows)
    samples: list[Sample] = field(default_factory=list)

    @property
    def emitted(self) -> list[int]:
        return self.tokens[self.prompt_length :]


@dataclass(frozen=True, slots=True)
class Start:
    """Where decoding begins: a prompt, and what of the response is there already.

    Random numbers are keyed by the prompt and the position, so that a response cut anywhere and taken up again draws
    what it would have drawn.
    """

    prompt: Sequence[int]
    emitted: Sequence[int] = ()


def decode_with_exit(
    target: TextTarget,
    prompts: Sequence[str | Start],
    rule: ExitRule,
    *,
    allow_lossy: bool = False,
    sampling: Sampling | None = None,
    max_new_tokens: int = 256,
    seed: int = 0,
    thinking: bool = True,
    max_batch: int = 8,
) -> list[ProbedResponse]:
    """Decode plainly, probing each think span, and force `</think>` where ``rule`` says so; results in order.

    ``prompts`` are user messages, or `Start`s. ValueError for a rule that can fire without ``allow_lossy``, a target
    without a `</think>` token, and whatever does not fit the target's context (cues and probes count).
    """
    sampling = sampling or Sampling()
    if not prompts:
        raise ValueError("there is no prompt; give at least one message")
    if not allow_lossy and not isinstance(rule, Watch):
        raise ValueError(
            f"the exit rule {rule.name!r} changes the output's distribution; it runs only with allow_lossy=True"
        )
    if not hasattr(max_batch, "__index__") or max_batch < 1:
        raise ValueError(f"max_batch must be an integer of at least 1, got {max_batch!r}")
    starts = [p if isinstance(p, Start) else Start(target.render(p, thinking=thinking)) for p in prompts]
    stop = StopRule(max_new_tokens, target.eos_token_ids)
    copies: Counter[tuple[int, ...]] = Counter()
    waiting: deque[_Running] = deque()
    for start in starts:
        prompt, emitted = list(start.prompt), list(start.emitted)
        if not prompt or len(emitted) >= max_new_tokens:
            raise ValueError(
                f"a start has {len(prompt)} tokens of prompt and {len(emitted)} of response; it needs a prompt, and "
                f"fewer than max_new_tokens = {max_new_tokens} of response"
            )
        key = request_key(prompt, 0 if emitted else copies[tuple(prompt)])
        copies[tuple(prompt)] += not emitted
        control = ExitControl(rule, target.tags, prompt)
        for token in emitted:
            control.push(token)
        waiting.append(_Running([*prompt, *emitted], len(prompt), KeyedDraws(seed, key), control))
    loop = _Loop(target, rule, sampling, stop, min(max_batch, len(waiting)), max(len(s.prompt) for s in starts))
    every = list(waiting)
    loop.run(waiting)
    return [_response(target, r) for r in every]


class _Loop:
    """One forward per step over the running responses, and one more per cue over those that are probed."""

    def __init__(
        self, target: TextTarget, rule: ExitRule, sampling: Sampling, stop: StopRule, batch: int, longest: int
    ) -> None:
        assert target.tags.close is not None  # ExitControl has refused a target without
        self.target, self.sampling, self.stop, self.close = target, sampling, stop, target.tags.close
        self.cues = {cue: [self.close, *(target.encode(cue) if cue else ())] for cue in rule.cues}
        capacity = longest + stop.max_new_tokens + max((len(tail) for tail in self.cues.values()), default=0)
        if capacity > target.max_context:
            raise ValueError(
                f"the longest prompt has {longest} tokens, max_new_tokens is {stop.max_new_tokens}, and with the probe "
                f"{capacity} are needed; the context of {target.name} holds {target.max_context}"
            )
        self.cache = target.new_cache(batch, capacity)
        self.free, self.running = list(range(batch))[::-1], list[_Running]()

    def run(self, waiting: deque[_Running]) -> None:
        while waiting or self.running:
            while self.free and waiting:
                request = waiting.popleft()
                request.slot = self.free.pop()
                self.running.append(request)
            self._step()
            for done in [r for r in self.running if r.finish_reason]:
                self.running.remove(done)
                self.cache.rollback(done.slot, 0)
                self.free.append(done.slot)

    def _step(self) -> None:
        running = self.running
        logits = self._read([(r, r.tokens[r.cached :]) for r in running])  # [R, V]
        for r in running:
            r.cached = len(r.tokens)
        entropy, max_p, mass = (column.tolist() for column in moments(logits, [self.close]))
        answers = self._answer_entropies([r for r in running if r.control.due])
        if self.sampling.greedy:
            best = greedy(logits).tolist()
        else:
            served = distribution(logits, self.sampling)
        for i, r in enumerate(running):
            sample = None
            if r.control.due:
                n = r.control.clock.think_tokens or 0
                sample = Sample(n, mass[i], entropy[i], max_p[i], answers.get(r.slot, {}))
                r.samples.append(sample)
            if r.control.decide(sample) is not None:
                token = self.close
            elif self.sampling.greedy:
                token = best[i]
            else:
                token = r.draws.token(served[i], "target", len(r.tokens))
            _, r.finish_reason = self.stop.cut(r.emitted, [token])
            r.tokens.append(token)
            r.control.push(token)
            for column, value in ((r.rows.mass, mass), (r.rows.entropy, entropy), (r.rows.max_p, max_p)):
                column.append(value[i])

    def _answer_entropies(self, probed: Iterable[_Running]) -> dict[int, dict[str, float]]:
        """Of each probed slot, by cue: read `</think>` and the cue, look, and take them back."""
        rows, found = list(probed), dict[int, dict[str, float]]()
        if not rows:
            return found
        for cue, tail in self.cues.items():
            entropy = moments(self._read([(r, tail) for r in rows])).entropy.tolist()
            for r, value in zip(rows, entropy, strict=True):
                found.setdefault(r.slot, {})[cue] = value
                self.cache.rollback(r.slot, r.cached)
        return found

    def _read(self, what: Sequence[tuple[_Running, Sequence[int]]]) -> Tensor:
        """Logits [R, V] behind some tokens more of each response, which enter the cache."""
        batch = ragged([(r.slot, r.cached, tokens) for r, tokens in what], self.target.device)
        batch.logit_rows = torch.tensor(batch.starts[1:], device=self.target.device) - 1
        return self.target.forward(batch, self.cache).logits


def _response(target: TextTarget, r: _Running) -> ProbedResponse:
    assert r.finish_reason is not None
    return ProbedResponse(
        prompt_tokens=r.tokens[: r.prompt_length],
        emitted=r.emitted,
        text=target.decode(r.emitted),
        phases=PhaseTracker(target.tags, r.tokens[: r.prompt_length]).label(r.emitted),
        finish_reason=r.finish_reason,
        exit=r.control.exit,
        think_tokens=r.control.clock.used,
        rows=r.rows,
        samples=r.samples,
    )
