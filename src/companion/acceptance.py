r"""The accept/reject rule of speculative sampling, one step at a time.

A token x is drawn from the draft distribution p_d and kept with probability min(1, p_t(x) / p_d(x)); when it is
rejected, a token from the residual max(p_t - p_d, 0), renormalised, takes its place. Two facts carry everything else:

* the emitted token has law p_t exactly (`step_law`), whatever p_d is;
* the drafted token survives with probability sum_v min(p_d, p_t) = 1 - TV(p_d, p_t) (`overlap`; known
  since Leviathan et al. 2023, the confidence target of paper Eq. 8, derived in the review as Eq. 8a to 8c).

Distributions lie along the last axis, any leading axes are a batch, and NumPy arrays and torch tensors are treated
alike; the dtype is kept. The functions that a decoding loop calls for each token (`accept_probability`, `residual`)
check only what they must; the others validate their input unless ``check=False``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion.arrays import Array, is_floating, namespace

# A softmax over 151,936 entries in fp32 sums to 1 within about 1e-6; the looser bounds leave room for filters.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}


def validate_distribution(p: NDArray[Any] | Tensor, name: str = "p", tolerance: float | None = None) -> None:
    """Raise ValueError unless every row of ``p`` [..., V] is a probability distribution.

    Checked in this order: floating dtype, at least one token, no NaN or infinity, no negative mass, sum equal to 1
    within ``tolerance`` (default: 1e-9 for fp64, 1e-4 for fp32, 1e-2 for half precision).
    """
    xp = namespace(p)
    if not is_floating(p):
        raise ValueError(f"{name} must hold floating-point probabilities, got dtype {p.dtype}; convert it first")
    if p.ndim == 0 or p.shape[-1] == 0:
        raise ValueError(f"{name} must have a last axis over the vocabulary, got shape {tuple(p.shape)}")
    if not bool(xp.isfinite(p).all()):
        raise ValueError(f"{name} holds NaN or infinite entries; probabilities are finite (were the logits NaN?)")
    if bool((p < 0).any()):
        raise ValueError(f"{name} holds negative mass (smallest entry {float(p.min()):.3g}); expected entries >= 0")
    if tolerance is None:
        tolerance = _TOLERANCE.get(str(p.dtype).removeprefix("torch."), 1e-9)
    wide: Any = torch.float64 if isinstance(p, Tensor) and p.device.type != "mps" else np.float64
    off = abs(p.sum(-1, dtype=wide) - 1)
    if bool((off > tolerance).any()):
        raise ValueError(
            f"{name} does not sum to 1: off by {float(off.max()):.3g}, more than {tolerance:g}; normalise it first"
        )


def validate_pair(p_t: NDArray[Any] | Tensor, p_d: NDArray[Any] | Tensor) -> None:
    """Raise ValueError unless both are distributions over one vocabulary with leading axes that broadcast."""
    namespace(p_t, p_d)
    validate_distribution(p_t, "p_t")
    validate_distribution(p_d, "p_d")
    if p_t.shape[-1] != p_d.shape[-1]:
        raise ValueError(f"p_t has {p_t.shape[-1]} tokens, p_d has {p_d.shape[-1]}; both need the same vocabulary")
    try:
        np.broadcast_shapes(tuple(p_t.shape), tuple(p_d.shape))
    except ValueError:
        shapes = f"{tuple(p_t.shape)} and {tuple(p_d.shape)}"
        raise ValueError(f"the batch axes of p_t and p_d do not match: {shapes}; align the leading axes") from None


def total_variation(p_t: Array, p_d: Array, *, check: bool = True) -> Array:  # [..., V] twice -> [...]
    """TV(p_d, p_t) = 1/2 sum_v |p_d(v) - p_t(v)|, the largest gap in probability over all events."""
    if check:
        validate_pair(p_t, p_d)
    return abs(p_t - p_d).sum(-1) / 2


def overlap(p_t: Array, p_d: Array, *, check: bool = True) -> Array:  # [..., V] twice -> [...]
    """c* = sum_v min(p_d(v), p_t(v)) = 1 - TV(p_d, p_t): how often a token drawn from p_d is accepted (paper Eq. 8).

    The sum of minima is computed, not one minus a distance, so that an overlap near zero keeps its digits.
    """
    if check:
        validate_pair(p_t, p_d)
    return namespace(p_t, p_d).minimum(p_t, p_d).sum(-1)


def accept_probability(p_t: Array, p_d: Array) -> Array:  # [...] twice -> [...]
    """min(1, p_t(x) / p_d(x)), entry by entry: how likely a drafted token x is kept.

    Also defined where p_d(x) = 0, which no draft can reach: 1 where p_t(x) > 0, and 0 where the target forbids x.
    Unchecked (the hot path); NaN in either argument stays NaN.
    """
    xp = namespace(p_t, p_d)
    always = p_t >= p_d
    return xp.where(always, p_t > 0, p_t / xp.where(always, 1, p_d))


def residual(p_t: Array, p_d: Array) -> Array:  # [..., V] twice -> [..., V]
    """max(p_t - p_d, 0) / sum_v max(p_t - p_d, 0): where the token that replaces a rejected one comes from.

    Rows whose residual mass is zero (p_d covers p_t, so that nothing can be rejected but by rounding) or overflows
    fall back to p_t. NaN raises ValueError; nothing else is checked (the hot path).
    """
    xp = namespace(p_t, p_d)
    excess = xp.clip(p_t - p_d, 0, None)
    mass = excess.sum(-1)[..., None]
    if bool(xp.isnan(mass).any()):
        raise ValueError(
            "p_t or p_d holds NaN, so no residual exists; look for NaN in the logits of target and drafter"
        )
    usable = xp.isfinite(mass) & (mass > 0)
    return xp.where(usable, excess / xp.where(usable, mass, 1), p_t)


def step_law(
    p_t: Array,  # [..., V]
    p_d: Array,  # [..., V] the q of the ratio
    *,
    drawn_from: Array | None = None,  # [..., V] what the token was really drawn from; None: p_d
    resample: Array | None = None,  # [..., V] what replaces a rejected token; None: the residual
    check: bool = True,
) -> Array:  # [..., V]
    r"""Exact law of the token that one draft/accept/resample step emits.

        law(y) = drawn_from(y) a(y) + (1 - sum_x drawn_from(x) a(x)) resample(y),   a = min(1, p_t / p_d)

    With the two defaults it equals p_t, and the reason is one line: p_d a = min(p_d, p_t), the rejected mass
    1 - sum min(p_d, p_t) is exactly sum max(p_t - p_d, 0), and min(p_d, p_t) + max(p_t - p_d, 0) = p_t. The two
    optional arguments exist to evaluate wrong rules: ``resample=p_t`` forgets the residual, and ``drawn_from=`` a
    one-hot argmax beside a soft ``p_d`` is an argmax proposal judged by a sampler's ratio.
    """
    if check:
        validate_pair(p_t, p_d)
        for name, extra in (("drawn_from", drawn_from), ("resample", resample)):
            if extra is not None:
                validate_distribution(extra, name)
    kept = (p_d if drawn_from is None else drawn_from) * accept_probability(p_t, p_d)
    rejected = namespace(p_t, p_d).clip(1 - kept.sum(-1)[..., None], 0, None)
    return kept + rejected * (residual(p_t, p_d) if resample is None else resample)


def one_hot(token: int, like: Array) -> Array:
    """The point mass on ``token``, in the shape [..., V], dtype and device of ``like``: a deterministic proposal."""
    size = like.shape[-1]
    if not 0 <= token < size:
        raise ValueError(f"token {token} is outside the vocabulary of {size}; ids run from 0 to {size - 1}")
    delta = namespace(like).zeros_like(like)
    delta[..., token] = 1
    return delta
