"""Write a trained model as a folder that transformers loads unmodified: fp16 on disk, fp32 in use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast


def export_model(model: Any, weights: dict[str, Tensor], tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (without the tied head), configuration, tokenizer and Qwen3's recommended sampling settings."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {k: w.to(torch.float16).contiguous() for k, w in weights.items()}
    partial = folder / "model.safetensors.partial"
    save_file(half, partial, {"format": "pt"})
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
