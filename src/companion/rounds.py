"""The Rounds table: one row per round and request, the one record that every metric is computed from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from companion.protocols import Phase

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "companion.rounds/1"


@dataclass(slots=True)
class Round:
    """One verification round of one request, as committed: nothing after a stop token, nothing past the cap.

    ``accepted`` counts accepted draft tokens that were committed. ``rejected`` says that a verified draft was turned
    down, ``bonus`` that a target-made token (correction or bonus) was committed; a round cut by a stop token or by the
    cap (``ended``) has neither when the cut falls inside its accepted drafts. Row k of the per-row lists belongs to the
    target's distribution at draft slot k (0-based); the last one to the token after the verified drafts.
    """

    request: int
    round: int
    position: int  # absolute index of the first drafted token
    drafted: int
    verified: int
    accepted: int
    rejected: bool
    bonus: bool
    tokens: list[int]  # committed; a compact file keeps none
    phases: list[Phase]  # of each committed token
    ended: Literal["stop", "length"] | None = None
    entropy: list[float] = field(default_factory=list)  # [verified + 1] nats, temperature 1, unfiltered
    max_p: list[float] = field(default_factory=list)  # [verified + 1] of the same distribution
    think_end_mass: list[float] = field(default_factory=list)  # [verified + 1] the note's EAT
    served_entropy: list[float] = field(default_factory=list)  # [verified + 1] after temperature and filters
    served_max_p: list[float] = field(default_factory=list)
    confidence: list[float] | None = None  # [drafted] c_k of each slot
    draft_seconds: float = 0.0  # of the whole batch's round
    verify_seconds: float = 0.0
    batch: int = 1  # requests that shared the round's forward
    prompt_id: str | None = None
    domain: str | None = None
    mode: str | None = None  # "think" or "no_think"

    @property
    def committed(self) -> int:
        return len(self.phases)

    def reached(self, k: int) -> bool:
        """Whether verification judged draft slot k (1-based): all earlier slots accepted, none cut off."""
        return k <= self.accepted or (self.rejected and k == self.accepted + 1)


class Rounds(Sequence[Round]):
    """Rows in the order in which they were committed, with where they came from."""

    def __init__(self, rows: Iterable[Round] = (), provenance: Mapping[str, Any] | None = None) -> None:
        self.rows = list(rows)
        self.provenance = dict(provenance) if provenance else None

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> Rounds: ...
    def __getitem__(self, index: int | slice) -> Round | Rounds:
        return Rounds(self.rows[index], self.provenance) if isinstance(index, slice) else self.rows[index]

    def where(self, **values: Any) -> Rounds:
        """Rows whose fields equal the given values, e.g. ``where(domain="math", mode="think")``."""
        return Rounds((r for r in self.rows if all(getattr(r, k) == v for k, v in values.items())), self.provenance)

    @classmethod
    def concat(cls, tables: Iterable[Rounds]) -> Rounds:
        """One table of all rows; requests keep the ids they have. ValueError when they come from different runs."""
        tables = list(tables)
        if any(comparable(table.provenance) != comparable(tables[0].provenance) for table in tables):
            raise ValueError("the tables come from runs with different settings; one provenance cannot speak for all")
        return cls((row for table in tables for row in table), tables[0].provenance if tables else None)

    def to_frame(self) -> pd.DataFrame:
        """A pandas frame, one line per round; lists stay lists."""
        import pandas as pd

        return pd.DataFrame([asdict(r) for r in self.rows], columns=[f.name for f in fields(Round)])

    def save(self, path: Path | str) -> None:
        """Write a whole table at once: a header line with the provenance, then one JSON line per round."""
        path = Path(path)
        with RoundsWriter(path, self.provenance, fresh=True) as writer:
            writer.extend(self.rows)

    @classmethod
    def load(cls, path: Path | str) -> Rounds:
        """Read a table; a file that ends in the middle of a row is refused, with how to go on (ValueError)."""
        path = Path(path)
        header, rows, cut = _read(path)
        if cut:
            raise ValueError(
                f"{path} ends in the middle of row {len(rows) + 1}: the run that wrote it was cut off; resume "
                "that run, or open the file with RoundsWriter, which drops the broken row"
            )
        return cls(rows, header["provenance"])


class RoundsWriter:
    """Appends rows one by one, so that a killed run loses at most the response being written.

    Opening an existing file resumes it: a row cut in half is dropped, and so are the rows of a response that never
    ended, since it will be decoded again from its start; `done` holds the responses that are there. A file with another
    provenance is refused (ValueError).
    """

    def __init__(self, path: Path | str, provenance: Mapping[str, Any] | None, *, fresh: bool = False) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[Round] = []
        header: dict[str, Any] = {"format": FORMAT, "provenance": dict(provenance) if provenance else None}
        if fresh or not self.path.exists() or self.path.stat().st_size == 0:
            self._rewrite(header)
        else:
            stored, rows, cut = _read(self.path)
            ours = json.loads(json.dumps(header, allow_nan=False))  # as it reads back: tuples are lists by then
            if comparable(stored["provenance"]) != comparable(ours["provenance"]):
                raise ValueError(
                    f"{self.path} was written by a run with other settings; give another file, or remove it"
                )
            ended = {(row.prompt_id, row.request) for row in rows if row.ended}
            self.rows = [row for row in rows if (row.prompt_id, row.request) in ended]
            if cut or len(self.rows) < len(rows):
                self._rewrite(stored)
        self._handle = self.path.open("a", encoding="utf-8")

    @property
    def done(self) -> set[tuple[str | None, int]]:
        """(prompt id, request) pairs of the responses that are in the file to their end."""
        return {(row.prompt_id, row.request) for row in self.rows if row.ended}

    def extend(self, rows: Iterable[Round]) -> None:
        for row in rows:
            self._handle.write(_line(asdict(row)))
            self.rows.append(row)
        self._handle.flush()

    def _rewrite(self, header: dict[str, Any]) -> None:
        """Replace the file by ``header`` and the rows held, whole or not at all."""
        temporary = self.path.with_name(f".{self.path.name}.new")
        temporary.write_text("".join(map(_line, (header, *map(asdict, self.rows)))), encoding="utf-8")
        os.replace(temporary, self.path)

    def __enter__(self) -> RoundsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False, default=_number) + "\n"


def _number(value: Any) -> Any:
    """NumPy's numbers as Python's; a label may be one."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be written to a rounds file")


def comparable(provenance: Mapping[str, Any] | None) -> dict[str, Any]:
    """What must agree for two runs to share a file: everything but when and where it ran."""
    return {k: v for k, v in (provenance or {}).items() if k not in ("recorded_at", "system", "harness")}


def _read(path: Path) -> tuple[dict[str, Any], list[Round], int]:
    """Header, whole rows, and the byte offset of a row cut in half (0: none)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read the rounds file {path}: {error.strerror}") from error
    lines = data.split(b"\n")
    try:
        header = json.loads(lines[0])
        if header["format"] != FORMAT or "provenance" not in header or len(lines) < 2:
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a rounds file: its first line must be a header with format {FORMAT!r}"
        ) from error
    rows = []
    for number, line in enumerate(lines[1:-1], start=2):
        try:
            rows.append(Round(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number} is not a round ({error})") from error
    return header, rows, len(data) - len(lines[-1]) if lines[-1] else 0
