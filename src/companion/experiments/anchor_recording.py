"""The drafts at all anchors as a file of some 40 bytes an anchor, for statistics and for replays at any depth.

Exact: the text, its phases, the drafted tokens, which were accepted. Rounded to ``DIGITS`` decimals: probabilities,
entropies, and logits of the confidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from companion.compact import PHASES, load_provenance, read_columns, restored, rounded, write_columns
from companion.experiments.anchor_blocks import SATURATED, Blocks
from companion.protocols import Phase
from companion.training.corpus import Domain, Mode

FORMAT = "companion.anchors/1"
DIGITS = 2
RATES = ("q", "p", "chance", "overlap", "along", "entropy")  # columns of `Blocks`, all >= 0


@dataclass(frozen=True, slots=True)
class Anchored:
    """One response of the target, and the blocks drafted at its tokens 0, n, 2n, ..., n = the recording's ``every``."""

    prompt_id: str
    domain: Domain
    mode: Mode
    prompt_length: int
    tokens: list[int]  # [L] the response
    phases: list[Phase]  # [L]
    ended: Literal["stop", "length"]
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class Recording:
    """What one drafter drafted along the target's responses; ``depth`` tokens at each anchor."""

    responses: list[Anchored]
    depth: int
    every: int
    stops: tuple[int, ...]  # tokens that end a response
    provenance: dict[str, Any]

    @property
    def anchors(self) -> int:
        return sum(len(r.blocks.drafted) for r in self.responses)

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        header = {
            "format": FORMAT,
            "provenance": self.provenance,
            "depth": self.depth,
            "every": self.every,
            "stops": list(self.stops),
            "responses": [
                (r.prompt_id, r.domain, r.mode, r.prompt_length, r.ended, len(r.tokens), len(r.blocks.drafted))
                for r in self.responses
            ],
            "shifted": [round(r.blocks.shifted, 3) for r in self.responses],
        }
        blocks = Blocks.concat([r.blocks for r in self.responses])
        columns = {
            "tokens": _planes([token for r in self.responses for token in r.tokens]),
            "phases": np.array([PHASES.index(p) for r in self.responses for p in r.phases], dtype=np.uint8),
            "drafted": _planes(blocks.drafted.ravel()),
            "accepted": np.packbits(blocks.accepted, axis=1),
            **{name: rounded(getattr(blocks, name).ravel(), DIGITS) for name in RATES},
        }
        if blocks.confidence is not None:
            columns["confidence"] = rounded((blocks.confidence + SATURATED).ravel(), DIGITS)
        write_columns(path, header, columns)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file; ValueError when it is not a whole recording."""
        header, columns = read_columns(path, FORMAT)
        depth: int = header["depth"]
        tokens, phases = _Pieces(_ids(columns["tokens"]).tolist()), _Pieces(columns["phases"].tolist())
        table: dict[str, NDArray[Any]] = {
            "drafted": _ids(columns["drafted"]).reshape(-1, depth),
            "accepted": np.unpackbits(columns["accepted"], axis=1, count=depth).astype(bool),
            **{name: np.reshape(restored(columns[name], DIGITS), (-1, depth)) for name in RATES},
        }
        if "confidence" in columns:
            table["confidence"] = np.reshape(restored(columns["confidence"], DIGITS), (-1, depth)) - SATURATED
        responses, start = [], 0
        for described, shifted in zip(header["responses"], header["shifted"], strict=True):
            prompt_id, domain, mode, prompt_length, ended, length, anchors = described
            own: dict[str, Any] = {name: values[start : start + anchors] for name, values in table.items()}
            blocks = Blocks(**{"confidence": None, **own}, shifted=shifted)
            start += anchors
            text, names = tokens.next(length), [PHASES[i] for i in phases.next(length)]
            responses.append(Anchored(prompt_id, domain, mode, prompt_length, text, names, ended, blocks))
        return cls(responses, depth, header["every"], tuple(header["stops"]), header["provenance"])


def provenance_of(path: Path) -> dict[str, Any]:
    """Where a recording came from, without reading its rows."""
    return load_provenance(path, FORMAT)


class _Pieces:
    """A list handed out piece by piece."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values: Iterator[int] = iter(values)

    def next(self, count: int) -> list[int]:
        return [next(self.values) for _ in range(count)]


def _planes(ids: Iterable[int] | NDArray[np.int64]) -> NDArray[np.uint8]:  # [n] -> [4, n]
    """Token ids byte by byte: the high ones are all alike and compress to nothing."""
    return np.fromiter(ids, dtype="<u4").view(np.uint8).reshape(-1, 4).T.copy()


def _ids(planes: NDArray[np.uint8]) -> NDArray[np.int64]:  # [4, n] -> [n]
    return np.ascontiguousarray(planes.T).view("<u4").ravel().astype(np.int64)
