"""Targets and drafters given by tables: any next-token law, as a function of the whole text, in fp64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion.engine.sampling import distribution
from companion.protocols import Context, Draft, KVCache, RaggedBatch, Sampling, TargetOutput

CPU = torch.device("cpu")
Row = Sequence[float] | NDArray[np.float64]  # [V]
Law = Callable[[tuple[int, ...]], Row]


class TableCache:
    """The text of each slot, so that a wrong rollback is a wrong history."""

    def __init__(self, slots: int, capacity: int) -> None:
        self.capacity = capacity
        self.texts: list[list[int]] = [[] for _ in range(slots)]

    def rollback(self, slot: int, length: int) -> None:
        assert 0 <= length <= len(self.texts[slot])
        del self.texts[slot][length:]


class TableTarget:
    """A target whose next-token law is any function of the whole text, in fp64; it also keeps count of its rows."""

    name, device, max_context = "table", CPU, 64

    def __init__(self, vocab_size: int, law: Law) -> None:
        self.vocab_size, self.law = vocab_size, law
        self.logits: dict[tuple[int, ...], Tensor] = {}
        self.deepest = 0  # tokens of one request in one forward after its prefill

    def new_cache(self, slots: int, capacity: int) -> TableCache:
        return TableCache(slots, capacity)

    def forward(self, batch: RaggedBatch, cache: KVCache, taps: Sequence[int] = ()) -> TargetOutput:
        assert isinstance(cache, TableCache)
        rows, tokens, positions = [], batch.tokens.tolist(), batch.positions.tolist()
        for slot, start, stop, length in zip(batch.slots, batch.starts, batch.starts[1:], batch.lengths, strict=False):
            text = cache.texts[slot]
            assert length == len(text), "the engine continues from another length than the cache holds"
            for i in range(start, stop):
                assert positions[i] == len(text)
                text.append(tokens[i])
                rows.append(self._row(tuple(text)))
            assert len(text) <= cache.capacity
            self.deepest = max(self.deepest, stop - start if length else 0)
        logits = torch.stack(rows)
        if batch.logit_rows is not None:
            logits = logits[batch.logit_rows]
        features = torch.stack([batch.tokens, batch.positions], -1)[:, None] if taps else None
        return TargetOutput(logits, features)

    def _row(self, text: tuple[int, ...]) -> Tensor:
        if text not in self.logits:
            self.logits[text] = torch.tensor(np.asarray(self.law(text))).log()
        return self.logits[text]


class TableDrafter:
    """A drafter given by a table: sampled from it, its argmax with a one-hot q, or (wrongly) its argmax with soft q.

    ``ends_after`` ends a draft once this token was drawn. Slot confidences are a function of the text before the slot.
    """

    name, max_context = "table-drafter", None
    taps: Sequence[int] = ()

    def __init__(
        self,
        vocab_size: int,
        law: Law,
        mode: str = "sampled",
        *,
        max_depth: int = 15,
        ends_after: int | None = None,
        confidence: Callable[[tuple[int, ...]], float] | None = None,
    ) -> None:
        self.vocab_size, self.law, self.mode, self.max_depth = vocab_size, law, mode, max_depth
        self.ends_after = ends_after
        self.confidence = confidence or (lambda text: noise(text, 7))
        self.deterministic = mode == "greedy"
        self.known: dict[tuple[tuple[int, ...], Sampling], tuple[Tensor, float]] = {}

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        return [self._one(context, depth) for context, depth in zip(contexts, depths, strict=True)]

    def _one(self, context: Context, depth: int) -> Draft:
        text, rows, confidence = list(context.tokens), [], []
        for _ in range(depth):
            q, estimate = self._row(tuple(text), context.sampling)
            confidence.append(estimate)
            if self.mode == "sampled" and not context.sampling.greedy:
                token = context.draws.token(q, f"draft/{context.round}", len(text))
            else:
                token = int(q.argmax())
            text.append(token)
            rows.append(q)
            if token == self.ends_after:
                break
        probs = torch.stack(rows) if rows and self.mode != "greedy" else None
        return Draft(text[len(context.tokens) :], probs, confidence[: len(rows)])

    def _row(self, text: tuple[int, ...], sampling: Sampling) -> tuple[Tensor, float]:
        if (text, sampling) not in self.known:
            logits = torch.tensor(np.asarray(self.law(text))).log()[None]
            self.known[text, sampling] = distribution(logits, sampling)[0], self.confidence(text)
        return self.known[text, sampling]

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None: ...
    def reset(self, request: int) -> None: ...


def noise(text: tuple[int, ...], salt: int) -> float:
    """A fixed number in [0, 1) for each text."""
    return float(np.random.default_rng([salt, len(text), *text]).random())


def random_law(vocab_size: int, seed: int, *, zeros: bool = False) -> Law:
    """A law that depends on the whole text; with ``zeros`` about a third of the entries are impossible."""
    known: dict[tuple[int, ...], Row] = {}

    def law(text: tuple[int, ...]) -> Row:
        if text not in known:
            generator = np.random.default_rng([seed, len(text), *text])
            row = generator.dirichlet(np.ones(vocab_size))
            if zeros:
                row = np.where(generator.random(vocab_size) < 1 / 3, 0.0, row)
                row = row / row.sum() if row.sum() else np.ones(vocab_size) / vocab_size
            known[text] = row
        return known[text]

    return law


def sparse_law(vocab_size: int, seed: int, share: float = 0.25) -> Law:
    """Mostly one-hot rows, so that long outputs have few branches; a ``share`` of the texts has a choice of two."""

    known: dict[tuple[int, ...], Row] = {}

    def law(text: tuple[int, ...]) -> Row:
        if text not in known:
            generator = np.random.default_rng([seed, len(text), *text])
            first, second = generator.permutation(vocab_size)[:2]
            row = np.zeros(vocab_size)
            row[first] = generator.uniform(0.3, 0.9) if generator.random() < share else 1.0
            row[second] += 1.0 - row[first]
            known[text] = row
        return known[text]

    return law


def script_law(vocab_size: int, prompt_length: int, script: Sequence[int]) -> Law:
    """A target that writes ``script`` after its prompt, and token 0 from then on."""

    def law(text: tuple[int, ...]) -> Row:
        row = np.zeros(vocab_size)
        row[[*script, *[0] * 99][len(text) - prompt_length]] = 1.0
        return row

    return law
