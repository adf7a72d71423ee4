"""A small random target and an Eagle3 drafter fitted to its greedy texts in seconds, so that drafts are accepted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from engine.models import decode_ids, ours, reference_model
from torch import Tensor

from companion.drafters.eagle3.config import Eagle3Config
from companion.drafters.eagle3.model import Eagle3
from companion.engine.target import Qwen3Target, ragged
from companion.training.eagle3_loss import eagle3_loss

VOCAB, STEPS = 64, 60


@cache
def target(dtype: torch.dtype = torch.float32) -> Qwen3Target:
    return ours(reference_model(4, sharpness=8.0), dtype=dtype)


def random_eagle3(seed: int = 0) -> Eagle3:
    of = target()
    torch.manual_seed(seed)
    config = Eagle3Config(replace(of.shape, layers=1), 96, (0, 1), of.shape.layers, ttt_length=4)
    model = Eagle3(config)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(of.embedding)
        model.lm_head.weight.copy_(of.head)
    return model


@cache
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(VOCAB, (3 + i % 5,), generator=generator).tolist() for i in range(8)]


@cache
def greedy_texts(new_tokens: int) -> list[list[int]]:
    """Plain greedy decoding of the prompts: what every greedy run must give."""
    return [request.context.tokens for request in decode_ids(target(), None, prompts(), new_tokens)]


@cache
def fitted_eagle3() -> Eagle3:
    model = random_eagle3()
    teach(model, torch.tensor([text[:44] for text in greedy_texts(44)]), STEPS)
    return model


def teach(model: Eagle3, texts: Tensor, steps: int) -> list[float]:  # [B, T] of the target
    """Fit the drafter with its own loss; the loss before each step."""
    of = target()
    batch = ragged([(i, 0, row) for i, row in enumerate(texts.tolist())], of.device)
    cache = of.new_cache(len(texts), texts.shape[1])
    features = of.forward(batch, cache, taps=(*model.config.target_layer_ids, 2)).features  # 2: the last layer
    assert features is not None
    features = features.clone().unflatten(0, texts.shape)  # out of inference mode
    last = of.final_norm(features[:, :, -1])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        loss = eagle3_loss(model, texts, features[:, :, :-1], last, torch.ones(texts.shape)).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
