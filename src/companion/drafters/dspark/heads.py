"""The sequential part of DSpark: a Markov head that corrects the parallel logits, and a confidence head.

A parallel backbone gives h_k and U_k for all k at once. Drafting left to right, the head adds B_k, made from the token
just drafted, so that the block has a probability that is a product of ordinary next-token distributions:

    p_k(v | x_0, x_<k) = softmax_v( U_k(v) + B_k(x_<k, v) )                                     (paper Eq. 4)
    vanilla   B_k = W_2 e,            e = W_1[x_{k-1}]                                           (Eq. 5)
    gated     B_k = W_2 (sig(W_g [h_k; e] + b) * e)                                     (in the authors' code only)
    rnn       B_k = W_2 tanh(o),      (g, c, o) = W [s_{k-1}; e; h_k] + b,
              s_k = sig(g) * s_{k-1} + (1 - sig(g)) * tanh(c),  s_0 = 0                          (Eq. 6)
    c_k = sig(w [h_k; e] + b)                                                                    (Eq. 7)

Nothing here knows where h_k and U_k come from: any backbone that gives them can take these heads;
`companion.drafters.medusa` is another one and says how. Weights carry the
names of DeepSpec's checkpoints; both W are stored as [V, r].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion.drafters.dspark.config import HeadType


class MarkovHead(nn.Module):
    """The vanilla head, which forgets all but the last token; the others change `latent`.

    One step of the loop is `embed`, `latent`, `bias`; `latents` is the same for a block whose tokens are known
    (teacher forcing). Splitting `bias` off lets training apply the V-wide matrix to supervised rows only.
    `companion.drafters.dspark.steps` takes the same steps for drafting.
    """

    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)

    def embed(self, previous: Tensor) -> Tensor:  # [...] token ids -> [..., r]
        return F.embedding(previous, self.markov_w1.weight)

    def latent(
        self,
        embedded: Tensor,  # [..., r]
        hidden: Tensor,  # [..., d]
        state: Tensor | None,  # [..., r]; None at the first position of a block
    ) -> tuple[Tensor, Tensor | None]:
        """What W_2 is applied to, [..., r], and the state after this position."""
        return embedded, None

    def latents(self, embedded: Tensor, hidden: Tensor) -> Tensor:  # [..., k, r], [..., k, d] -> [..., k, r]
        """`latent` along a whole block."""
        return self.latent(embedded, hidden, None)[0]

    def bias(self, latent: Tensor) -> Tensor:  # [..., r] -> [..., V]
        """B_k."""
        bias: Tensor = self.markov_w2(latent)
        return bias


class GatedMarkovHead(MarkovHead):
    def __init__(self, vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__(vocab_size, rank)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def latent(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return torch.sigmoid(self.gate_proj(torch.cat([hidden, embedded], -1))) * embedded, None


class RNNMarkovHead(MarkovHead):
    """Carries a state along the block; its output is read from the old state, not from the new one."""

    def __init__(self, vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__(vocab_size, rank)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def latent(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        old = torch.zeros_like(embedded) if state is None else state
        gate, candidate, out = self.joint_proj(torch.cat([old, embedded, hidden], -1)).chunk(3, -1)
        new = torch.lerp(torch.tanh(candidate), old, torch.sigmoid(gate))
        return torch.tanh(out), new

    def latents(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        state, steps = None, []
        for e, h in zip(embedded.unbind(-2), hidden.unbind(-2), strict=True):
            out, state = self.latent(e, h, state)
            steps.append(out)
        return torch.stack(steps, -2)


class ConfidenceHead(nn.Module):
    """The logit of c_k, the estimated probability that slot k is accepted if all slots before it were."""

    def __init__(self, hidden_size: int, rank: int) -> None:  # rank 0: it reads h_k alone
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1)
        self.reads_markov = rank > 0

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:  # [..., d], [..., r] -> [...]
        seen = hidden
        if self.reads_markov:
            assert embedded is not None
            seen = torch.cat([hidden, embedded], -1)
        logit: Tensor = self.proj(seen)
        return logit[..., 0]


def markov_head(kind: HeadType, vocab_size: int, rank: int, hidden_size: int) -> MarkovHead:
    """The head of a kind: "vanilla", "gated" or "rnn"."""
    if kind == "vanilla":
        return MarkovHead(vocab_size, rank)
    return (GatedMarkovHead if kind == "gated" else RNNMarkovHead)(vocab_size, rank, hidden_size)
