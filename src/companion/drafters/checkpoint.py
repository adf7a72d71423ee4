"""What the checkpoints of all neural drafters have in common: fitting weights, writing a folder, fitting a target."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from companion.engine.target import Qwen3Shape, Qwen3Target


def layer_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The target layers that a drafter's config.json asks for; ValueError unless they are a list of whole numbers."""
    found = config.get("target_layer_ids")
    if not isinstance(found, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in found):
        raise ValueError(f"target_layer_ids of the configuration must be a list of whole numbers, found {found!r}")
    return tuple(found)


def fill(
    model: nn.Module,  # parameters may be on the meta device
    weights: Mapping[str, Tensor],
    name: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Make ``weights``, under their own names, the model's parameters.

    ValueError on a missing, surplus or misshapen one, on whole numbers in place of fractions, and on NaN or infinity.
    """
    expected = dict(model.named_parameters())
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise ValueError(f"the weights of {name} lack {missing[0]!r}, which its config.json asks for: fetch it again")
    surplus = sorted(weights.keys() - expected.keys())
    if surplus:
        raise ValueError(
            f"{name} has a weight {surplus[0]!r} that its config.json has no place for: the two do not belong together"
        )
    for key, parameter in expected.items():
        if weights[key].shape != parameter.shape:
            raise ValueError(
                f"{key} of {name} has shape {tuple(weights[key].shape)}, its config.json says "
                f"{tuple(parameter.shape)}: weights and config.json do not belong together"
            )
        _check_values(weights[key], key, name)
    trained = {key for key, parameter in expected.items() if parameter.requires_grad}
    model.load_state_dict({key: weights[key].to(device, dtype) for key in expected}, assign=True)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key in trained)


def _check_values(weight: Tensor, key: str, name: str) -> None:
    if weight.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        stored = str(weight.dtype).removeprefix("torch.")
        raise ValueError(f"{key} of {name} is stored as {stored}: only plain bf16, fp16 or fp32 weights are read")
    if not torch.isfinite(weight).all():
        raise ValueError(
            f"{key} of {name} holds NaN or infinity: its training broke down or the file is corrupt; take another "
            "checkpoint"
        )


def write(
    folder: Path,
    config: Mapping[str, Any],
    model: nn.Module,
    *,
    dtype: torch.dtype | None = None,
    leave_out: Collection[str] = (),
) -> None:
    """Write config.json and model.safetensors, each whole or not at all. ``dtype`` None keeps the model's own."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        key: parameter.detach().to("cpu", dtype or parameter.dtype).contiguous().clone()
        for key, parameter in model.named_parameters(remove_duplicate=False)
        if key not in leave_out
    }
    stored = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    partial = folder / "model.safetensors.partial"
    save_file(weights, partial, {"format": "pt"})
    os.chmod(partial, 0o644)
    os.replace(partial, folder / "model.safetensors")
    partial = folder / "config.json.partial"
    partial.write_text(json.dumps(dict(config) | {"dtype": stored}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(partial, folder / "config.json")


def check_target(
    name: str, shape: Qwen3Shape, layer_ids: Sequence[int], target_layers: int | None, target: Qwen3Target
) -> None:
    """ValueError unless a drafter of this shape, reading these layers' outputs (-1: the embedding), fits ``target``."""
    other = f"it was made for another target than {target.name}"
    if shape.hidden != target.shape.hidden:
        raise ValueError(
            f"drafter {name} has a hidden size of {shape.hidden} and {target.name} one of {target.shape.hidden}: "
            f"{other}"
        )
    if shape.vocab_size != target.vocab_size:
        raise ValueError(
            f"drafter {name} has a vocabulary of {shape.vocab_size} tokens and {target.name} one of "
            f"{target.vocab_size}: {other}"
        )
    last = target.shape.layers - 1
    if target_layers is not None and target_layers != target.shape.layers:
        raise ValueError(
            f"drafter {name} reads a target of {target_layers} layers and {target.name} has {last + 1}: {other}"
        )
    wrong = next((i for i in layer_ids if not -1 <= i <= last), None)
    if wrong is not None:
        raise ValueError(
            f"drafter {name} reads the output of layer {wrong}, and {target.name} has layers 0 to {last} (-1: the "
            f"embedding): {other}"
        )
    if last in layer_ids:
        raise ValueError(
            f"drafter {name} reads the output of the last layer ({last}) of {target.name}, which is not offered: "
            "published lists of hidden states hold the normalised state in its place, so that two implementations "
            "would read two different things"
        )
