"""A training run's checkpoint: weights, optimiser states and the place in the data, in one safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import Module

CHECKPOINT = "checkpoint.safetensors"


def saved_step(folder: Path) -> int:
    """Steps done according to the checkpoint in ``folder``; 0 without one. ValueError when it is broken."""
    if not (folder / CHECKPOINT).exists():
        return 0
    with _opened(folder) as f:
        return int(_state(f)["step"])


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The model's weights in the checkpoint of ``folder``. ValueError when it is broken."""
    with _opened(folder) as f:
        return {k.removeprefix("model/"): f.get_tensor(k) for k in f.keys() if k.startswith("model/")}  # noqa: SIM118


def trainable(model: Module) -> dict[str, Tensor]:
    """Parameters that learn, by name."""
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def save_run(folder: Path, model: Module, optimisers: list[torch.optim.Optimizer], state: dict[str, int]) -> None:
    """Write the checkpoint whole or not at all."""
    names = {p: n for n, p in trainable(model).items()}
    tensors = {f"model/{n}": p.detach() for p, n in names.items()}
    for o in optimisers:
        for p, values in o.state.items():
            tensors |= {f"{type(o).__name__}/{key}/{names[p]}": value for key, value in values.items()}
    partial = folder / (CHECKPOINT + ".partial")
    save_file({k: t.contiguous() for k, t in tensors.items()}, partial, {"state": json.dumps(state)})
    os.replace(partial, folder / CHECKPOINT)


def load_run(folder: Path, model: Module, optimisers: list[torch.optim.Optimizer]) -> tuple[int, int, int]:
    """Fill model and optimisers; returns step, data pool and index in it, all 0 without a checkpoint."""
    if not (folder / CHECKPOINT).exists():
        return 0, 0, 0
    params = dict(model.named_parameters())
    kinds = {type(o).__name__: o for o in optimisers}
    with _opened(folder) as f, torch.no_grad():
        for key in f.keys():  # noqa: SIM118
            if key.startswith("model/"):
                params[key.removeprefix("model/")].copy_(f.get_tensor(key))
            else:
                kind, name, parameter = key.split("/")
                value, p = f.get_tensor(key), params[parameter]
                # a step count is a single number and stays on the CPU, where AdamW wants it
                kinds[kind].state[p][name] = value.to(p.device) if value.ndim else value
        state = _state(f)
    return state["step"], state["pool"], state["index"]


@contextmanager
def _opened(folder: Path) -> Iterator[Any]:
    path = folder / CHECKPOINT
    try:
        with safe_open(path, "pt") as f:
            yield f
    except (SafetensorError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a whole checkpoint of this run ({error}); delete it to start anew") from error


def _state(file: Any) -> dict[str, int]:
    found: dict[str, int] = json.loads(file.metadata()["state"])
    return found
