"""A Markov head as the sequential loop walks through it: one block, one token after another.

The same numbers as the modules of `companion.drafters.dspark.heads`, to rounding, arranged for few rows: what h_k adds
is one product for the whole block, and the loop holds plain tensors, since to look a module's weight up takes as long
as to add two rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.drafters.dspark.heads import GatedMarkovHead, MarkovHead, RNNMarkovHead


class MarkovSteps:
    """The vanilla head. ``embedded`` gathers e of each slot, which the confidence head reads too."""

    def __init__(self, head: MarkovHead, hidden: Tensor) -> None:  # [R, k, d]
        self.w1, self.w2 = head.markov_w1.weight, head.markov_w2.weight.t()  # [V, r], [r, V]
        self.embedded: list[Tensor] = []  # [R, r] each

    def correct(self, logits: Tensor, previous: Tensor) -> Tensor:  # U_k [R, V], x_{k-1} [R] -> [R, V]
        """U_k + B_k of Eq. 4 at the next slot, in one product where the types allow it."""
        embedded = torch.embedding(self.w1, previous)
        self.embedded.append(embedded)
        latent = self.latent(embedded)
        if logits.dtype != latent.dtype:
            return logits + latent @ self.w2
        return torch.addmm(logits, latent, self.w2)

    def latent(self, embedded: Tensor) -> Tensor:  # [R, r] -> [R, r]
        """What W_2 is applied to at the next slot."""
        return embedded


class GatedSteps(MarkovSteps):
    def __init__(self, head: GatedMarkovHead, hidden: Tensor) -> None:
        super().__init__(head, hidden)
        weight, d = head.gate_proj.weight, hidden.shape[-1]  # over [h; e]
        self.own = weight[:, d:].t()
        self.gates = iter(F.linear(hidden, weight[:, :d], head.gate_proj.bias).unbind(1))

    def latent(self, embedded: Tensor) -> Tensor:
        return torch.addmm(next(self.gates), embedded, self.own).sigmoid_() * embedded


class RNNSteps(MarkovSteps):
    def __init__(self, head: RNNMarkovHead, hidden: Tensor) -> None:
        super().__init__(head, hidden)
        weight, d = head.joint_proj.weight, hidden.shape[-1]  # over [s; e; h]
        self.own = weight[:, :-d].t()
        self.joint = iter(F.linear(hidden, weight[:, -d:], head.joint_proj.bias).unbind(1))
        self.state: Tensor | None = None

    def latent(self, embedded: Tensor) -> Tensor:
        old = torch.zeros_like(embedded) if self.state is None else self.state
        joint = torch.addmm(next(self.joint), torch.cat([old, embedded], -1), self.own)
        gate, candidate, out = joint.chunk(3, -1)
        self.state = torch.lerp(torch.tanh(candidate), old, torch.sigmoid(gate))
        return torch.tanh(out)


def steps_of(head: MarkovHead, hidden: Tensor) -> MarkovSteps:  # [R, k, d]
    """The walk of a new block with these h_k through ``head``."""
    if isinstance(head, GatedMarkovHead):
        return GatedSteps(head, hidden)
    return RNNSteps(head, hidden) if isinstance(head, RNNMarkovHead) else MarkovSteps(head, hidden)
