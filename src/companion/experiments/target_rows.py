"""One evaluated response per line, appended as it is made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from companion.training.corpus import Domain, Kind, Mode


class Response(BaseModel):
    """What became of one held-out prompt; entropies (nats, temperature 1) only where they are reported."""

    index: int
    temperature: float
    domain: Domain
    mode: Mode
    kind: Kind
    family: str
    right: bool | None  # None: chat has no checkable answer
    span_ok: bool  # thinking on: opened first and closed once; off: no think token at all
    ended: bool  # by its own stop token
    tokens: int
    think_tokens: int  # with both tags
    entropy_think: list[float] = []
    entropy_output: list[float] = []

    @property
    def cell(self) -> tuple[float, Domain, Mode, Kind]:
        return self.temperature, self.domain, self.mode, self.kind


def load_rows(path: Path, header: dict[str, Any]) -> list[Response]:
    """The rows already there; starts the file with ``header`` where there is none.

    A last line that was cut off is dropped. Raises ValueError when the file was written with other settings or weights,
    or is damaged elsewhere.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        return []
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    if lines[-1]:  # no newline: the write was cut
        partial = path.with_suffix(".partial")
        partial.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
        os.replace(partial, path)
    try:
        if json.loads(lines[0]) != json.loads(json.dumps(header)):
            raise ValueError(
                f"{path} holds responses of other weights or settings: delete it, or give another file for the rows"
            )
        return [Response.model_validate_json(line) for line in lines[1:-1]]
    except (ValidationError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged and cannot be resumed; delete it to start anew") from error


def append(path: Path, rows: Iterable[Response]) -> None:
    """Add rows to the end of the file, flushed to disk."""
    with path.open("a", encoding="utf-8") as f:
        f.write("".join(r.model_dump_json() + "\n" for r in rows))
        f.flush()
        os.fsync(f.fileno())
