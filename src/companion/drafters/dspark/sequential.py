"""The sequential loop: parallel logits and a head in, drafted blocks out.

For any backbone that gives h_k and U_k. Without a Markov head the slots do not see each other and are drawn at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from companion.drafters.dspark.heads import ConfidenceHead, MarkovHead
from companion.drafters.dspark.kernel_block import holds, kernel_blocks
from companion.drafters.dspark.steps import steps_of
from companion.engine.sampling import check_finite, distribution
from companion.protocols import Context, Draft, Sampling

GREEDY = Sampling(temperature=0.0)


def draft_blocks(
    hidden: Tensor,  # [R, k, d]
    logits: Tensor,  # [R, k, V] fp32 or fp64
    contexts: Sequence[Context],  # [R]
    depths: Sequence[int],  # [R] from 1 to k
    *,
    markov: MarkovHead | None = None,
    confidence: ConfidenceHead | None = None,
    deterministic: bool = False,
) -> list[Draft]:
    """A draft of ``depths[i]`` tokens for each request, with the very q that each token was drawn from (Eq. 4).

    Greedy requests, and all if ``deterministic``, get the argmax and no q. ValueError on logits that are no
    distribution.
    """
    samplings = [GREEDY if deterministic else context.sampling for context in contexts]
    if markov is not None and holds(logits, samplings, contexts, markov):
        return kernel_blocks(hidden, logits, contexts, depths, samplings, markov, confidence)
    picker = _Picker(contexts, depths, samplings)
    steps = None
    if markov is None:
        picker.block(logits)
    else:
        steps = steps_of(markov, hidden)
        previous = torch.tensor([context.tokens[-1] for context in contexts], device=logits.device)
        for parallel in logits.unbind(1):
            previous = picker.step(steps.correct(parallel, previous))
    scores: list[list[float]] | None = None
    if confidence is not None:
        seen = None if steps is None else torch.stack(steps.embedded, 1)
        wide = torch.promote_types(hidden.dtype, torch.float32)  # in bf16 the sigmoid is 1.0 from a logit of 6.25 on
        scores = torch.sigmoid(confidence(hidden, seen).to(wide)).tolist()
    return picker.drafts(scores)


class _Picker:
    """Tokens of a round, slot after slot, each request by its own sampling and its own random numbers."""

    def __init__(self, contexts: Sequence[Context], depths: Sequence[int], samplings: Sequence[Sampling]) -> None:
        self.contexts, self.depths, self.samplings = contexts, depths, samplings
        self.greedy = all(sampling.greedy for sampling in samplings)
        self.tokens: list[Tensor] = []  # k times [R]
        self.rows: list[Tensor] = []  # k times q [R, V], or the largest logits [R] when all are greedy

    def step(self, logits: Tensor) -> Tensor:  # [R, V] -> [R]
        """The next token of every request; those beyond their depth get one that nobody looks at."""
        if self.greedy:
            peak, best = logits.max(-1)
            self.rows.append(peak)
            self.tokens.append(best)
        else:
            self._draw(self._q(logits))
        return self.tokens[-1]

    def block(self, logits: Tensor) -> None:  # [R, k, V]
        """All slots at once: they do not depend on each other's tokens."""
        if self.greedy:
            peak, best = logits.max(-1)
            self.rows, self.tokens = list(peak.unbind(1)), list(best.unbind(1))
        else:
            for q in self._q(logits).unbind(1):
                self._draw(q)

    def _q(self, logits: Tensor) -> Tensor:  # [R, ..., V]
        if len(set(self.samplings)) == 1:
            return distribution(logits.flatten(0, -2), self.samplings[0]).view_as(logits)
        rows = zip(logits.view(len(self.samplings), -1, logits.shape[-1]), self.samplings, strict=True)
        return torch.stack([distribution(row, sampling) for row, sampling in rows]).view_as(logits)

    def _draw(self, q: Tensor) -> None:  # [R, V]
        k = len(self.tokens)
        tokens = []
        for row, context, depth, sampling in zip(q, self.contexts, self.depths, self.samplings, strict=True):
            if k < depth and not sampling.greedy:
                tokens.append(context.draws.token(row, f"draft/{context.round}", len(context.tokens) + k))
            else:
                tokens.append(int(row.argmax()))
        self.rows.append(q)
        self.tokens.append(torch.tensor(tokens, device=q.device))

    def drafts(self, confidence: list[list[float]] | None) -> list[Draft]:  # [R][k]
        if self.greedy:
            check_finite(torch.cat(self.rows))
        tokens = torch.stack(self.tokens, 1).tolist()
        q = None if self.greedy else torch.stack(self.rows, 1)  # [R, k, V]
        return [
            Draft(
                tokens[i][:depth],
                None if q is None or self.samplings[i].greedy else q[i, :depth],
                None if confidence is None else confidence[i][:depth],
            )
            for i, depth in enumerate(self.depths)
        ]
