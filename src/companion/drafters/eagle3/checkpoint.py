"""Eagle3 drafters in DeepSpec's layout: config.json and safetensors, embedding and head included."""

from __future__ import annotations

from pathlib import Path

import torch

from companion.drafters.blocks import RotaryTable
from companion.drafters.checkpoint import check_target, fill, write
from companion.drafters.eagle3.config import Eagle3Config
from companion.drafters.eagle3.model import Eagle3
from companion.engine.load import ModelFolder
from companion.engine.target import Qwen3Target


def load_eagle3(folder: ModelFolder, target: Qwen3Target) -> Eagle3:
    """The drafter in ``folder`` on the target's device and in its dtype.

    Where its embedding and head are the target's, as they should be, the target's own tensors are used and no copy is
    kept. ValueError when configuration, weights and target do not belong together.
    """
    try:
        config = Eagle3Config.from_dict(folder.config())
    except ValueError as error:
        raise ValueError(f"cannot use {folder.path} as a drafter: {error}") from error
    check_target(folder.name, config.shape, config.target_layer_ids, config.num_target_layers, target)
    weights = folder.weights()
    for key, shared in (("embed_tokens.weight", target.embedding), ("lm_head.weight", target.head)):
        if key in weights and torch.equal(weights[key].to(shared), shared):
            weights[key] = shared
    with torch.device("meta"):
        model = Eagle3(config)
    fill(model, weights, folder.name, device=target.device, dtype=target.dtype)
    model.rotary = RotaryTable(config.shape).to(target.device, target.dtype)
    return model


def save_eagle3(model: Eagle3, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write config.json and model.safetensors; ``dtype`` None keeps that of the weights."""
    write(folder, model.config.to_dict(), model, dtype=dtype)
