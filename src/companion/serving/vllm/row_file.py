r"""Statistics of every row that vLLM verifies, one line a step and request, and their way into the rounds.

    H = -sum_v p(v) ln p(v) in nats,    max p,    sum over the closing tag of p    (the note's EAT)

with p at temperature 1, before any filter, as our own engine records them. A line holds the rows of one request in one
step in order; row k belongs to draft slot k (0-based), the last to the token behind the drafts. Its ``position`` is
that of the first token that the rows are distributions of, which is a round's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from companion.kernels.probe import probe_reference
from companion.rounds import Round

COLUMNS = ("entropy", "max_p", "think_end_mass")
FORMAT = "companion.vllm-rows/1"


class RowFile:
    """Written by the process that samples. Reading a step's rows waits for the device: time is not what it measures."""

    def __init__(self, path: Path, close: int | None) -> None:
        self._close = [] if close is None else [close]
        self._names: dict[int, str] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = path.open("w", encoding="utf-8")
        self._write({"format": FORMAT})

    def follow(self, slot: int, name: str | None) -> bool:
        """A request takes ``slot``, which may have been another's; False for one without a name."""
        self._names.pop(slot, None)
        if name is not None:
            self._names[slot] = name
        return name is not None

    def record(
        self,
        logits: Tensor,  # [N, V]
        slots: Tensor,  # [N] the request's slot
        positions: Tensor,  # [N] of the token that each row was computed from
    ) -> None:
        owners = slots.tolist()
        rows = [row for row, slot in enumerate(owners) if slot in self._names]
        if not rows:
            return
        chosen = logits if len(rows) == len(owners) else logits[rows]
        found = probe_reference(chosen, self._close)
        statistics = [column.tolist() for column in (found.entropy, found.max_p, found.mass)]
        at = positions.tolist()
        for slot, group in groupby(range(len(rows)), key=lambda i: owners[rows[i]]):
            own = list(group)
            columns = {name: [column[i] for i in own] for name, column in zip(COLUMNS, statistics, strict=True)}
            self._write({"request": self._names[slot], "position": at[rows[own[0]]] + 1, **columns})
        self._handle.flush()

    def _write(self, record: Mapping[str, Any]) -> None:
        self._handle.write(json.dumps(record) + "\n")


def read_rows(path: Path) -> dict[tuple[str, int], dict[str, list[float]]]:
    """(request, position) -> its statistics. ValueError for a file that is none."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not lines or lines[0].get("format") != FORMAT:
            raise ValueError(f"its first line must name the format {FORMAT!r}")
        return {
            (line["request"], line["position"]): {name: [float(x) for x in line[name]] for name in COLUMNS}
            for line in lines[1:]
        }
    except OSError as error:
        raise ValueError(f"cannot read the row statistics in {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no row statistics of vLLM ({error})") from error


def with_rows(rounds: Iterable[Round], rows: Mapping[tuple[str, int], Mapping[str, Sequence[float]]]) -> list[Round]:
    """The rounds with the statistics of their rows; ValueError where a round's are missing, or are not one each."""
    found = []
    for row in rounds:
        own = rows.get((str(row.prompt_id), row.position))
        if own is None or len(own["entropy"]) != row.verified + 1:
            what = "none" if own is None else str(len(own["entropy"]))
            raise ValueError(
                f"the round of {row.prompt_id} at position {row.position} verified {row.verified} drafts, so it has "
                f"{row.verified + 1} rows, and {what} were written of it: the file is of another run"
            )
        entropy, max_p, mass = (list(own[name]) for name in COLUMNS)
        found.append(replace(row, entropy=entropy, max_p=max_p, think_end_mass=mass))
    return found
