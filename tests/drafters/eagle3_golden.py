"""The golden Eagle3 drafter, its target, and the target's features exactly as the golden run had them."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM

from companion.drafters.eagle3.checkpoint import load_eagle3
from companion.drafters.eagle3.model import Eagle3
from companion.engine.load import ModelFolder
from companion.engine.target import Qwen3Shape, Qwen3Target

FIXTURES = Path(__file__).parents[1] / "fixtures"
TARGET, GOLDEN = FIXTURES / "golden_qwen3", FIXTURES / "golden" / "eagle3"


@cache
def target() -> Qwen3Target:
    shape = Qwen3Shape.from_config(json.loads((TARGET / "config.json").read_text()))
    return Qwen3Target(shape, load_file(TARGET / "model.safetensors"))


def write_folder(path: Path) -> ModelFolder:
    """The checkpoint as DeepSpec wrote it: with the target's embedding and head, which the fixture leaves out."""
    path.mkdir(exist_ok=True)
    frozen = {"embed_tokens.weight": target().embedding, "lm_head.weight": target().head}
    save_file(load_file(GOLDEN / "model.safetensors") | frozen, path / "model.safetensors")
    (path / "config.json").write_bytes((GOLDEN / "config.json").read_bytes())
    return ModelFolder(path, "golden-eagle3")


def model() -> Eagle3:
    with tempfile.TemporaryDirectory() as path:
        return load_eagle3(write_folder(Path(path)), target())


def numbers(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")


def record(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


@torch.inference_mode()
def features_in_blocks(ids: list[int], prompt: int, anchors: list[int]) -> Tensor:
    """Outputs of layers 0 to 2 [anchors[-1], 3, d] from transformers' own model: the prompt, then blocks of six.

    The residual stream reaches 24 here, so one rounding is 2e-6, and the drafter feeds its own output back: with
    features rounded in another order, five steps end beyond the tolerance of 2e-5, also in the reference. Fed with the
    same features, ours stays at half of it.
    """
    reference = Qwen3ForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    past, rows = DynamicCache(config=reference.config), []
    starts = [0, prompt, *anchors[1:-1]]
    for start, end in zip(starts, [prompt, *anchors[1:]], strict=True):
        block = ids[start : start + 6] if start else ids[:prompt]
        positions = torch.arange(start, start + len(block))[None]
        out = reference(torch.tensor([block]), None, positions, past, output_hidden_states=True)
        rows.append(torch.stack([out.hidden_states[i + 1][0] for i in range(3)], 1)[: end - start])
        if start + len(block) > end:
            past.crop(end - start - len(block))  # negative: drops that many in every supported version
    return torch.cat(rows)
