"""Write a trained model as a folder that transformers loads unmodified: fp16 on disk, fp32 in use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from companion.engine.generate import generate
from companion.engine.load import load_target


def export_model(
    model: Any,
    weights: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write weights (without the tied head), configuration, tokenizer and Qwen3's recommended sampling settings."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.safetensors.partial"
    save_file({k: w.to(dtype).contiguous() for k, w in weights.items()}, partial, {"format": "pt"})
    os.chmod(partial, 0o644)
    os.replace(partial, folder / "model.safetensors")
    model.config.dtype = torch.float32  # what from_pretrained computes in
    model.config.architectures = ["Qwen3ForCausalLM"]
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    GenerationConfig(
        do_sample=True,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        bos_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
    ).save_pretrained(folder)


def rounding_agreement(
    model: Any,
    weights: dict[str, Tensor],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    prompts: Sequence[str],
    max_new_tokens: int = 400,
) -> dict[str, int]:
    """How many greedy responses of the folder's fp16 weights equal, token by token, those of the fp32 ``weights``."""
    with tempfile.TemporaryDirectory() as whole:
        export_model(model, weights, tokenizer, Path(whole), torch.float32)
        rounded, exact = (
            generate(
                load_target(str(f)), None, list(prompts), temperature=0, max_new_tokens=max_new_tokens, max_batch=64
            )
            for f in (folder, Path(whole))
        )
    same = sum(a.tokens == b.tokens for a, b in zip(rounded, exact, strict=True))
    return {"identical": same, "responses": len(prompts)}
