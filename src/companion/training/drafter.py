"""Train DSpark, DFlash and Eagle3 drafters on the target's own output and stored hidden states."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from companion.drafters.dspark.checkpoint import save_dspark
from companion.drafters.dspark.config import DSparkConfig, HeadType
from companion.drafters.dspark.model import DSparkModel
from companion.drafters.eagle3.checkpoint import save_eagle3
from companion.drafters.eagle3.config import Eagle3Config
from companion.drafters.eagle3.model import Eagle3
from companion.engine.load import TextTarget, find_model, load_target
from companion.provenance import write_json

from .anchors import pack_blocks, sample_anchors
from .checkpoint import load_weights
from .drafter_loss import Alphas, PositionWeight, loss_sums, position_weights, supervised_slots
from .eagle3_loss import eagle3_loss
from .features import FeatureSpec, FeatureStore, storage
from .loop import Schedule, TrainResult, fit
from .regenerate import Regeneration, Trace, read_traces, regenerate
from .target import claim_folder

Kind = Literal["dspark", "dflash", "eagle3"]
TRACES, FEATURES = "target_output.jsonl", "features"


@dataclass(frozen=True)
class DrafterConfig:
    """The recipe of a drafter. DFlash is DSpark without heads, trained on cross-entropy alone as its authors' code is.

    ``seed`` decides initial weights, the order of texts and their anchors; the traces have a seed of their own, so that
    drafters compared with each other learn from the same text.
    """

    kind: Kind = "dspark"
    seed: int = 0
    traces: Regeneration = field(default_factory=lambda: Regeneration(seed=2, samples=2400, think_share=0.0))
    target_layers: tuple[int, ...] = (1, 2, 3, 4, 5)  # spread as the authors spread them: 1 to L - 3
    layers: int = 2  # Eagle3 has one
    mlp: int = 448
    block_size: int = 7  # Eagle3: steps of training-time test
    head: HeadType = "vanilla"
    rank: int = 32
    confidence: bool = True
    anchor_predicts: bool = True
    anchors: int = 24  # per text
    position_weight: PositionWeight = "code"
    alphas: Alphas = field(default_factory=Alphas)
    texts_per_batch: int = 6
    batches_per_step: int = 2
    schedule: Schedule = field(default_factory=lambda: Schedule(steps=800, warmup=20, constant_until=0.3))

    def __post_init__(self) -> None:
        if min(self.layers, self.block_size, self.anchors) < 1:
            raise ValueError("a drafter needs at least 1 layer, 1 token a block and 1 anchor a text")
        if self.kind == "dflash" and (self.rank or self.confidence):
            raise ValueError("DFlash has neither a Markov head nor a confidence head: give rank=0 and confidence=False")


def dflash_config(**changes: object) -> DrafterConfig:
    """The recipe of DFlash beside DSpark's default: the same data, steps and backbone."""
    fixed = {"kind": "dflash", "rank": 0, "confidence": False, "alphas": Alphas(ce=1.0, l1=0.0, confidence=0.0)}
    return DrafterConfig(**{**fixed, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts of one forward, by number; ``key`` seeds their anchors."""

    rows: tuple[int, ...]
    width: int
    key: str

    @property
    def tokens(self) -> int:
        return len(self.rows) * self.width


@dataclass(frozen=True)
class _DrafterTask:
    config: DrafterConfig
    spec: FeatureSpec
    traces_file: str
    features_folder: str

    @cached_property
    def store(self) -> FeatureStore:
        traces = read_traces(Path(self.traces_file))[: self.config.traces.samples]
        return FeatureStore(Path(self.features_folder), self.spec, traces)

    @cached_property
    def target(self) -> TextTarget:
        return load_target(self.spec.target)

    def model(self) -> nn.Module:
        torch.manual_seed(self.config.seed)
        model = new_drafter(self.config, self.target)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        with torch.no_grad():
            model.embed_tokens.weight.copy_(self.target.embedding)
            model.lm_head.weight.copy_(self.target.head)
        return model

    def pool(self, index: int) -> list[tuple[TextBatch, ...]]:
        """One pass over the texts, those of like length together, in an order of its own."""
        c, rng = self.config, random.Random(f"{self.config.seed}/{index}")
        lengths = [len(t.prompt) + len(t.response) for t in self.store.traces]
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i], rng.random()))
        batches = []
        for start in range(0, len(order), c.texts_per_batch):
            rows = tuple(order[start : start + c.texts_per_batch])
            width = -(-max(lengths[i] for i in rows) // 8) * 8
            batches.append(TextBatch(rows, width, f"{c.seed}/{index}/{start}"))
        rng.shuffle(batches)
        return [tuple(batches[i : i + c.batches_per_step]) for i in range(0, len(batches), c.batches_per_step)]

    def loss(self, model: nn.Module, batch: TextBatch) -> tuple[Tensor, float]:
        ids, mask, taps, last = self._texts(batch)
        if isinstance(model, Eagle3):
            lengths = torch.tensor([_length(self.store.traces[i]) for i in batch.rows])
            found = eagle3_loss(model, ids, taps, last, mask, lengths)
            return found.total * found.tokens, float(found.tokens)
        assert isinstance(model, DSparkModel)
        generator = torch.Generator().manual_seed(random.Random(batch.key).getrandbits(63))
        anchors, real = sample_anchors(mask, self.config.anchors, generator)
        slots = supervised_slots(model, pack_blocks(ids, mask, anchors, real, model.config), taps, last)
        weights = position_weights(self.config.position_weight, model.config.proposal_length)
        sums, _ = loss_sums(slots, weights)
        a = self.config.alphas
        return a.ce * sums.ce + a.l1 * sums.l1 + a.confidence * sums.confidence, float(sums.weight)

    def _texts(self, batch: TextBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Token ids and loss mask [B, T], tapped states [B, T, m, d], last states [B, T, d]; zeros behind the end."""
        size, spec = (len(batch.rows), batch.width), self.spec
        ids, mask = torch.zeros(size, dtype=torch.long), torch.zeros(size)
        taps, last = torch.zeros(*size, len(spec.layers), spec.hidden), torch.zeros(*size, spec.hidden)
        for b, i in enumerate(batch.rows):
            trace, n = self.store.traces[i], _length(self.store.traces[i])
            ids[b, :n] = torch.tensor(trace.prompt + trace.response)
            mask[b, len(trace.prompt) : n] = 1.0
            taps[b, :n], last[b, :n] = self.store.row(i)
        return ids, mask, taps, last


def _length(trace: Trace) -> int:
    return len(trace.prompt) + len(trace.response)


def new_drafter(config: DrafterConfig, target: TextTarget) -> DSparkModel | Eagle3:
    """An untrained drafter of this recipe for ``target``; the mask token is the target's padding token."""
    if config.kind == "eagle3":
        shape = DSparkConfig.for_target(
            target.shape, layers=1, mlp_width=config.mlp, block_size=1, target_layer_ids=(0,), mask_token_id=0
        ).shape
        return Eagle3(Eagle3Config(shape, config.mlp, config.target_layers, target.shape.layers, config.block_size))
    assert target.tokenizer is not None
    return DSparkModel(
        DSparkConfig.for_target(
            target.shape,
            layers=config.layers,
            mlp_width=config.mlp,
            block_size=config.block_size if config.anchor_predicts else config.block_size + 1,
            target_layer_ids=config.target_layers,
            mask_token_id=target.tokenizer.pad_token_id,
            markov_rank=config.rank,
            markov_head_type=config.head,
            confidence_head=config.confidence,
            confidence_reads_markov=bool(config.rank),
            anchor_predicts=config.anchor_predicts,
        )
    )


def train_drafter(
    config: DrafterConfig,
    out_dir: str | Path,
    data_dir: str | Path | None = None,
    *,
    workers: int = 2,
    threads: int = 1,
    agree: Callable[[int, int], bool] = lambda tokens, size: True,
) -> TrainResult:
    """Regenerate traces, store features, train, and export to ``out_dir/model`` in DeepSpec's layout.

    ``data_dir`` (default: ``out_dir``) holds traces and features and can be shared by runs of one target and mode mix.
    ``agree`` is asked before features are written, with their tokens and bytes; False ends the run (ValueError).
    Resumable throughout. ValueError when a folder holds another recipe's run or another target's features.
    """
    folder, data = Path(out_dir), Path(data_dir or out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    weights = find_model(config.traces.target).describe()["weights_sha256"]
    claim_folder(folder, asdict(config) | {"target_weights": weights})
    spec = prepare(config, data, workers, agree)
    task = _DrafterTask(config, spec, str(data / TRACES), str(data / FEATURES))
    result = fit(task, config.schedule, folder, workers, threads)
    if result.finished:
        model = task.model()
        model.load_state_dict(load_weights(folder), strict=False)  # the frozen tables are the target's
        save = save_eagle3 if isinstance(model, Eagle3) else save_dspark
        save(model, folder / "model", dtype=torch.float16)  # type: ignore[arg-type]
        write_json(folder / "model" / "recipe.json", asdict(config) | {"target_weights": weights})
    return result


def prepare(
    config: DrafterConfig, data: Path, workers: int = 1, agree: Callable[[int, int], bool] = lambda tokens, size: True
) -> FeatureSpec:
    """Traces and features in ``data``: made where they are missing, checked where they are there."""
    data.mkdir(parents=True, exist_ok=True)
    weights = find_model(config.traces.target).describe()["weights_sha256"]
    traces = regenerate(config.traces, data / TRACES, workers)
    hidden = load_target(config.traces.target).shape.hidden
    spec = FeatureSpec(config.traces.target, weights, config.target_layers, hidden)
    if not agree(*storage(spec, traces)):
        raise ValueError("stopped before the features were written; fewer samples or fewer target layers need less")
    FeatureStore(data / FEATURES, spec, traces).write(workers)
    return spec
