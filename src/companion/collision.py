r"""What a drafter loses when it cannot see its own earlier tokens, by exact enumeration of a small block.

The target's law of a block is one array ``joint`` [V_1, ..., V_n]. A drafter is a list of tables q_1, ..., q_n: q_k has
the law of token k on its last axis and, before it, one axis for each of the latest tokens it knows. A parallel drafter
has tables [V_k], one that knows the token before (a bigram) has [V_{k-1}, V_k], an autoregressive one
[V_1, ..., V_k]; numpy's broadcasting treats them alike. With p_k the target's conditional law,

    W_k(x_1..x_k) = W_{k-1} q_k(x_k | ...) min(1, p_k / q_k)       that this prefix is drafted and wholly accepted
    S_k = sum of W_k,    c_k = S_k / S_{k-1},    tau = 1 + S_1 + ... + S_n

The collision itself is in the paper (section 2.2), the review and older work on parallel translation (Gu et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from companion.acceptance import accept_probability, overlap, residual, validate_distribution

F64 = NDArray[np.float64]
Along = Literal["target", "draft", "accepted"]


def with_memory(joint: F64, memory: int) -> list[F64]:  # [V_1, ..., V_n] -> n tables
    """The laws P(x_k | the ``memory`` tokens before it), k = 1..n: of all drafters that remember so much, the one
    closest to the target in KL divergence (the cross-entropy's optimum), at every position.

    0: the marginals, a parallel drafter. 1: a bigram with its own table at each position. n - 1: the target itself.
    ValueError for a negative ``memory``, for an array that is no distribution, and where the target never writes a
    prefix, since it has no next token there.
    """
    validate_distribution(joint.reshape(-1), "joint")
    if memory < 0:
        raise ValueError(f"memory counts the earlier tokens a drafter knows, so it is at least 0; got {memory}")
    tables = []
    for k in range(joint.ndim):
        known = range(max(0, k - memory), k + 1)
        law = joint.sum(tuple(axis for axis in range(joint.ndim) if axis not in known))
        mass = law.sum(-1, keepdims=True)
        if not bool((mass > 0).all()):
            raise ValueError(
                f"the target never writes one of the prefixes of token {k + 1}, so it has no next token there; leave "
                "that prefix out, or give it some mass"
            )
        tables.append(law / mass)
    return tables


def survival(joint: F64, drafter: Sequence[F64]) -> F64:  # -> [n]
    """S_k: how often the first k drafted tokens are all accepted, by the rule of `companion.acceptance`."""
    return np.array([weight.sum() for weight in _prefixes(joint, drafter, "accepted")[1:]])


def conditional_acceptance(joint: F64, drafter: Sequence[F64], along: Along = "accepted") -> F64:  # -> [n]
    """c_k, the mean of 1 - TV at token k over prefixes that are weighted

    * ``accepted``: as decoding meets them, drafted and accepted so far, which gives the field's S_k / S_{k-1};
    * ``target``: as the target writes them: teacher forcing, which is how drafters are trained;
    * ``draft``: as the drafter writes them, accepted or not.

    NaN where no prefix has weight.
    """
    if along not in get_args(Along):
        raise ValueError(f"prefixes can be weighted by {', '.join(get_args(Along))}, got {along!r}")
    target, means = with_memory(joint, joint.ndim - 1), []
    for weight, p, q in zip(_prefixes(joint, drafter, along), target, drafter, strict=False):
        total = weight.sum()
        means.append((weight * overlap(p, q)).sum() / total if total > 0 else np.nan)
    return np.array(means)


def drafted_law(drafter: Sequence[F64]) -> F64:  # -> [V_1, ..., V_n]
    """The law of the block that the drafter writes."""
    law: F64 = np.ones(())
    for q in drafter:
        law = law[..., None] * q
    return law


def emitted_law(joint: F64, drafter: Sequence[F64]) -> F64:  # -> [V_1, ..., V_n]
    """The law of the n tokens that come out: accepted prefix, then the residual's token, then the target's own.

    Equal to ``joint``, whatever the drafter does; enumerated, not assumed.
    """
    target, accepted = with_memory(joint, joint.ndim - 1), _prefixes(joint, drafter, "accepted")
    law = accepted[-1]
    for k, (p, q) in enumerate(zip(target, drafter, strict=True)):
        broken = (accepted[k] * (1 - overlap(p, q)))[..., None] * residual(p, np.broadcast_to(q, p.shape))
        for tail in target[k + 1 :]:
            broken = broken[..., None] * tail
        law = law + broken
    return law


def best_parallel_second(first: F64, second: F64) -> F64:  # [V_1], [V_1, V_2] -> [V_2]
    """The q that maximises sum_x first(x) sum_v min(q(v), second(v | x)): no parallel drafter's S_2 exceeds its value.

    S_2 = sum_x min(q_1, first)(x) overlap(q, second(. | x)) grows with min(q_1, first), so that q_1 = first is best for
    every q. What is left is a sum over v of concave, piecewise linear functions of q(v): raising q(v) from level m
    gains the first-mass of {x: second(v | x) > m}. Filling the steepest pieces first maximises it.
    """
    validate_distribution(first, "first")
    validate_distribution(second, "second")
    order = second.argsort(0)
    levels = np.take_along_axis(second, order, 0)
    pieces = np.diff(levels, axis=0, prepend=0.0)  # [V_1, V_2]
    gains = np.cumsum(first[order][::-1], 0)[::-1]
    steepest = np.argsort(-gains, axis=None, kind="stable")
    lengths = pieces.reshape(-1)[steepest]
    taken = np.clip(1.0 - (np.cumsum(lengths) - lengths), 0.0, lengths)
    return np.asarray(np.bincount(steepest % second.shape[1], taken, second.shape[1]), dtype=np.float64)


def mutual_information(first: F64, second: F64) -> float:  # [V_1], [V_1, V_2]
    """I(X_1; X_2) in nats: how much of the second token the first one decides, and what the product of marginals loses
    against the joint law in KL divergence."""
    marginal = first @ second
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(second > 0, second * np.log(second / marginal), 0.0)
    return float(first @ terms.sum(-1))


def log_linear(base: F64, bias: F64) -> F64:  # [V_2], [V_1, V_2] -> [V_1, V_2]
    """softmax(U + B[x]): parallel logits and a bias that the token before looks up, as in paper Eq. 4 and 5."""
    logits = base + bias
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def _prefixes(joint: F64, drafter: Sequence[F64], along: Along) -> list[F64]:
    """The weight of every prefix of length 0..n, [V_1, ..., V_k] each."""
    target = with_memory(joint, joint.ndim - 1)
    if len(drafter) != len(target):
        raise ValueError(f"the target's block has {len(target)} tokens, the drafter has {len(drafter)} tables")
    weights: list[F64] = [np.ones(())]
    for k, (p, q) in enumerate(zip(target, drafter, strict=True), 1):
        if q.ndim > k or q.shape != p.shape[k - q.ndim :]:
            raise ValueError(f"table {k} has shape {q.shape}, which does not fit the target's {p.shape} from the right")
        validate_distribution(q, f"table {k}")
        step: Any = {"target": p, "draft": q, "accepted": q * accept_probability(p, q)}[along]
        weights.append(weights[-1][..., None] * step)
    return weights
