"""An incoherence that spans three tokens, which no bigram head can cure, built as small as it goes.

The target answers "not at all" or "here at last", half of the time each. Slot 3 comes after "at" both times. A Markov
head knows the token before and nothing else, so that slot 3 has one law q for both answers and the rule accepts

    1/2 q(all) + 1/2 q(last) <= 1/2,  with equality wherever q has all its mass on the two,

whatever the rank and the weights are; a gate that reads h_k and that same token changes nothing. A head that carries a
state along the block reaches 1: `solved_rnn` has such weights, of rank 1.
`companion.experiments.broken_triples` counts what a trained drafter does of this kind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from companion.drafters.dspark.heads import MarkovHead, RNNMarkovHead

TOKENS = ("Sure,", "not", "here", "at", "all", "last")  # the anchor, and the two answers
ANCHOR, NOT, HERE, AT, ALL_, LAST = range(len(TOKENS))
ANSWERS = ((NOT, AT, ALL_), (HERE, AT, LAST))
TEXT = "target"  # the row of the target's own answers


def base_logits(sure: float = 60.0) -> Tensor:  # -> [3, V]
    """U_k: log marginals of the two answers, as a parallel drafter knows them; other tokens ``sure`` nats below."""
    logits = torch.full((3, len(TOKENS)), -sure, dtype=torch.float64)
    for k, choices in enumerate(zip(*ANSWERS, strict=True)):
        logits[k, list(choices)] = 0.0
    return logits


def drafted_laws(head: MarkovHead | None) -> dict[tuple[int, ...], Tensor]:
    """q_k(. | x_1 .. x_{k-1}) [V] for every prefix of an answer, h_k = 0; None: no head."""
    laws: dict[tuple[int, ...], Tensor] = {}
    for answer in ANSWERS:
        state: Tensor | None = None
        for k, logits in enumerate(base_logits()):
            if head is not None:
                previous = torch.tensor((ANCHOR, *answer)[k])
                hidden = torch.zeros(0, dtype=logits.dtype)
                latent, state = head.latent(head.embed(previous), hidden, state)
                logits = logits + head.bias(latent)
            laws[answer[:k]] = logits.softmax(-1)
    return laws


def acceptance(head: MarkovHead | None) -> list[float]:
    """c_1, c_2, c_3: the mean of sum_v min(p, q) along the target's two answers."""
    laws = drafted_laws(head)
    found = []
    for k in range(3):
        rates = []
        for answer in ANSWERS:
            goes_on = [other[k] for other in ANSWERS if other[:k] == answer[:k]]
            p = torch.zeros(len(TOKENS), dtype=torch.float64)
            for token in goes_on:
                p[token] += 1 / len(goes_on)
            rates.append(float(torch.minimum(p, laws[answer[:k]]).sum()))
        found.append(sum(rates) / len(rates))
    return found


@torch.no_grad()
def solved_rnn(strength: float = 30.0) -> RNNMarkovHead:
    """Weights of rank 1 that draft the two answers and nothing else, to e^(-2 strength).

    The state takes up +1 after "not" and -1 after "here"; the output of slot 3 reads it past "at".
    """
    head = RNNMarkovHead(len(TOKENS), 1, 0).double()
    for parameter in head.parameters():
        parameter.zero_()
    head.markov_w1.weight[NOT], head.markov_w1.weight[HERE] = 1.0, -1.0
    head.joint_proj.weight[1, 1] = strength  # candidate: the token's sign; the gate stays half open
    head.joint_proj.weight[2, 0] = 4 * strength  # output: the old state's sign
    head.markov_w2.weight[ALL_], head.markov_w2.weight[LAST] = strength, -strength
    return head
