"""What a measurement leaves on disk: a result that was written whole, and rows that were added as they were made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from companion.provenance import stored_text, write_atomic

R = TypeVar("R", bound=BaseModel)


def read_result(path: Path, model: type[R], command: str) -> R:
    """The result in ``path``. ValueError when it cannot be read, or was not written by ``command``."""
    try:
        return model.model_validate_json(stored_text(path))
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
    whole, newline, cut = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
    damaged = f"{path} is damaged, or holds no rows of this measurement, and cannot be resumed; delete it to start anew"
    if not newline:  # nothing, or a header that was cut off
        if not header.encode().startswith(cut):
            raise ValueError(damaged)
        write_atomic(path, header + "\n")
        return []
    try:
        first, *lines = whole.decode().split("\n")
        if json.loads(first) != json.loads(header):
            raise ValueError(
                f"{path} holds rows of other weights, settings or another machine: delete it, or name another file"
            )
        found = [model.model_validate_json(line) for line in lines]
    except (ValidationError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(damaged) from error
    if cut:
        write_atomic(path, whole.decode() + "\n")
    return found


def append_rows(path: Path, rows: Iterable[BaseModel]) -> None:
    """Add rows to the end of the file, flushed to disk."""
    with path.open("a", encoding="utf-8") as f:
        f.write("".join(r.model_dump_json() + "\n" for r in rows))
        f.flush()
        os.fsync(f.fileno())
