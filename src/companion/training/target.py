"""tiny-qwen3: a small Qwen3 that thinks before it answers, trained from nothing on the procedural corpus."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from companion.engine.load import find_model
from companion.provenance import write_atomic, write_json

from .batches import Batch, Step, bucket, encode, steps
from .checkpoint import load_weights
from .corpus import DOMAINS, OVERLAP, SHARES, Domain, held_out_samples, training_sample
from .export import export_model, rounding_agreement
from .loop import Schedule, TrainResult, fit
from .tokenizer import VOCAB_SIZE, corpus_texts, train_tokenizer

ROUNDING_PROMPTS = 20  # per domain, to compare fp16 with fp32 weights at the end


@dataclass(frozen=True)
class Architecture:
    """Sizes of a tiny Qwen3; the defaults are the shipped target's."""

    hidden: int = 160
    layers: int = 8
    mlp: int = 448
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    vocab_size: int = VOCAB_SIZE
    context: int = 2048
    rope_theta: float = 1e4

    def config(self, eos_id: int, pad_id: int) -> Qwen3Config:
        """The transformers configuration."""
        return Qwen3Config(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            intermediate_size=self.mlp,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.context,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            tie_word_embeddings=True,
            bos_token_id=pad_id,
            eos_token_id=eos_id,
            pad_token_id=pad_id,
            attention_dropout=0.0,
            initializer_range=0.02,
        )


@dataclass(frozen=True)
class TargetConfig:
    """The whole recipe of the shipped target: the defaults are the run whose weights are in ``data/tiny-qwen3``."""

    seed: int = 0
    architecture: Architecture = field(default_factory=Architecture)
    schedule: Schedule = field(default_factory=lambda: Schedule(steps=3200, constant_until=0.2))
    shares: dict[Domain, float] = field(default_factory=lambda: dict(SHARES))
    think_share: float = 0.5
    overlap: float = OVERLAP  # share of answers without thinking that are written as a thought would be
    start: str | None = None  # a target whose weights and tokenizer are trained on; None: from nothing
    digit_weight: float = 2.0
    tokens_per_batch: int = 2048
    batches_per_step: int = 2
    pool_samples: int = 2048
    tokenizer_samples: int = 10_000
    workers: int = 2
    threads: int = 1


@dataclass(frozen=True)
class _TargetTask:
    config: TargetConfig
    tokenizer_folder: str

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast.from_pretrained(self.tokenizer_folder)

    def model(self) -> Module:
        if self.config.start is not None:
            path = str(find_model(self.config.start).path)
            return Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
        torch.manual_seed(self.config.seed)
        config = self.config.architecture.config(self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)
        # on a CPU explicit matrix products train faster than the fused attention's backward pass
        config._attn_implementation = "eager"
        return Qwen3ForCausalLM(config)

    def pool(self, index: int) -> list[Step]:
        c = self.config
        indices = range(index * c.pool_samples, (index + 1) * c.pool_samples)
        samples = [training_sample(c.seed, i, c.think_share, c.overlap, c.shares) for i in indices]
        encoded = encode(samples, self.tokenizer, c.digit_weight)
        batches = bucket(encoded, c.tokens_per_batch, self.tokenizer.pad_token_id, f"{c.seed}/{index}")
        return steps(batches, c.batches_per_step)

    def loss(self, model: Module, batch: Batch) -> tuple[Tensor, float]:
        return weighted_cross_entropy(model, batch.ids, batch.weights), batch.weight


def weighted_cross_entropy(
    model: Any,
    ids: Tensor,  # [B, L]
    weights: Tensor,  # [B, L], of each token as a prediction target
) -> Tensor:
    """Sum of weights times cross-entropy; the head runs only on rows whose next token counts."""
    # right padding needs no mask under causal attention
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1]
    counts = weights[:, 1:] > 0
    logits = model.lm_head(hidden[counts])
    return (F.cross_entropy(logits, ids[:, 1:][counts], reduction="none") * weights[:, 1:][counts]).sum()


def train_target(config: TargetConfig | None = None, out_dir: str | Path = "runs/target") -> TrainResult:
    """Train tiny-qwen3 and leave a folder that transformers loads; resumes what it finds in ``out_dir``.

    ``out_dir`` gets tokenizer and model as ``out_dir/model`` (fp16 safetensors), the recipe as ``recipe.json``, the log
    as ``log.jsonl`` and a checkpoint. Raises ValueError when ``out_dir`` holds a run of another recipe, for a share
    outside [0, 1], and for an unknown model to start from.
    """
    config, folder = config or TargetConfig(), Path(out_dir)
    for name in ("overlap", "think_share"):
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise ValueError(f"{name} must be a share between 0 and 1, got {getattr(config, name)}")
    if config.start is not None:
        find_model(config.start).weight_files()
    folder.mkdir(parents=True, exist_ok=True)
    claim_folder(folder, asdict(config))
    tokenizer_folder = folder / "tokenizer"
    if not (tokenizer_folder / "tokenizer.json").exists():
        if config.start is not None:
            started = PreTrainedTokenizerFast.from_pretrained(str(find_model(config.start).path))
            started.save_pretrained(tokenizer_folder)
        else:
            texts, sizes = corpus_texts(config.seed, config.tokenizer_samples), config.architecture
            train_tokenizer(texts, sizes.vocab_size, sizes.context).save_pretrained(tokenizer_folder)
    task = _TargetTask(config, str(tokenizer_folder))
    result = fit(task, config.schedule, folder, config.workers, config.threads)
    if result.finished:
        model, weights, tokenizer = task.model(), load_weights(folder), task.tokenizer
        export_model(model, weights, tokenizer, folder / "model")
        prompts = [s.prompt for d in DOMAINS for s in held_out_samples(d, "think", ROUNDING_PROMPTS)]
        agreement = rounding_agreement(model, weights, tokenizer, folder / "model", prompts)
        write_json(folder / "model" / "recipe.json", asdict(config) | {"fp16": agreement})
    return result


def claim_folder(folder: Path, recipe: dict[str, Any], name: str = "recipe.json") -> None:
    """Write the recipe, or check that the one in ``folder`` is the same (ValueError)."""
    path, text = folder / name, json.dumps(recipe, indent=1, sort_keys=True)
    if path.exists() and path.read_text() != text:
        raise ValueError(f"{folder} was made by another recipe (its {name}): choose another folder, or delete it")
    write_atomic(path, text)
