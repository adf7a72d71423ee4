"""Where a row's number comes from: a path into a stored result, or a function of this package."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from companion.book.claims import arithmetic
from companion.book.claims.model import Number
from companion.provenance import stored_text

_STEP = re.compile(r"(?P<name>[A-Za-z_][\w-]*)|\[(?P<which>[^\]]*)\]|\.")


@dataclass(frozen=True, slots=True)
class Value:
    """What a number is now, scaled as it is shown; ``low`` and ``high`` where the result has an interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def shown(self, number: Number) -> str:
        """The value as the page prints it, without its unit."""
        text = number.show.format(self.value)
        if self.low is None or self.high is None:
            return text
        return f"{text} [{number.show.format(self.low)}, {number.show.format(self.high)}]"


@cache
def value_of(number: Number, results: Path) -> Value:
    """The number now. ValueError when its function or its place in ``results`` does not exist."""
    if number.call is not None:
        function = getattr(arithmetic, number.call, None)
        if number.call.startswith("_") or function is None or function.__module__ != arithmetic.__name__:
            raise ValueError(f"there is no function {number.call} in {arithmetic.__name__}")
        return Value(_scaled(number, function(*number.args)))
    assert number.result is not None  # the model asks for one of the two
    assert number.path is not None
    record = _record(results / number.result)
    ends = [number.path]
    if number.low is not None and number.high is not None:
        holder = number.path.rpartition(".")[0]
        ends += [f"{holder}.{name}" if holder else name for name in (number.low, number.high)]
    return Value(*(_scaled(number, _number(record, path)) for path in ends))


def find(record: Any, path: str) -> Any:
    """What ``path`` leads to: fields by name, and in brackets an index or what an entry has to say of itself.

    >>> find({"rows": [{"k": 1, "x": 5}, {"k": 2, "x": [6, 7]}]}, "rows[k=2].x[1]")
    7

    ValueError when a step leads nowhere, or when more or fewer than one entry fits.
    """
    position, found = 0, record
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise ValueError(f"{path!r} cannot be read from {path[position:]!r} on; write fields, dots and [key=value]")
        position = step.end()
        name, which = step["name"], step["which"]
        try:
            if name is not None:
                found = found[name]
            elif which is not None:
                found = found[int(which)] if which.isdigit() else _only(found, which)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{path!r} leads nowhere at {step[0]!r}: {error}") from error
    return found


def _only(entries: Any, which: str) -> Any:
    if isinstance(entries, dict):
        return entries[which]
    wanted = {}
    for condition in re.split(r",\s*(?=[A-Za-z_]\w*=)", which):  # a value may hold a comma
        key, _, value = condition.partition("=")
        try:
            wanted[key.strip()] = json.loads(value)
        except json.JSONDecodeError:
            wanted[key.strip()] = value.strip()
    fitting = [entry for entry in entries if all(_same(entry[key], value) for key, value in wanted.items())]
    if len(fitting) != 1:
        raise ValueError(f"{len(fitting)} entries fit, expected one")
    return fitting[0]


def _same(there: Any, wanted: Any) -> bool:
    """A name may look like a number: the sampling "1" is meant by ``sampling=1``."""
    return bool(there == wanted or (isinstance(there, str) and there == str(wanted)))


@cache
def _record(path: Path) -> Any:
    try:
        return json.loads(stored_text(path))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _number(record: Any, path: str) -> float:
    found = find(record, path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(f"{path!r} leads to {type(found).__name__}, not to a number")
    return float(found)


def _scaled(number: Number, value: float) -> float:
    return number.scale * value + number.offset
