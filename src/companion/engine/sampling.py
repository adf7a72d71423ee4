"""Logits to the one distribution that is sampled, verified and reported."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from companion.protocols import Sampling


def check_finite(peak: Tensor | Sequence[float]) -> None:  # [N] largest logit of each row
    """ValueError on NaN or +inf logits, or a row without any finite one; -inf (a masked id) is fine."""
    for row, value in enumerate(peak.tolist() if isinstance(peak, Tensor) else peak):
        if not math.isfinite(value):
            raise ValueError(
                f"the model returned logits that are no distribution (row {row} has maximum {value}); its weights or "
                "its inputs are broken, so nothing is emitted"
            )


def distribution(logits: Tensor, sampling: Sampling, *, checked: bool = False) -> Tensor:  # [N, V]
    """Probabilities [N, V] after temperature, top-k, top-p and min-p, in that order, as transformers applies them.

    Computed in fp32 (fp64 stays fp64). Temperature 0 is one-hot at the lowest id among the largest logits. Top-k keeps
    exactly k tokens, ties going to the lower id, so that a support of k is a promise. Target and drafter both use it.
    ``checked``: somebody else looks whether the logits are finite, so that nothing here waits for the device.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.greedy:
        best = logits.argmax(-1) if checked else greedy(logits)
        return torch.zeros_like(logits).scatter_(-1, best[:, None], 1.0)
    peak = logits.amax(-1, keepdim=True)
    if not checked:
        check_finite(peak[:, 0])
    # a temperature below the smallest normal number would turn the maximum into 0/0; the clamp changes nothing else
    temperature = max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    logits = (logits - peak) / temperature
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        order = logits.sort(dim=-1, descending=True, stable=True).indices[:, sampling.top_k :]
        logits = logits.scatter(-1, order, float("-inf"))
    if sampling.top_p < 1.0:
        sorted_logits, order = logits.sort(dim=-1, descending=True, stable=True)
        before = sorted_logits.softmax(-1).cumsum(-1).roll(1, -1)  # mass of the likelier tokens
        beyond = before >= sampling.top_p  # they reach top_p without this one
        beyond[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), float("-inf"))
    probs = logits.softmax(-1)
    if sampling.min_p > 0.0:
        probs = probs.where(probs >= sampling.min_p * probs.amax(-1, keepdim=True), 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def greedy(logits: Tensor) -> Tensor:  # [N, V]
    """Argmax [N], the lowest id among ties. ValueError as `check_finite`."""
    peak, best = logits.max(-1)
    check_finite(peak)
    return best
