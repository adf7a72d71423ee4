"""Accept, reject, resample: the rule that makes the output the target's own.

Left to right, x_k is kept with probability min(1, p_t(x_k) / p_d(x_k)); the first rejection ends the block and a token
is drawn from the residual norm(max(p_t - p_d, 0)); if all are kept, a bonus token is drawn from p_t (paper, section
2.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from companion.acceptance import residual
from companion.protocols import Draws


def verify_block(
    tokens: Sequence[int],  # [k] drafted and admitted
    q: Tensor | None,  # [>= k, V] what they were drawn from; None: deterministic, one-hot
    p: Tensor,  # [k + 1, V] the target's distribution at each of them, and after the last
    draws: Draws,
    position: int,  # absolute position of the first drafted token
) -> tuple[int, int]:
    """Number of accepted drafts and the target-made token that follows them.

    ``q`` may live on another device, but not in half precision or over another vocabulary (ValueError).
    """
    if q is not None and tokens:
        check_proposal(q, len(tokens), p.shape[-1])
        q = q.to(p.device)
    for k, token in enumerate(tokens):
        target_mass = float(p[k, token])
        draft_mass = 1.0 if q is None else float(q[k, token])
        if not draft_mass > 0.0:
            raise ValueError(
                f"drafted token {token} has probability {draft_mass} under the drafter's own distribution: "
                "a draft must come with the distribution it was drawn from"
            )
        if not draws.accept(min(1.0, target_mass / draft_mass), position + k):
            proposal = one_hot(token, p[k]) if q is None else q[k]
            return k, draws.token(residual(p[k], proposal), "target", position + k)
    return len(tokens), draws.token(p[len(tokens)], "target", position + len(tokens))


def check_proposal(q: Tensor, drafted: int, width: int) -> None:  # [>= drafted, width]
    """ValueError unless draft probabilities are fp32 or fp64 and have a row over the vocabulary for each token."""
    if q.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"draft probabilities came as {q.dtype}, whose rows do not sum to 1 closely enough: compute them in "
            "fp32, draw the tokens from that tensor and hand it on"
        )
    if q.shape[-1] != width or len(q) < drafted:
        raise ValueError(
            f"draft probabilities have shape {tuple(q.shape)}, expected a row over {width} tokens for each "
            f"of {drafted} drafted ones"
        )


def verify_greedy(tokens: Sequence[int], best: Sequence[int]) -> tuple[int, int]:  # [k], [k + 1] target argmax
    """The same rule at temperature 0, where p_t is one-hot: keep drafts while they are the target's argmax."""
    for k, token in enumerate(tokens):
        if token != best[k]:
            return k, best[k]
    return len(tokens), best[len(tokens)]


def one_hot(token: int, like: Tensor) -> Tensor:  # [V]
    proposal = torch.zeros_like(like)
    proposal[token] = 1.0
    return proposal
