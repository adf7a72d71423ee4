"""DSpark drafters small enough to enumerate: a few tokens, hidden size 2, in fp64."""

from __future__ import annotations

import torch

from companion.drafters.dspark.config import DSparkConfig
from companion.drafters.dspark.drafter import DSparkDrafter
from companion.drafters.dspark.model import DSparkModel
from companion.engine.target import Qwen3Shape


def micro(kind: str, vocab_size: int, block_size: int = 3, **options) -> DSparkDrafter:
    """ "dflash", "vanilla", "gated" or "rnn", with random weights; it reads the features of a `TableTarget`."""
    shape = Qwen3Shape(
        vocab_size=vocab_size,
        hidden=2,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=2,
        eps=1e-6,
        rope_theta=1e4,
        max_context=64,
    )
    rank = 0 if kind == "dflash" else 2
    config = DSparkConfig(
        shape=shape,
        mlp_width=3,
        block_size=block_size,
        target_layer_ids=(0,),
        mask_token_id=vocab_size - 1,
        markov_rank=rank,
        markov_head_type="vanilla" if kind == "dflash" else kind,
        confidence_head=rank > 0,
    )
    torch.manual_seed(5)
    model = DSparkModel(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return DSparkDrafter(model, dtype=torch.float64, **options)
