"""Length buckets: samples of like length share a batch, so that almost nothing is padding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .corpus import Sample
from .tokenizer import render


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one conversation and the weight of each as a prediction target (0 in the prompt)."""

    ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Batch:
    ids: Tensor  # [B, L] int64, padded on the right
    weights: Tensor  # [B, L] fp32, 0 on prompts and padding

    @property
    def tokens(self) -> int:
        return self.ids.numel()

    @property
    def weight(self) -> float:
        """Sum of the weights of what can be predicted: all but the first token."""
        return float(self.weights[:, 1:].sum())


Step = tuple[Batch, ...]


def encode(samples: Sequence[Sample], tokenizer: PreTrainedTokenizerFast, digit_weight: float = 1.0) -> list[Encoded]:
    """Rendered samples as ids; tokens of the response weigh 1, its digits ``digit_weight``."""
    rendered = [render(s) for s in samples]
    backend = tokenizer.backend_tokenizer
    prompts = backend.encode_batch([p for p, _ in rendered], add_special_tokens=False)
    responses = backend.encode_batch([r for _, r in rendered], add_special_tokens=False)
    digit_ids = {i for token, i in tokenizer.get_vocab().items() if token.isdigit() and token.isascii()}
    return [
        Encoded(
            p.ids + r.ids,
            [0.0] * len(p.ids) + [digit_weight if i in digit_ids else 1.0 for i in r.ids],
        )
        for p, r in zip(prompts, responses, strict=True)
    ]


def bucket(
    encoded: Sequence[Encoded], tokens_per_batch: int, pad_id: int, order_seed: str, multiple: int = 8
) -> list[Batch]:
    """Batches of at most ``tokens_per_batch`` padded tokens, lengths rounded up to ``multiple``, in shuffled order."""
    pending = sorted(range(len(encoded)), key=lambda i: (len(encoded[i].ids), i))
    batches: list[Batch] = []
    while pending:
        rows, width = 0, 0
        while rows < len(pending):
            length = -(-len(encoded[pending[rows]].ids) // multiple) * multiple
            if rows and length * (rows + 1) > tokens_per_batch:
                break
            rows, width = rows + 1, length
        batches.append(_pad([encoded[i] for i in pending[:rows]], width, pad_id))
        pending = pending[rows:]
    random.Random(order_seed).shuffle(batches)
    return batches


def steps(batches: Sequence[Batch], per_step: int) -> list[Step]:
    """Consecutive batches as optimiser steps: batches of unlike length in one step make its gradient less noisy."""
    return [tuple(batches[i : i + per_step]) for i in range(0, len(batches), per_step)]


def _pad(rows: Sequence[Encoded], width: int, pad_id: int) -> Batch:
    ids = torch.full((len(rows), width), pad_id)
    weights = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        weights[i, : len(row.weights)] = torch.tensor(row.weights)
    return Batch(ids, weights)
