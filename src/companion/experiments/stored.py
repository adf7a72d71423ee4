"""What a measurement leaves on disk: a result that was written whole, and rows that were added as they were made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from companion.provenance import write_atomic

R = TypeVar("R", bound=BaseModel)


def read_result(path: Path, model: type[R], command: str) -> R:
    """The result in ``path``. ValueError when it cannot be read, or was not written by ``command``."""
    try:
        return model.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ValueError(f"{path} is no result of `companion {command}`; run it again") from error


def resume_rows(path: Path, identity: Mapping[str, Any], model: type[R]) -> list[R]:
    """The rows already there; starts the file with ``identity`` where there is none.

    A last line that was cut off is dropped. ValueError when the file has another identity (weights, settings, whatever
    decides the rows) or is damaged elsewhere.
    """
    header = json.dumps(identity)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text.split("\n")
    if len(lines) < 2:  # nothing, or a header that was cut off
        write_atomic(path, header + "\n")
        return []
    try:
        if json.loads(lines[0]) != json.loads(header):
            raise ValueError(
                f"{path} holds rows of other weights, settings or another machine: delete it, or name another file"
            )
        found = [model.model_validate_json(line) for line in lines[1:-1]]
    except (ValidationError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged and cannot be resumed; delete it to start anew") from error
    if lines[-1]:
        write_atomic(path, "\n".join(lines[:-1]) + "\n")
    return found


def append_rows(path: Path, rows: Iterable[BaseModel]) -> None:
    """Add rows to the end of the file, flushed to disk."""
    with path.open("a", encoding="utf-8") as f:
        f.write("".join(r.model_dump_json() + "\n" for r in rows))
        f.flush()
        os.fsync(f.fileno())
