"""What the training loop asks of a drafter: a fresh model, batches of texts with their stored features, and a loss."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from companion.drafters.dspark.checkpoint import save_dspark
from companion.drafters.dspark.config import DSparkConfig
from companion.drafters.dspark.model import DSparkModel
from companion.drafters.eagle3.checkpoint import save_eagle3
from companion.drafters.eagle3.config import Eagle3Config
from companion.drafters.eagle3.model import Eagle3
from companion.drafters.medusa import MedusaConfig, MedusaModel, save_medusa
from companion.engine.load import TextTarget, load_target

from .anchors import pack_blocks, sample_anchors
from .drafted_prefix import drafted_confidence
from .drafter_loss import LossSums, block_states, loss_sums, position_weights, supervised_slots
from .eagle3_loss import eagle3_loss
from .features import FeatureSpec, FeatureStore
from .recipe import DrafterConfig
from .regenerate import Trace, read_traces

DrafterModel = DSparkModel | Eagle3 | MedusaModel
FROZEN = {"embed_tokens.weight": "embedding", "lm_head.weight": "head"}  # the target's, never trained


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
class DrafterTask:
    """Training of ``config`` on the traces and features in two places; `companion.training.loop.Task`."""

    config: DrafterConfig
    spec: FeatureSpec
    traces_file: str
    features_folder: str
    device: str = "cpu"  # where the target runs, if the recipe asks for it

    @cached_property
    def store(self) -> FeatureStore:
        traces = read_traces(Path(self.traces_file))[: self.config.traces.samples]
        return FeatureStore(Path(self.features_folder), self.spec, traces)

    @cached_property
    def target(self) -> TextTarget:
        return load_target(self.spec.target, device=self.device)

    def model(self) -> nn.Module:
        target = load_target(self.spec.target)
        torch.manual_seed(self.config.seed)
        model = new_drafter(self.config, target)
        parameters = dict(model.named_parameters())
        for name, parameter in parameters.items():
            if parameter.ndim == 2 and name != "heads.weight":  # Medusa's heads begin at zero
                nn.init.normal_(parameter, std=0.02)
        with torch.no_grad():
            for name in FROZEN.keys() & parameters.keys():
                parameters[name].copy_(getattr(target, FROZEN[name]))
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
        device = next(model.parameters()).device
        ids, mask, taps, last = (t.to(device, non_blocking=True) for t in self._texts(batch))
        if isinstance(model, Eagle3):
            lengths = torch.tensor([_length(self.store.traces[i]) for i in batch.rows], device=device)
            found = eagle3_loss(model, ids, taps, last, mask, lengths)
            return found.total * found.tokens, float(found.tokens)
        assert isinstance(model, DSparkModel | MedusaModel)
        sums = self._slot_losses(model, batch, ids, mask, taps, last)
        a = self.config.alphas
        return a.ce * sums.ce + a.l1 * sums.l1 + a.confidence * sums.confidence, float(sums.weight)

    def _slot_losses(
        self,
        model: DSparkModel | MedusaModel,
        batch: TextBatch,
        ids: Tensor,  # [B, T]
        mask: Tensor,  # [B, T]
        taps: Tensor,  # [B, T, m, d]
        last: Tensor,  # [B, T, d]
    ) -> LossSums:
        """Losses of a model that drafts blocks from anchors, its confidence head taught as the recipe says."""
        c = self.config
        anchors, real = sample_anchors(mask, c.anchors, _generator(batch.key))
        blocks = pack_blocks(ids, mask, anchors, real, model.config)
        weights = position_weights(c.position_weight, model.config.proposal_length)
        if isinstance(model, MedusaModel):
            taps = taps[:, :, -1:]
        hidden = block_states(model, blocks, taps)
        slots = supervised_slots(model, blocks, taps, last, hidden)
        outcomes = _generator(f"{batch.key}/outcomes") if c.confidence_label == "sampled" else None
        sums, _ = loss_sums(slots, weights, outcomes)
        if c.confidence_prefix == "drafted":
            traces = [self.store.traces[i] for i in batch.rows]
            found, weight = drafted_confidence(
                model,
                self.target,
                self.target.eos_token_ids,
                [t.prompt + t.response for t in traces],
                anchors,
                blocks,
                hidden,
                weights,
                _generator(f"{batch.key}/drafts"),
                outcomes,
            )
            # fewer slots are judged than the text supervises: their mean counts as the text's would
            sums = sums._replace(confidence=found * sums.weight / weight.clamp_min(1e-6))
        return sums

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


def _generator(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(random.Random(key).getrandbits(63))


def new_drafter(config: DrafterConfig, target: TextTarget) -> DrafterModel:
    """An untrained drafter of this recipe for ``target``; the mask token is the target's padding token."""
    shape = target.shape
    if config.kind == "eagle3":
        own = DSparkConfig.for_target(
            shape, layers=1, mlp_width=config.mlp, block_size=1, target_layer_ids=(0,), mask_token_id=0
        ).shape
        return Eagle3(Eagle3Config(own, config.mlp, config.target_layers, shape.layers, config.block_size))
    if config.kind == "medusa":
        heads, layer = config.block_size, config.target_layers[-1]
        return MedusaModel(MedusaConfig(shape, heads, layer, config.rank, config.head, config.confidence))
    if target.tokenizer is None or target.tokenizer.pad_token_id is None:
        raise ValueError(f"{target.name} has no padding token, which a drafter needs as its mask token")
    return DSparkModel(
        DSparkConfig.for_target(
            shape,
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


def save_drafter(model: DrafterModel, folder: Path) -> None:
    """Write the checkpoint of any kind in fp16, as `companion.load_drafter` reads it."""
    if isinstance(model, Eagle3):
        save_eagle3(model, folder, dtype=torch.float16)
    elif isinstance(model, MedusaModel):
        save_medusa(model, folder, dtype=torch.float16)
    else:
        save_dspark(model, folder, dtype=torch.float16)
