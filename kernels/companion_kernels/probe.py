"""probe: what one logits row says about the target.

    H     = -sum_v p(v) ln p(v)            entropy, nats
    max_p = max_v p(v)
    e     = sum_{v in E} p(v)              mass on a token set (the note's EAT when E is the think-end token)

with p = softmax(logits). The PyTorch reference; it is what runs on every device today.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Probe(NamedTuple):
    entropy: Tensor  # [N] nats
    max_p: Tensor  # [N]
    mass: Tensor  # [N]


def probe_reference(logits: Tensor, token_set: Sequence[int] = ()) -> Probe:  # [N, V], -inf allowed
    """Entropy, largest probability and mass on ``token_set`` of each row; -inf entries add neither."""
    log_p = torch.log_softmax(logits, -1)
    p = log_p.exp()
    entropy = -(p * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)
    # column by column: a handful of ids, for which an index tensor takes longer than the sums
    mass = sum((p[:, token] for token in token_set), torch.zeros_like(entropy))
    return Probe(entropy, p.amax(-1), mass)
