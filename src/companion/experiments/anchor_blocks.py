"""A whole draft at every position of a text, judged by the target: what one real round samples, for all anchors.

The drafter walks along the target's own response through its real inference path: it observes the features of one more
token, and drafts a block of full depth there, which nothing trims. A second request walks beside it whose random draws
are set to the tokens that the text goes on with, so that it drafts the text itself and shows q there (teacher forcing,
by the `Draws` seam). The target's distributions after every drafted prefix come from one block-diagonal forward
(`companion.engine.blocks`).

With p, q the verifying and the drafting distribution of slot k after the drafted x_1 .. x_{k-1}:

    overlap      sum_v min(p(v), q(v))                analytic acceptance of slot k, whatever became of the slots before
    accepted     U < chance = min(1, p(x_k) / q(x_k)) the sampled one, with its own keyed U
    along        min(1, q(y_k) / p(y_k))              with the text's y in place of x: the chance that a real loop which
                                                      committed y had drafted y_k and had it accepted

The last line holds since a round commits y_1 .. y_{m+1} after m accepted drafts with probability
prod_{k<=m} min(q, p)(y_k) * (p - q)^+(y_{m+1}), of which prod p(y_k) is the text's own: the rest is
prod_{k<=m} along_k * (1 - along_{m+1}).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion.acceptance import overlap
from companion.engine.blocks import block_logits
from companion.engine.cache import Cache
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.generate import GenerationResult
from companion.engine.sampling import distribution
from companion.engine.target import Qwen3Target, single
from companion.kernels.probe import moments
from companion.protocols import Context, Draft, Drafter, Draws, Sampling

F64 = NDArray[np.float64]
SATURATED = 30.0  # largest confidence logit that is kept; an fp32 sigmoid is 1 from 17 on


@dataclass(frozen=True, slots=True)
class Blocks:
    """The drafts of K tokens at A anchors of one response, with what target and drafter say of each slot.

    ``shifted`` is the sum of `overlap` over the first K - 1 slots with the q of the slot behind, which is wrong on
    purpose: a check that does not see the difference sees nothing.
    """

    drafted: NDArray[np.int64]  # [A, K] token ids
    accepted: NDArray[np.bool_]  # [A, K] each slot judged by itself
    q: F64  # [A, K] of the drafted token
    p: F64  # [A, K]
    chance: F64  # [A, K] min(1, p / q) of it
    overlap: F64  # [A, K]
    along: F64  # [A, K]; 0 behind the text's end
    entropy: F64  # [A, K] of the target's row, nats, temperature 1, unfiltered
    confidence: F64 | None  # [A, K] logits
    shifted: float

    @classmethod
    def concat(cls, parts: Sequence[Blocks]) -> Blocks:
        """One after the other."""
        joined: dict[str, Any] = {"shifted": sum(part.shifted for part in parts)}
        for name in cls.__dataclass_fields__.keys() - joined.keys():
            columns = [getattr(part, name) for part in parts]
            joined[name] = None if columns[0] is None else np.concatenate(columns)
        return cls(**joined)


class _Forced:
    """`Draws` that choose what the text goes on with; behind its end the likeliest token, which nobody looks at."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text = text

    def token(self, probs: Tensor, purpose: str, position: int) -> int:  # [V]
        return self.text[position] if position < len(self.text) else int(probs.argmax())

    def accept(self, probability: float, position: int) -> bool:
        raise AssertionError("a drafter has no coins to toss")


class _Walk:
    """One response on its way: its text in a slot of the cache, what the drafter has seen, and its drafts so far."""

    def __init__(
        self,
        target: Qwen3Target,
        cache: Cache,
        slot: int,
        result: GenerationResult,
        drafter: Drafter,
        sampling: Sampling,
        every: int,
        seed: int,
    ) -> None:
        self.target, self.cache, self.slot, self.sampling = target, cache, slot, sampling
        self.text, start = [*result.prompt_tokens, *result.tokens], len(result.prompt_tokens)
        self.depth, self.known = drafter.max_depth, 0
        room = min(target.max_context, drafter.max_context or target.max_context) - self.depth
        self.anchors = list(range(start, min(len(self.text) - 1, room), every))
        read = single(self.text[:-1], slot=slot, cached=0, device=target.device)
        read.logit_rows = torch.arange(start - 1, len(self.text) - 1, device=target.device)
        output = target.forward(read, cache, tuple(drafter.taps))
        chosen = torch.tensor(result.tokens, device=target.device)[:, None]
        served = distribution(output.logits, sampling).gather(1, chosen)[:, 0]  # [L] p of each of the text's tokens
        self.features = output.features
        self.served = torch.cat([served.new_ones(start), served])  # by position
        self.draws = KeyedDraws(seed, request_key(result.prompt_tokens, 0) + b"anchors")
        forced = not (sampling.greedy or drafter.deterministic)  # else no draw decides what is drafted
        kinds: list[Draws] = [self.draws, _Forced(self.text)] if forced else [self.draws]
        self.contexts = [Context(2 * slot + i, [], sampling, draws) for i, draws in enumerate(kinds)]
        self.drafts: list[list[Draft]] = []  # of each anchor not judged yet: the free one, the forced one
        self.judged: list[Blocks] = []

    def advance(self, anchor: int) -> list[Tensor | None]:
        """Go on to ``anchor``; returns the features that each context is owed."""
        for context in self.contexts:
            context.tokens.extend(self.text[len(context.tokens) : anchor + 1])
            context.round += 1
        new = None if self.features is None else self.features[self.known : anchor]
        self.known = anchor
        return [new] * len(self.contexts)

    def judge(self) -> None:
        """Verify the drafts at hand in one forward, and keep what was found."""
        if not self.drafts:
            return
        done = sum(len(blocks.drafted) for blocks in self.judged)
        anchors = self.anchors[done : done + len(self.drafts)]
        free = [drafts[0] for drafts in self.drafts]
        device = self.target.device
        tokens = torch.tensor([draft.tokens for draft in free], device=device)  # [A, K]
        first = torch.tensor([[self.text[a]] for a in anchors], device=device)
        logits = block_logits(self.target, self.cache, self.slot, anchors, torch.cat([first, tokens], 1))[:, :-1]
        p = distribution(logits.flatten(0, 1), self.sampling).unflatten(0, tokens.shape)
        q = torch.stack([_q(draft, p) for draft in free])  # [A, K, V]
        p_drafted, q_drafted = (rows.gather(-1, tokens[..., None])[..., 0] for rows in (p, q))
        uniforms = [[self.draws.uniform(f"anchor/{a}", a + 1 + k) for k in range(self.depth)] for a in anchors]
        confidence = [draft.confidence for draft in free if draft.confidence is not None]
        chance = _numpy((p_drafted / q_drafted).clamp_max(1))
        blocks = Blocks(
            drafted=tokens.cpu().numpy(),
            accepted=np.array(uniforms) < chance,
            q=_numpy(q_drafted),
            p=_numpy(p_drafted),
            chance=chance,
            overlap=_numpy(overlap(p, q, check=False)).clip(0, 1),
            along=self._along(anchors, [drafts[-1] for drafts in self.drafts], p),
            entropy=_numpy(moments(logits.flatten(0, 1)).entropy).reshape(tokens.shape),
            confidence=_logit(np.array(confidence)) if confidence else None,
            shifted=float(overlap(p[:, :-1], q[:, 1:], check=False).sum()),
        )
        self.judged.append(blocks)
        self.drafts.clear()

    def _along(self, anchors: Sequence[int], drafts: Sequence[Draft], like: Tensor) -> F64:
        """min(1, q / p) of the text's own tokens, [A, K]."""
        found = np.zeros((len(anchors), self.depth))
        for row, (anchor, draft) in enumerate(zip(anchors, drafts, strict=True)):
            ahead = torch.tensor(self.text[anchor + 1 : anchor + 1 + self.depth], device=like.device)
            q = _q(draft, like)[: len(ahead)].gather(1, ahead[:, None])[:, 0]
            p = self.served[anchor + 1 : anchor + 1 + len(ahead)]
            found[row, : len(ahead)] = _numpy((q / p).clamp_max(1))
        return found

    def blocks(self) -> Blocks | None:
        """Everything found, None for a response too short for an anchor."""
        return Blocks.concat(self.judged) if self.judged else None


def draft_everywhere(
    target: Qwen3Target,
    drafter: Drafter,
    results: Sequence[GenerationResult],  # the target's own responses at this very sampling
    sampling: Sampling,
    *,
    every: int = 1,
    seed: int = 0,
    at_once: int = 64,
) -> list[Blocks | None]:
    """Draft and judge at every ``every``-th token of each response that has another one behind it.

    The responses walk side by side. ``at_once`` anchors of a response are judged in one forward; it bounds memory
    (A K V numbers for q) and changes nothing. Anchors whose block would run past a context are left out. ValueError for
    a drafter that gives shorter drafts than it can.
    """
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}: 1 takes every position")
    if drafter.max_depth < 2:
        raise ValueError(f"drafter {drafter.name} drafts a single token; acceptance along a block needs two at least")
    longest = max((len(r.prompt_tokens) + len(r.tokens) for r in results), default=1)
    cache = target.new_cache(max(1, len(results)), longest)
    walks = [_Walk(target, cache, i, r, drafter, sampling, every, seed) for i, r in enumerate(results)]
    try:
        for step in range(max((len(walk.anchors) for walk in walks), default=0)):
            alive = [walk for walk in walks if step < len(walk.anchors)]
            features = [rows for walk in alive for rows in walk.advance(walk.anchors[step])]
            contexts = [context for walk in alive for context in walk.contexts]
            drafter.observe(contexts, features)
            drafts = iter(drafter.propose(contexts, [drafter.max_depth] * len(contexts)))
            for walk in alive:
                walk.drafts.append([_whole(drafter, next(drafts)) for _ in walk.contexts])
                if len(walk.drafts) == at_once:
                    walk.judge()
    finally:
        for walk in walks:
            for context in walk.contexts:
                drafter.reset(context.request)
    for walk in walks:
        walk.judge()
    return [walk.blocks() for walk in walks]


def _whole(drafter: Drafter, draft: Draft) -> Draft:
    if len(draft) < drafter.max_depth:
        raise ValueError(
            f"drafter {drafter.name} proposed {len(draft)} of {drafter.max_depth} tokens: acceptance by position is "
            "surveyed of drafters that always give whole blocks"
        )
    return draft


def _q(draft: Draft, like: Tensor) -> Tensor:  # -> [K, V] in the type of ``like``
    """What the draft was drawn from; one-hot rows for a deterministic one."""
    if draft.probs is not None:
        return draft.probs.to(like)
    rows = like.new_zeros(len(draft), like.shape[-1])
    return rows.scatter_(1, torch.tensor(draft.tokens, device=like.device)[:, None], 1.0)


def _numpy(x: Tensor) -> F64:
    return np.asarray(x.to("cpu", torch.float64).numpy())


def _logit(c: F64) -> F64:
    with np.errstate(divide="ignore"):
        return np.clip(np.log(c) - np.log1p(-c), -SATURATED, SATURATED)
