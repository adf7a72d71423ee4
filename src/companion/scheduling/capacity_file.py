"""Measured capacity tables as files: read with care, and compared with the machine at hand.

A table is worth what it was measured on. `load_capacity` refuses a broken file and warns, in one sentence, where a
table is of another machine, thread count, engine, target or drafter.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from companion.provenance import system
from companion.scheduling.capacity import CapacityTable, Curve

FORMAT = "companion.capacity/2"
PARTS = ("engine", "drafters", "phase/tracker.py", "kernels")  # packages and modules whose code a step runs
MACHINE = ("processor", "machine", "cores", "gpu")


def engine_version() -> str:
    """Of the code that a step runs: equal sources, equal digests."""
    import companion.kernels as kernels

    root, digest = Path(__file__).parents[1], hashlib.sha256()
    places = {part: root / part for part in PARTS} | {"kernels": Path(kernels.__file__).parent}
    for part, place in places.items():
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(f"{part}/{path.relative_to(place).as_posix()}\n".encode())
            digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def load_capacity(
    path: Path,
    *,
    threads: int | None = None,
    target: Mapping[str, Any] | None = None,
    drafter: Mapping[str, Any] | None = None,
    here: bool = True,
) -> CapacityTable:
    """The table measured with ``threads`` threads (None: as many as torch uses now, or else the file's first).

    ``target`` and ``drafter`` are what `describe` of a model folder gives. A table that is not of these, or not of this
    machine, thread count and engine, is returned with a warning; ``here`` False says that nothing will be scheduled
    here and that none of it matters, as in a simulation. ValueError for what is no table.
    """
    wanted = torch.get_num_threads() if threads is None else threads
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        tables = record["tables"]
        if not tables:
            raise ValueError("it holds no table")
        own = next((one for one in tables if one["threads"] == wanted), None)
        if own is None and threads is not None:
            raise ValueError(f"it has no table of {threads} threads, only of {[one['threads'] for one in tables]}")
        found = table_of(own or tables[0], record["provenance"])
        differ = differences(found, target, drafter) if here else []
    except OSError as error:
        raise ValueError(f"cannot read the capacity table in {path}: {error.strerror or error}") from error
    except KeyError as error:
        raise ValueError(f"{path} is no capacity table (it lacks {error}); measure one: companion profile") from error
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is no capacity table ({error}); measure one: companion profile") from error
    if differ:
        warnings.warn(
            f"the capacity table in {path} was measured with another {', another '.join(differ)}: its times may be "
            "wrong here; measure anew with companion profile",
            stacklevel=2,
        )
    return found


def table_of(record: Mapping[str, Any], provenance: Mapping[str, Any]) -> CapacityTable:
    """One table of a file. KeyError, TypeError or ValueError where it is none."""
    sizes = _sizes(record["sizes"])
    contexts, drafted, reads = _sizes(record["contexts"]), record.get("draft"), record.get("reads")
    drafted = {"requests": [], "seconds": []} if drafted is None else drafted
    requests = _sizes(drafted["requests"])
    if requests and not drafted["seconds"]:
        raise ValueError("it has no drafting times for its numbers of requests")
    return CapacityTable(
        contexts=contexts,
        curves=tuple(Curve(sizes, _seconds(row)) for row in record["verify"]),
        drafts=tuple(tuple(Curve(requests, _seconds(row)) for row in own) for own in drafted["seconds"]),
        reads=() if reads is None else _seconds(reads),
        provenance={**provenance, "threads": int(record["threads"]), "yardstick": record.get("yardstick")},
    )


def differences(
    table: CapacityTable, target: Mapping[str, Any] | None = None, drafter: Mapping[str, Any] | None = None
) -> list[str]:
    """In what the table's origin differs from what is at hand, in words; models that are not given are not compared."""
    origin, now = table.provenance, system()
    there = origin.get("system") or {}
    found = []
    if any(there.get(key) != now.get(key) for key in MACHINE):
        found.append(f"machine ({there.get('gpu') or there.get('processor') or 'unnamed'})")
    if origin.get("threads") != torch.get_num_threads():
        found.append(f"number of threads ({origin.get('threads')})")
    if (origin.get("settings") or {}).get("engine_version") != engine_version():
        found.append("version of the engine")
    for role, given in (("target", target), ("drafter", drafter)):
        own = origin.get(role) or {}
        if given is not None and any(own.get(k) != given.get(k) for k in ("weights_sha256", "dtype") if k in given):
            found.append(f"{role} ({own.get('name', 'unnamed')})")
    return found


def _sizes(values: Sequence[Any]) -> tuple[int, ...]:
    if isinstance(values, str) or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise ValueError(f"sizes and contexts must be whole numbers, got {values!r}")
    return tuple(values)


def _seconds(values: Sequence[Any]) -> tuple[float, ...]:
    if isinstance(values, str) or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise ValueError(f"times must be numbers, got {values!r}")
    return tuple(float(v) for v in values)
