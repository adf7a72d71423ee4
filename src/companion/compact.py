"""A Rounds table in a few bytes a round: what the metrics need, by columns, for tables that are kept with the book.

Exact: which response, counts, flags, phases, positions, batch size. Rounded to ``DIGITS`` decimals: confidence, and the
entropy of the rows of committed tokens; rows behind them speak of a text that was never written. Left out: token ids,
timings, the other statistics of rows.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import zipfile
from collections.abc import Iterable, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from companion.metrics import by_prompt
from companion.protocols import Phase
from companion.rounds import Round, Rounds

T = TypeVar("T")
FORMAT = "companion.rounds-compact/1"
DIGITS = 3
ENDED = (None, "stop", "length")
PHASES: tuple[Phase, ...] = ("output", "think")
_REJECTED, _BONUS, _CONFIDENCE, _ENTROPY, _ENDED = 1, 2, 4, 8, 16  # from _ENDED upwards: an index into ENDED
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal tables give equal bytes


def save_compact(rounds: Rounds, path: Path | str) -> None:
    """Write the table whole or not at all, responses in the order of their first rounds.

    ValueError when the rounds of a response do not follow one another, or when a count does not fit its column.
    """
    path, groups = Path(path), list(by_prompt(rounds).values())
    for rows in groups:
        if any(b.round != a.round + 1 or b.position != a.position + a.committed for a, b in pairwise(rows)):
            raise ValueError(f"a round is missing from response {rows[0].prompt_id}; a compact file holds whole ones")
    ordered = list(chain.from_iterable(groups))
    header = {
        "format": FORMAT,
        "provenance": rounds.provenance,
        "responses": [(r.prompt_id, r.domain, r.mode, r.request) for r in (rows[0] for rows in groups)],
    }
    columns = {
        "rounds": whole("rounds", (len(rows) for rows in groups), np.uint16),
        "first_round": whole("round", (rows[0].round for rows in groups), np.uint16),
        "first_position": whole("position", (rows[0].position for rows in groups), np.uint32),
        **{n: whole(n, (getattr(r, n) for r in ordered), np.uint8) for n in ("drafted", "verified", "accepted")},
        "batch": whole("batch", (r.batch for r in ordered), np.uint16),
        "flags": whole("flags", map(_flags, ordered), np.uint8),
        "phases": whole("phases", (PHASES.index(p) for r in ordered for p in r.phases), np.uint8),
        "confidence": rounded(chain.from_iterable(r.confidence or () for r in ordered)),
        "entropy": rounded(chain.from_iterable(r.entropy[: r.committed] for r in ordered)),
    }
    write_columns(path, header, columns)


def load_compact(path: Path | str) -> Rounds:
    """The table with its provenance; ``tokens`` are empty, ``entropy`` has one row a committed token.

    ValueError when the file is not such a table, or not all of it.
    """
    header, columns = read_columns(path, FORMAT)
    take = {name: iter(columns[name].tolist()) for name in ("drafted", "verified", "accepted", "flags", "batch")}
    phases = _Slices([PHASES[i] for i in columns["phases"].tolist()])
    confidence, entropy = (_Slices(restored(columns[name])) for name in ("confidence", "entropy"))
    starts = zip(*(columns[n].tolist() for n in ("rounds", "first_round", "first_position")), strict=True)
    rows: list[Round] = []
    for (prompt_id, domain, mode, request), (count, first, position) in zip(header["responses"], starts, strict=True):
        for number in range(first, first + count):
            drafted, verified, accepted, flags, batch = (next(column) for column in take.values())
            committed = accepted + bool(flags & _BONUS)
            row = Round(
                request=request,
                round=number,
                position=position,
                drafted=drafted,
                verified=verified,
                accepted=accepted,
                rejected=bool(flags & _REJECTED),
                bonus=bool(flags & _BONUS),
                tokens=[],
                phases=phases.next(committed),
                ended=ENDED[flags // _ENDED],  # type: ignore[arg-type]
                entropy=entropy.next(committed) if flags & _ENTROPY else [],
                confidence=confidence.next(drafted) if flags & _CONFIDENCE else None,
                batch=batch,
                prompt_id=prompt_id,
                domain=domain,
                mode=mode,
            )
            rows.append(row)
            position += committed
    return Rounds(rows, header["provenance"])


def load_provenance(path: Path | str, kind: str = FORMAT) -> dict[str, Any]:
    """Where a compact file of this format came from, without reading its rows; ValueError as `load_compact`."""
    provenance: dict[str, Any] = read_columns(path, kind, ())[0]["provenance"]
    return provenance


class _Slices(Generic[T]):
    """A list handed out piece by piece."""

    def __init__(self, values: list[T]) -> None:
        self.values, self.at = values, 0

    def next(self, count: int) -> list[T]:
        self.at += count
        return self.values[self.at - count : self.at]


def _flags(r: Round) -> int:
    known = _CONFIDENCE * (r.confidence is not None) + _ENTROPY * bool(r.entropy)
    return _REJECTED * r.rejected + _BONUS * r.bonus + known + _ENDED * ENDED.index(r.ended)


def whole(name: str, values: Iterable[int], dtype: DTypeLike) -> NDArray[Any]:
    """A column of whole numbers in ``dtype``; ValueError when one does not fit."""
    wide = np.fromiter(values, dtype=np.int64)
    if len(wide) and not 0 <= wide.min() <= wide.max() <= np.iinfo(dtype).max:
        raise ValueError(
            f"{name} runs from {wide.min()} to {wide.max()}; a compact file holds 0 to {np.iinfo(dtype).max}"
        )
    return wide.astype(dtype)


def rounded(values: Iterable[float], digits: int = DIGITS) -> NDArray[np.uint8]:  # [2, n]
    """High bytes, then low bytes, which compress apart, of numbers >= 0 with this many decimals."""
    scaled = np.round(np.fromiter(values, dtype=np.float64) * 10**digits)
    numbers = whole("a probability or an entropy", scaled.astype(int), np.uint16)
    return np.stack(np.divmod(numbers, 256)).astype(np.uint8)


def restored(stored: NDArray[np.uint8], digits: int = DIGITS) -> list[float]:  # [2, n]
    """What `rounded` was given, to ``digits`` decimals."""
    numbers: list[float] = ((stored[0].astype(np.int64) * 256 + stored[1]) / 10**digits).tolist()
    return numbers


def write_columns(path: Path, header: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> None:
    """A header with its ``format`` and ``provenance`` and the columns, compressed, whole or not at all."""
    text = np.frombuffer(json.dumps(header, allow_nan=False).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with zipfile.ZipFile(temporary, "w") as archive:
        for name, values in {"header": text, **columns}.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, values, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), buffer.getvalue(), zipfile.ZIP_LZMA)
    os.replace(temporary, path)


def read_columns(
    path: Path | str, kind: str, wanted: tuple[str, ...] | None = None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and ``wanted`` columns (None: all) of a file of this format; ValueError when it is none, or not whole."""
    name = kind.removeprefix("companion.").partition("/")[0].removesuffix("-compact")
    try:
        if Path(path).is_file() and not zipfile.is_zipfile(path):
            raise ValueError("it is no npz archive")  # of which numpy would say to trust it and to allow pickles
        with np.load(path, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            if header["format"] != kind:
                raise ValueError("another format")
            columns = {c: archive[c] for c in (archive.files if wanted is None else wanted) if c != "header"}
    except OSError as error:
        raise ValueError(f"cannot read the {name} file {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is not a whole compact {name} file ({error}); make it again") from error
    return header, columns
