"""Checkpoints of DSpark and DFlash: DeepSpec's layout, with embedding and head inside, and z-lab's, without."""

from __future__ import annotations

from pathlib import Path

import torch

from companion.drafters.checkpoint import check_target, fill, write
from companion.drafters.dspark.backbone import rotary_table
from companion.drafters.dspark.config import DSparkConfig, published_config
from companion.drafters.dspark.model import DSparkModel
from companion.engine.load import ModelFolder
from companion.engine.random_weights import RANDOM, RandomWeights
from companion.engine.target import Qwen3Target

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


def load_dspark(folder: ModelFolder, target: Qwen3Target) -> DSparkModel:
    """The folder's model, on the target's device and in its dtype.

    Where the checkpoint has no embedding and head, or the very ones of ``target``, the target's tensors are shared and
    take no memory. ValueError on a broken folder, on weights that do not fit config.json, and on another target's
    drafter.
    """
    try:
        config = DSparkConfig.from_dict(folder.config())
    except ValueError as error:
        raise ValueError(f"cannot use {folder.path} as a drafter: {error}") from error
    check_target(folder.name, config.shape, config.target_layer_ids, config.num_target_layers, target)
    weights = folder.weights()
    if config.shape.tied and EMBEDDING in weights:
        weights.setdefault(HEAD, weights[EMBEDDING])
    for key, shared in ((EMBEDDING, target.embedding), (HEAD, target.head)):
        if not config.own_embeddings:
            weights.setdefault(key, shared)
        elif key in weights and torch.equal(weights[key].to(shared), shared):
            weights[key] = shared
    with torch.device("meta"):  # no time and memory for values that are replaced
        model = DSparkModel(config)
    fill(model, weights, folder.name, device=target.device, dtype=target.dtype)
    model.rotary = rotary_table(config).to(target.device)
    return model


def random_dspark(target: Qwen3Target, *, dflash: bool = False, seed: int = 0) -> DSparkModel:
    """A drafter of the published shapes for ``target``, with weights that are drawn and mean nothing: for timing.

    Embedding and head are the target's, as they are in what the authors publish.
    """
    config = published_config(target.shape, len(target.layers[0].down), dflash=dflash)
    with torch.device("meta"):
        model = DSparkModel(config)
    shapes = {key: tuple(p.shape) for key, p in model.named_parameters() if key not in (EMBEDDING, HEAD)}
    weights = dict(RandomWeights(shapes, seed, target.device, target.dtype))
    weights |= {EMBEDDING: target.embedding, HEAD: target.head}
    fill(model, weights, f"dspark {RANDOM}", device=target.device, dtype=target.dtype)
    model.rotary = rotary_table(config).to(target.device)
    return model


def save_dspark(model: DSparkModel, folder: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write the layout that the model's configuration names; ``dtype`` None keeps the weights' own."""
    own = model.config.own_embeddings
    write(folder, model.config.to_dict(), model, dtype=dtype, leave_out=() if own else (EMBEDDING, HEAD))
