"""Which drafters vLLM reads as they are, which it reads under another configuration, and which it would misread.

dspark     DeepSpec's checkpoints, as they are (an anchor that predicts, a vanilla Markov head).
eagle3     DeepSpec's weights, but not its configuration: vLLM asks for its own architecture's name, and for the tapped
           layers under its own key, counted from the layer that reads them and not from the one that wrote them (+1).
           With neither it takes three default layers. `export` writes the folder that it reads.
dflash     z-lab's layout (an anchor and masks, and only the masks predict). DeepSpec's, where the anchor predicts too,
           would be drafted from the wrong slots.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from companion.drafters.dspark.config import DEEPSPEC, Z_LAB, DSparkConfig
from companion.drafters.eagle3.config import ARCHITECTURE, Eagle3Config
from companion.engine.load import find_model
from companion.provenance import write_json

VLLM_EAGLE3 = "Eagle3Qwen3ForCausalLM"


def check_layout(method: str, drafter: str) -> None:
    """ValueError for a local checkpoint that vLLM's ``method`` would read as something else."""
    if not Path(drafter).is_dir():
        return  # of a hub id vLLM reads the configuration itself
    config = find_model(drafter).config()
    architectures = config.get("architectures") or []
    if method == "dflash" and DEEPSPEC in architectures:
        raise ValueError(
            f"{drafter} is DFlash in DeepSpec's layout ({DEEPSPEC} of rank 0: the anchor predicts too), and vLLM's "
            f"dflash reads z-lab's ({Z_LAB}: an anchor and masks, and only the masks predict), so it would draft "
            "something else; decode it with companion generate, or give a checkpoint in z-lab's layout"
        )
    if method == "eagle3" and ARCHITECTURE in architectures:
        raise ValueError(
            f"{drafter} is Eagle3 in DeepSpec's layout ({ARCHITECTURE}), of which vLLM knows neither the name nor the "
            f"key of the tapped layers; write what it reads first: companion vllm export {drafter} FOLDER"
        )
    if method == "dspark" and DEEPSPEC in architectures:
        _check_dspark(drafter, DSparkConfig.from_dict(config))


def _check_dspark(drafter: str, config: DSparkConfig) -> None:
    unknown = None
    if not config.anchor_predicts:
        unknown = "takes no prediction at the anchor"
    elif config.markov_rank and config.markov_head_type != "vanilla":
        unknown = f"has a {config.markov_head_type} Markov head"
    elif not config.markov_rank:
        unknown = "has no Markov head (it is DFlash)"
    if unknown:
        raise ValueError(f"{drafter} {unknown}, which vLLM's dspark does not read; decode it with companion generate")


def export(drafter: str, folder: Path) -> str:
    """Write ``drafter`` as a folder that vLLM reads, and return the method to read it with.

    ValueError for one that vLLM reads as it is, or not at all.
    """
    model = find_model(drafter)
    config = model.config()
    if ARCHITECTURE not in (config.get("architectures") or []):
        raise ValueError(f"{drafter} is no Eagle3 in DeepSpec's layout; others vLLM reads as they are, or not at all")
    read = Eagle3Config.from_dict(config)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", eagle3_for_vllm(config, read))
    for file in model.weight_files():
        shutil.copyfile(file, folder / file.name)
    index = model.path / "model.safetensors.index.json"
    if index.is_file():
        shutil.copyfile(index, folder / index.name)
    return "eagle3"


def eagle3_for_vllm(config: Mapping[str, Any], read: Eagle3Config) -> dict[str, Any]:
    """vLLM's configuration of the same weights."""
    return {
        **config,
        "architectures": [VLLM_EAGLE3],
        "draft_vocab_size": read.shape.vocab_size,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in read.target_layer_ids],
    }
