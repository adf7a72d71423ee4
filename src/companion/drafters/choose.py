"""Draft logits to draft tokens, each with the very distribution it was drawn from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from companion.engine.sampling import distribution, greedy
from companion.protocols import Context


def choose(
    logits: Tensor,  # [R, V]; fp32, or fp64 in exact tests
    contexts: Sequence[Context],
    step: int,  # tokens already drafted in this round
    *,
    greedily: bool = False,
) -> list[tuple[int, Tensor | None]]:
    """One token for each request, with q [V], or None where the proposal is one-hot.

    q is the row after the request's own temperature and filters; greedy requests, and all of them with ``greedily``,
    get the argmax. Draft draws are keyed by round and position. ValueError on logits that are no distribution.
    """
    best = greedy(logits).tolist() if greedily or any(c.sampling.greedy for c in contexts) else []
    chosen: list[tuple[int, Tensor | None]] = []
    for row, context in enumerate(contexts):
        if greedily or context.sampling.greedy:
            chosen.append((best[row], None))
            continue
        q = distribution(logits[row : row + 1], context.sampling)[0]
        position = len(context.tokens) + step
        chosen.append((context.draws.token(q, f"draft/{context.round}", position), q))
    return chosen
