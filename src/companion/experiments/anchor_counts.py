"""Acceptance by position, counted at the anchors of a text in four ways.

With c_k the conditional acceptance at slot k, S_k = c_1 ... c_k and tau = 1 + sum_k S_k, at one anchor:

    sampled      the slots' own accept/reject bits, as in one real round
    analytic     the same with every bit at hand integrated out: the chance that a slot is reached is the product of the
                 chances of the drafted tokens before it, the chance that it is accepted then its overlap
    along        the real loop as it would walk along this very text: anchors weighted by the chance that the loop
                 visits them, acceptance by `Blocks.along`; exact at temperature 0
    real         the rounds that a real loop recorded

Sampled and analytic agree at the same anchors, real and along in law. Uniform anchors differ from visited ones: the
loop lands behind a rejection, and jumps over what it drafts well. A block is cut behind a stop token that it accepts,
in all four.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from companion.experiments.anchor_blocks import F64
from companion.experiments.anchor_recording import Anchored
from companion.metrics import conditional_by_position, survival_by_position
from companion.rounds import Round


@dataclass(frozen=True, slots=True)
class Counts:
    """Numerators and denominators of one response, as `companion.metrics` defines the ratios."""

    tau: F64  # [2] committed tokens, rounds
    conditional: F64  # [K, 2] kept, judged
    survival: F64  # [K, 2] kept, verified and not cut before


def sampled(response: Anchored, stops: Sequence[int]) -> Counts:
    """Every anchor a round; slots judged as they were drawn."""
    accepted = response.blocks.accepted.astype(float)
    return _of_blocks(accepted, accepted, np.isin(response.blocks.drafted, stops))


def analytic(response: Anchored, stops: Sequence[int]) -> Counts:
    """Every anchor a round, in expectation over accept and reject, and over the last token."""
    blocks = response.blocks
    return _of_blocks(blocks.chance, blocks.overlap, np.isin(blocks.drafted, stops))


def _of_blocks(
    passes: F64,  # [A, K] chance that the drafted token of a judged slot is accepted
    kept: F64,  # [A, K] chance that a judged slot is, before its token is known
    stop: NDArray[np.bool_],  # [A, K] the drafted token ends the response
) -> Counts:
    going = passes * ~stop  # the slot behind is judged
    reached = np.concatenate([np.ones((len(passes), 1)), going.cumprod(1)[:, :-1]], 1)
    ends = reached * passes * stop
    whole = 1 - np.concatenate([np.zeros((len(passes), 1)), ends.cumsum(1)[:, :-1]], 1)
    accepted = (reached * kept).sum(0)
    return Counts(
        tau=np.array([accepted.sum() + len(passes) - ends.sum(), len(passes)]),  # a cut block has no target-made token
        conditional=np.stack([accepted, reached.sum(0)], -1),
        survival=np.stack([accepted, whole.sum(0)], -1),
    )


def visits(response: Anchored, depth: int, limit: int) -> tuple[F64, F64, F64]:
    """The real loop along this text: the chance that it visits each anchor [A], that it visits it and accepts at least
    k [A, K + 1], and how many slots it verifies there [A].

    ``limit`` is the loop's max_new_tokens. ValueError unless every token but the last is an anchor.
    """
    along, length = response.blocks.along, len(response.tokens)
    if len(along) != length - 1:
        raise ValueError(
            f"response {response.prompt_id} has {length} tokens and {len(along)} anchors: a loop can be followed only "
            "where every token but the last is one; record with every=1"
        )
    visited, alive, verified = np.zeros(length), np.zeros((length - 1, depth + 1)), np.zeros(length - 1)
    visited[0] = 1.0
    for i in range(length - 1):
        verified[i] = slots = min(depth, limit - i - 2)  # a round commits one token more than it drafts
        drawn = min(slots, length - 1 - i)
        alive[i, : drawn + 1] = visited[i] * np.concatenate([[1.0], along[i, :drawn].cumprod()])
        visited[i + 1 : i + 1 + drawn] += alive[i, :drawn] - alive[i, 1 : drawn + 1]
        if i + 1 + drawn < length:
            visited[i + 1 + drawn] += alive[i, drawn]
    return visited[:-1], alive, verified


def along(response: Anchored, limit: int) -> Counts:
    """What the real loop counts along this text, in expectation over its draws."""
    depth, length = response.blocks.along.shape[1], len(response.tokens)
    visited, alive, verified = visits(response, depth, limit)
    slot, left = np.arange(1, depth + 1), length - 1 - np.arange(length - 1)[:, None]
    judged = alive[:, :-1] * (slot <= np.minimum(verified[:, None], left))
    ends = np.take_along_axis(alive, np.minimum(left, depth), 1)  # accepted the text's last token
    whole = (visited[:, None] - ends * (slot > left)) * (slot <= verified[:, None])
    kept = alive[:, 1:].sum(0)
    return Counts(
        tau=np.array([length - 1, visited.sum()]),
        conditional=np.stack([kept, judged.sum(0)], -1),
        survival=np.stack([kept, whole.sum(0)], -1),
    )


def greedy_chain(response: Anchored, limit: int) -> list[int]:
    """Accepted drafts of each round of the greedy loop along the target's greedy text."""
    visited, alive, _ = visits(response, response.blocks.along.shape[1], limit)
    return [int(row[1:].sum()) for row, there in zip(alive, visited, strict=True) if there]


def real(rounds: Iterable[Round], depth: int) -> Counts:
    """What a real loop recorded of one response."""
    rows = list(rounds)
    conditional, survival = np.zeros((depth, 2)), np.zeros((depth, 2))
    for counts, found in ((conditional, conditional_by_position(rows)), (survival, survival_by_position(rows))):
        counts[: len(found)] = np.reshape(found, (-1, 2))
    return Counts(np.array([float(sum(r.committed for r in rows)), float(len(rows))]), conditional, survival)
