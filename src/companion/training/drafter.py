"""Train DSpark, DFlash, Eagle3 and Medusa-style drafters on the target's own output and stored hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from companion.engine.load import find_model
from companion.engine.target import Qwen3Shape
from companion.provenance import write_json

from .checkpoint import load_weights
from .drafter_task import DrafterModel, DrafterTask, new_drafter, save_drafter
from .features import FeatureSpec, FeatureStore, storage
from .group import first_alone, joined
from .loop import TrainResult, fit
from .recipe import DrafterConfig, dflash_config
from .regenerate import regenerate
from .target import claim_folder

__all__ = ["DrafterConfig", "dflash_config", "new_drafter", "prepare", "train_drafter"]

TRACES, FEATURES = "target_output.jsonl", "features"
Agreement = Callable[[int, int], bool]


def train_drafter(
    config: DrafterConfig,
    out_dir: str | Path,
    data_dir: str | Path | None = None,
    *,
    workers: int = 2,
    threads: int = 1,
    device: str = "cpu",
    agree: Agreement = lambda tokens, size: True,
) -> TrainResult:
    """Regenerate traces, store features, train, and export to ``out_dir/model`` as a folder that `load_drafter` reads.

    ``data_dir`` (default: ``out_dir``) holds traces and features and can be shared by runs of one target and mode mix.
    ``agree`` is asked before features are written, with their tokens and bytes; False ends the run (ValueError). Under
    torchrun its processes train together and the first one prepares the data; else ``workers`` processes of this
    machine's CPU do both. Resumable throughout. ValueError when a folder holds another recipe's run or another target's
    features.
    """
    folder, data = Path(out_dir), Path(data_dir or out_dir)
    recipe = asdict(config) | {"target_weights": find_model(config.traces.target).describe()["weights_sha256"]}

    def set_up() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        claim_folder(folder, recipe)
        prepare(config, data, workers, agree, device=str(own))

    with joined(device) as own:
        first_alone(set_up)
        spec = feature_spec(config, own)
        task = DrafterTask(config, spec, str(data / TRACES), str(data / FEATURES), str(own))
        result = fit(task, config.schedule, folder, workers, threads, device=own, precision=config.precision)
        if result.finished:
            first_alone(lambda: _export(task, folder, recipe))
    return result


def _export(task: DrafterTask, folder: Path, recipe: dict[str, object]) -> None:
    model = task.model()
    model.load_state_dict(load_weights(folder), strict=False)  # the frozen tables are the target's
    assert isinstance(model, DrafterModel)
    save_drafter(model, folder / "model")
    write_json(folder / "model" / "recipe.json", recipe)


def feature_spec(config: DrafterConfig, device: torch.device | str = "cpu") -> FeatureSpec:
    """What is stored of the target: fp16 of a target on a CPU, bf16 of one on a GPU, which runs in bf16 itself."""
    model = find_model(config.traces.target)
    weights, hidden = model.describe()["weights_sha256"], Qwen3Shape.from_config(model.config()).hidden
    dtype = "float16" if torch.device(device).type == "cpu" else "bfloat16"
    return FeatureSpec(config.traces.target, weights, config.target_layers, hidden, dtype)


def prepare(
    config: DrafterConfig,
    data: Path,
    workers: int = 1,
    agree: Agreement = lambda tokens, size: True,
    *,
    device: str = "cpu",
) -> FeatureSpec:
    """Traces and features in ``data``: made where they are missing, checked where they are there."""
    data.mkdir(parents=True, exist_ok=True)
    made_by = asdict(replace(config.traces, samples=1)) | {"samples": None}  # more of the same can be added
    weights = find_model(config.traces.target).describe()["weights_sha256"]
    claim_folder(data, made_by | {"target_weights": weights}, "traces.json")
    traces = regenerate(config.traces, data / TRACES, workers, device)
    spec = feature_spec(config, device)
    if not agree(*storage(spec, traces)):
        raise ValueError("stopped before the features were written; fewer samples or fewer target layers need less")
    FeatureStore(data / FEATURES, spec, traces).write(workers, device)
    return spec
