"""The golden drafters as checkpoint folders, with the models and numbers that belong to them."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from companion.drafters.dspark.checkpoint import load_dspark
from companion.drafters.dspark.model import DSparkModel
from companion.drafters.load import load_drafter
from companion.engine.load import TextTarget, find_model, load_target

torch.set_num_threads(1)

FIXTURES = Path(__file__).parents[1] / "fixtures"
GOLDEN = FIXTURES / "golden"
MODELS = ("dspark_vanilla", "dspark_gated", "dspark_rnn", "dflash")  # random weights, for the tiny target
ALL = (*MODELS, "dspark_easy")  # trained, for the easy target
COLUMNS = slice(None, None, 8)  # of the vocabulary, in the stored logits


@cache
def read(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")


@cache
def read_json(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def weights(name: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"{name}.npz") as planes:
        whole = {key: np.ascontiguousarray(np.moveaxis(planes[key], 0, -1)).view("<f4")[..., 0] for key in planes.files}
    return {key: torch.from_numpy(value.copy()) for key, value in whole.items()}


@cache
def folder(name: str) -> Path:
    """A checkpoint folder as DeepSpec (or transformers, for a target) writes it."""
    path = Path(_scratch().name) / name
    path.mkdir()
    if name == "target_tiny":
        for file in ("config.json", "model.safetensors"):
            shutil.copy(FIXTURES / "golden_qwen3" / file, path)
        return path
    tensors = weights(name)
    if name != "target_easy":
        target = target_of(name)
        tensors |= {"embed_tokens.weight": target.embedding, "lm_head.weight": target.head}
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(read_json("configs")[name]))
    return path


@cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="golden-")


@cache
def _target(name: str) -> TextTarget:
    return load_target(str(folder(name)))


def target_of(name: str) -> TextTarget:
    return _target("target_easy" if name == "dspark_easy" else "target_tiny")


def model(name: str) -> DSparkModel:
    return load_dspark(find_model(str(folder(name))), target_of(name))


def drafter(name: str, **options):
    made = load_drafter(str(folder(name)), target_of(name), **options)
    assert made is not None
    return made
