"""Tiny Qwen3 models in the very layout of the hub: configs of transformers 4, bf16, a cache of snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.models import byte_tokenizer, reference_model
from safetensors.torch import load_file, save_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub_folder(folder: Path, *, tied: bool, twice: bool = False, shards: bool = False, dtype: Any) -> Path:
    """A tiny model as the files of Qwen/Qwen3-* lie on the hub.

    ``twice``: the tied head is in the file as well, as in that of Qwen3-0.6B. 11 rows of the vocabulary are padding.
    """
    model = reference_model(3, vocab_size=272, tie_word_embeddings=tied).to(dtype)
    model.save_pretrained(folder, **({"max_shard_size": "60KB"} if shards else {}))
    if twice:
        weights = load_file(folder / "model.safetensors")
        save_file(
            weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}, folder / "model.safetensors"
        )
    byte_tokenizer().save_pretrained(folder)
    template = (folder / "chat_template.jinja").read_text()  # the hub's lies in tokenizer_config.json
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = model.config
    written = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 256,
        "eos_token_id": 258,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": 128,
        "max_window_layers": config.num_hidden_layers,
        "model_type": "qwen3",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 272,
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2))
    generation = {"bos_token_id": 256, "do_sample": True, "eos_token_id": [258, 256], "top_k": 20, "top_p": 0.95}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def hub_cache(root: Path, name: str, folder: Path, commit: str = COMMIT) -> Path:
    """Put ``folder`` into a cache of the hub as its branch main; returns the snapshot."""
    place = root / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    return snapshot
