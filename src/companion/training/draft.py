"""The draft model: a second, smaller Qwen3 that learns the target's own distribution on the target's own output."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3ForCausalLM

from companion.engine.load import find_model
from companion.provenance import write_json

from .batches import Batch, Encoded, Step, bucket, steps
from .checkpoint import load_weights
from .export import export_model
from .loop import Schedule, TrainResult, fit
from .regenerate import Regeneration, read_traces, regenerate
from .target import Architecture, claim_folder

OUTPUT = "target_output.jsonl"


@dataclass(frozen=True)
class DraftConfig:
    """The recipe of the shipped draft model."""

    seed: int = 1
    architecture: Architecture = field(
        default_factory=lambda: Architecture(hidden=128, layers=2, mlp=352, heads=4, kv_heads=2, head_dim=32)
    )
    schedule: Schedule = field(default_factory=lambda: Schedule(steps=800, constant_until=0.3, warmup=20))
    traces: Regeneration = field(default_factory=Regeneration)
    overlap_weight: float = 0.5  # of 1 - sum min(p, q), the rejection probability; the rest goes to KL(p || q)
    tokens_per_batch: int = 2048
    batches_per_step: int = 2
    workers: int = 2
    threads: int = 1


@dataclass(frozen=True)
class _DraftTask:
    config: DraftConfig
    target_folder: str
    output: str

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast.from_pretrained(self.target_folder)

    @cached_property
    def target(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            self.target_folder, dtype=torch.float32, attn_implementation="eager"
        ).requires_grad_(False)

    @cached_property
    def encoded(self) -> list[Encoded]:
        traces = read_traces(Path(self.output))[: self.config.traces.samples]
        return [Encoded(t.prompt + t.response, [0.0] * len(t.prompt) + [1.0] * len(t.response)) for t in traces]

    def model(self) -> Module:
        torch.manual_seed(self.config.seed)
        config = self.config.architecture.config(self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)
        config._attn_implementation = "eager"
        return Qwen3ForCausalLM(config)

    def pool(self, index: int) -> list[Step]:
        """One pass over the target's output, in an order of its own."""
        order = f"{self.config.seed}/{index}"
        batches = bucket(self.encoded, self.config.tokens_per_batch, self.tokenizer.pad_token_id, order)
        return steps(batches, self.config.batches_per_step)

    def loss(self, model: Module, batch: Batch) -> tuple[Tensor, float]:
        counts = batch.weights[:, 1:] > 0
        with torch.no_grad():
            log_p = _log_probs(self.target, batch.ids, counts)
        log_q = _log_probs(model, batch.ids, counts)
        return distillation_loss(log_p, log_q, self.config.overlap_weight), batch.weight


def _log_probs(
    model: Any,
    ids: Tensor,  # [B, L]
    counts: Tensor,  # [B, L-1] bool
) -> Tensor:  # [N, V]
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1]
    logits: Tensor = model.lm_head(hidden[counts])
    return logits.log_softmax(-1)


def distillation_loss(
    log_p: Tensor,  # [N, V] target
    log_q: Tensor,  # [N, V] draft model
    overlap_weight: float,
) -> Tensor:
    """Sum over rows of (1 - w) KL(p || q) + w (1 - sum_v min(p, q)).

    The second term is the probability that the target rejects a token drawn from q (paper, Eq. 8), the first keeps
    gradients alive where the two barely overlap.
    """
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum(-1)
    rejection = 1 - torch.minimum(p, log_q.exp()).sum(-1)
    return ((1 - overlap_weight) * kl + overlap_weight * rejection).sum()


def train_draft(config: DraftConfig | None = None, out_dir: str | Path = "runs/draft") -> TrainResult:
    """Sample the target's output, train the draft model on it, export it to ``out_dir/model``; resumable throughout.

    Raises ValueError when ``out_dir`` holds a run of another recipe or the target has no weights.
    """
    config, folder = config or DraftConfig(), Path(out_dir)
    model_folder = find_model(config.traces.target)
    folder.mkdir(parents=True, exist_ok=True)
    claim_folder(folder, asdict(config) | {"target_weights": model_folder.describe()["weights_sha256"]})
    regenerate(config.traces, folder / OUTPUT, config.workers)
    task = _DraftTask(config, str(model_folder.path), str(folder / OUTPUT))
    result = fit(task, config.schedule, folder, config.workers, config.threads)
    if result.finished:
        export_model(task.model(), load_weights(folder), task.tokenizer, folder / "model")
        write_json(folder / "model" / "recipe.json", asdict(config))
    return result
