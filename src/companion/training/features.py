"""What a drafter reads of the target, computed once and stored: hidden states before the head, never logits.

A token costs (m + 1) d numbers: the outputs of m layers and the last hidden state after the final norm, from which the
head makes the target's distribution again. Logits would cost V. Shards are safetensors files, read through memory maps,
so that a training process touches only the rows it needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from companion.engine.load import TextTarget, load_target
from companion.engine.target import ragged
from companion.parallel import ordered_map
from companion.provenance import write_atomic

from .regenerate import Trace

INDEX = "index.json"
SHARD = 240  # traces in one file


@dataclass(frozen=True)
class FeatureSpec:
    """Which states of which target, and how they are rounded."""

    target: str
    target_weights: dict[str, str]  # file name -> sha256; features of another revision are other features
    layers: tuple[int, ...]  # output of decoder layer i; -1: the embedding
    hidden: int
    dtype: str = "float16"

    @property
    def bytes_per_token(self) -> int:
        return (len(self.layers) + 1) * self.hidden * getattr(torch, self.dtype).itemsize


def storage(spec: FeatureSpec, traces: Sequence[Trace]) -> tuple[int, int]:
    """(tokens, bytes) of the features of these traces."""
    tokens = sum(len(t.prompt) + len(t.response) for t in traces)
    return tokens, tokens * spec.bytes_per_token


class FeatureStore:
    """Features of numbered traces in a folder; `row` reads one trace's through the memory map."""

    def __init__(self, folder: Path, spec: FeatureSpec, traces: Sequence[Trace]) -> None:
        self.folder, self.spec, self.traces = folder, spec, traces

    def write(self, workers: int = 1, device: str = "cpu") -> None:
        """Compute what is missing, shard by shard, in several processes; a killed run goes on at the next shard.

        ValueError when the folder holds features of other weights, layers or precision, or a file that is cut off.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        index, record = self.folder / INDEX, json.loads(json.dumps(asdict(self.spec)))
        if index.exists() and json.loads(index.read_text()) != record:
            raise ValueError(
                f"{self.folder} holds features of another target, revision or choice of layers: choose another folder, "
                "or delete it"
            )
        write_atomic(index, json.dumps(record, indent=1))
        missing = [s for s in range(0, len(self.traces), SHARD) if not self._complete(s)]
        if not missing:
            return
        shards = [(self._shard(start), self.traces[start : start + SHARD]) for start in missing]
        todo = ordered_map(partial(_write_shard, self.spec, device), shards, workers)
        for _ in tqdm(todo, total=len(shards), desc="target features", unit="shard", disable=None):
            pass

    def row(self, index: int) -> tuple[Tensor, Tensor]:
        """Trace ``index``: outputs of the layers [T, m, d] and last hidden states [T, d], fp32."""
        start = index - index % SHARD
        a, b = self._offsets[index], self._offsets[index + 1]
        shift = self._offsets[start]
        file = self._open(start)
        taps, last = (file.get_slice(name)[a - shift : b - shift] for name in ("taps", "last"))
        return taps.float(), last.float()

    def _complete(self, start: int) -> bool:
        """Whether a shard has the rows of its traces; of a store that grew, the last one may have too few."""
        if not self._shard(start).exists():
            return False
        rows: int = self._open(start).get_slice("last").get_shape()[0]
        self._files.clear()  # a shard that is written again is opened again
        return rows >= self._offsets[min(start + SHARD, len(self.traces))] - self._offsets[start]

    @cached_property
    def _offsets(self) -> list[int]:
        offsets = [0]
        for t in self.traces:
            offsets.append(offsets[-1] + len(t.prompt) + len(t.response))
        return offsets

    @cached_property
    def _files(self) -> dict[int, Any]:
        return {}

    def _open(self, start: int) -> Any:
        if start not in self._files:
            path = self._shard(start)
            try:
                self._files[start] = safe_open(path, "pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(
                    f"{path} is not a whole feature file ({error}); delete it, and the same command makes it again"
                ) from error
        return self._files[start]

    def _shard(self, start: int) -> Path:
        return self.folder / f"{start:08d}.safetensors"


def _write_shard(spec: FeatureSpec, device: str, shard: tuple[Path, Sequence[Trace]]) -> None:
    path, traces = shard
    target, dtype = _load(spec.target, device), getattr(torch, spec.dtype)
    rows = [features(target, t.prompt + t.response, spec.layers) for t in traces]
    tensors = {name: torch.cat([row[i] for row in rows]).to("cpu", dtype) for i, name in enumerate(("taps", "last"))}
    partial_file = path.with_suffix(".partial")
    save_file(tensors, partial_file)
    os.replace(partial_file, path)


@cache
def _load(name: str, device: str) -> TextTarget:
    return load_target(name, device=device)


def features(target: TextTarget, tokens: Sequence[int], layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Outputs of ``layers`` [T, m, d] and the last hidden state after the final norm [T, d] of one text."""
    last = target.shape.layers - 1
    batch = ragged([(0, 0, list(tokens))], target.device)
    batch.logit_rows = torch.tensor([len(tokens) - 1], device=target.device)  # the head's work is not needed
    output = target.forward(batch, target.new_cache(1, len(tokens)), [*layers, last])
    assert output.features is not None
    return output.features[:, :-1], target.final_norm(output.features[:, -1])
