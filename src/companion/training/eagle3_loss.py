"""Eagle3's loss: the drafter is unrolled on its own output, as it will run (training-time test).

With x the tokens, p_j the target's distribution after reading x_j, and m_j the loss mask:

    h_i^(0) = Layer(x_{i+1}, g_i),    h_i^(k) = Layer(x_{i+1+k}, h_i^(k-1)) at RoPE position i + k
    L = sum_k decay^k / (B T) * sum_{i: m_{i+k} = 1} CE(p_{i+1+k}, softmax(W_head norm(h_i^(k))))

In step k position i attends to the pairs (g_j, x_{j+1}) of step 0 with j <= i and to its own pairs of steps 1 to k,
just what a drafter that started at i has in its cache. The divisor counts every token, also those outside the mask. The
last token of a sequence supervises nothing, since no distribution follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.drafters.eagle3.model import Eagle3


@dataclass(frozen=True, slots=True)
class Eagle3Loss:
    """Sums over the supervised positions of each step, so that batches and processes can be added up."""

    cross_entropy: Tensor  # [K], differentiable
    overlap: Tensor  # [K] sum of c* = 1 - TV between draft and target
    agreement: Tensor  # [K] positions where the two have the same argmax
    supervised: Tensor  # [K]
    tokens: int  # B T, the divisor of the loss
    decay: float

    @property
    def total(self) -> Tensor:
        weights = self.decay ** torch.arange(len(self.cross_entropy), device=self.cross_entropy.device)
        return (weights * self.cross_entropy).sum() / self.tokens


def eagle3_loss(
    model: Eagle3,
    input_ids: Tensor,  # [B, T] int64
    features: Tensor,  # [B, T, m, d] outputs of the target layers
    target_hidden: Tensor,  # [B, T, d] the target's last hidden states, after its final norm
    loss_mask: Tensor,  # [B, T]; nonzero: supervised
    lengths: Tensor | None = None,  # [B] tokens of each row; None: no row is padded
) -> Eagle3Loss:
    """The loss of a batch, with the number of steps and the decay of the model's configuration.

    The target's distributions are made here, at supervised positions only, from ``target_hidden`` and the model's
    frozen copy of the target's head. Memory is that of K attention matrices [B, heads, T, T].
    """
    config = model.config
    tokens, device = input_ids.shape[1], input_ids.device
    ends = torch.full((len(input_ids),), tokens) if lengths is None else lengths
    has_next = torch.arange(tokens, device=device) < ends.to(device)[:, None] - 1  # the last token of a text has none
    row, position = (loss_mask.bool() & has_next).nonzero(as_tuple=True)  # the supervised j = i + k of all texts
    with torch.no_grad():
        target = model.lm_head(target_hidden[row, position + 1]).float().softmax(-1)  # [n, V]
    sums = []
    for k, hidden in enumerate(unrolled(model, input_ids, features, config.ttt_length)):
        kept = position >= k
        logits = model.logits(hidden[row[kept], position[kept] - k]).float()  # [n', V]
        p, q = target[kept], logits.softmax(-1).detach()
        cross_entropy = -(p * logits.log_softmax(-1)).sum()
        agreement = (p.argmax(-1) == q.argmax(-1)).sum()
        sums.append((cross_entropy, torch.minimum(p, q).sum(), agreement, kept.sum()))
    cross_entropies, overlaps, agreements, supervised = (torch.stack(column) for column in zip(*sums, strict=True))
    return Eagle3Loss(cross_entropies, overlaps, agreements, supervised, input_ids.numel(), config.step_loss_decay)


def unrolled(
    model: Eagle3,
    input_ids: Tensor,  # [B, T]
    features: Tensor,  # [B, T, m, d]
    steps: int,
) -> Iterator[Tensor]:
    """h^(k) [B, T, d] for k = 0 .. steps - 1. Rows i >= T - k have no token left to read and mean nothing."""
    attention, length = model.layer.self_attn, input_ids.shape[1]
    hidden = model.fuse(features)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for k in range(steps):
        ahead = (torch.arange(length, device=input_ids.device) + k).clamp_max(length - 1)
        joined = model.join(F.pad(input_ids[:, 1 + k :], (0, 1 + k)), hidden)
        rotary = model.rotary(ahead)
        key, value = attention.keys_values(joined, rotary)
        keys.append(key)
        values.append(value)
        hidden = model.layer.finish(_attend(attention.queries(joined, rotary), keys, values), hidden)
        yield hidden


def _attend(
    q: Tensor,  # [B, T, heads, head_dim]
    keys: list[Tensor],  # of each step so far: [B, T, kv_heads, head_dim]
    values: list[Tensor],
) -> Tensor:  # [B, T, heads * head_dim]
    """Causal over step 0, and each position's own pair of the later steps."""
    shared = q.shape[2] // keys[0].shape[2]
    k, v = (torch.stack(s).repeat_interleave(shared, dim=3) for s in (keys, values))  # [steps, B, T, heads, head_dim]
    length, scale = q.shape[1], q.shape[3] ** -0.5
    over_text = torch.einsum("bihd,bjhd->bhij", q, k[0]) * scale
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    over_own = torch.einsum("bihd,sbihd->bhis", q, k[1:]) * scale
    weights = torch.cat([over_text.masked_fill(later, float("-inf")), over_own], -1).float().softmax(-1).to(q.dtype)
    attended = torch.einsum("bhij,bjhd->bihd", weights[..., :length], v[0])
    attended = attended + torch.einsum("bhis,sbihd->bihd", weights[..., length:], v[1:])
    return attended.flatten(2)
