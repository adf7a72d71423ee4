"""A target that shares nothing with tiny-qwen3 but the architecture, and a draft model for it.

Random weights, a token for each byte, a padded head, and a bias that lets spans close and texts end.
"""

from __future__ import annotations

from pathlib import Path

import torch
from engine.models import byte_tokenizer, edit_json, reference_model

CONTEXT = 2048


def write_pair(folder: Path) -> tuple[str, str]:
    """Folders of a target and of a draft model with the same 261 tokens, as names for `load_target`."""
    return _write(folder / "other", seed=3, layers=2), _write(folder / "other-draft", seed=4, layers=1)


def _write(folder: Path, *, seed: int, layers: int) -> str:
    tokenizer = byte_tokenizer()
    model = reference_model(
        seed, sharpness=2.0, vocab_size=272, num_hidden_layers=layers, max_position_embeddings=CONTEXT
    )
    close = tokenizer.convert_tokens_to_ids("</think>")
    with torch.no_grad():
        # one feature that every token has, read by two rows of the head: a bias, which the architecture has none of
        model.get_input_embeddings().weight[:, 0] = 4.0
        model.get_output_embeddings().weight[:, 0] = 0.0
        model.get_output_embeddings().weight[[close, tokenizer.eos_token_id], 0] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    edit_json(folder / "generation_config.json", eos_token_id=tokenizer.eos_token_id)
    return str(folder)
