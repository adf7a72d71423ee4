"""What no longer holds in the claims table: links that lead nowhere, numbers that say something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from companion.book.claims import links
from companion.book.claims.model import Claim, Claims, Number
from companion.book.claims.values import Value, value_of

_CONDITION = re.compile(r"^(value|low|high) (<=|>=|<|>) (stated|-?\d+(?:\.\d+)?)$")
_APART = "apart"


def problems(claims: Claims, root: Path) -> list[str]:
    """One sentence for each thing in the rows that is not so; empty when all hold.

    ``root`` is the checkout: chapters are in ``notebooks``, stored results in ``data/results``.
    """
    found = list(_of_the_list(claims, root))
    for claim in claims.checked:
        found += [f"{claim.id}: {problem}" for problem in _of_the_link(claim, claims, root)]
        for number in claim.numbers:
            name = f"{claim.id}, {number.of or 'its number'}"
            found += [f"{name}: {problem}" for problem in _of_the_number(claim, number, root)]
    return found


def holds(number: Number, value: Value) -> list[str]:
    """The conditions of ``number`` that ``value`` does not meet. ValueError for a condition that is none."""
    conditions = number.holds or ("equal",)
    return [condition for condition in conditions if not _met(condition, number, value)]


def _of_the_list(claims: Claims, root: Path) -> Iterator[str]:
    """The chapters that are not in the book yet: each awaited, and none of them there."""
    awaited = {claim.later for claim in claims.rows if claim.later}
    for name in sorted(set(claims.not_yet) - awaited):
        yield f"not_yet.toml lists {name}, and no row waits for it; take it off the list"
    for name, planned in claims.not_yet.items():
        there = [path.stem for path in (root / "notebooks").glob(f"{planned.file}.ipynb")] if planned.file else []
        if there:
            yield f"not_yet.toml lists {name}, and {there[0]} is in the book; give its rows their anchors"


def _of_the_link(claim: Claim, claims: Claims, root: Path) -> Iterator[str]:
    if claim.later is not None and claim.later not in claims.not_yet:
        yield f"it waits for {claim.later}, which not_yet.toml does not list"
    if claim.at is None:
        return
    chapter, anchor = links.split(claim.at)
    path = root / "notebooks" / f"{chapter}.ipynb"
    if not path.is_file():
        yield f"it points to {chapter}, which is no chapter of the book"
    elif anchor and anchor not in links.anchors(path):
        yield f"{chapter} has no anchor {anchor}; it has {', '.join(links.anchors(path))}"


def _of_the_number(claim: Claim, number: Number, root: Path) -> Iterator[str]:
    try:
        value = value_of(number, root / "data" / "results")
        for condition in holds(number, value):
            stated = f", and the text says {number.stated}" if number.stated else ""
            yield f"it is {value.shown(number)} now{stated}: {condition} does not hold"
    except ValueError as error:
        yield str(error)
        return
    if claim.at is None or not number.printed:
        return
    path = root / "notebooks" / f"{links.split(claim.at)[0]}.ipynb"
    if not path.is_file():
        return
    for part in re.split(r" (?=\[)", value.shown(number)):  # a chapter may put a unit between a value and its interval
        if not _stands_in(part, links.printed(path)):
            yield f"{part} is not printed in the chapter that the row points to"


def _stands_in(shown: str, text: str) -> bool:
    """Whether the number stands there as a number of its own, not as a part of another."""
    return re.search(rf"(?<![\d.]){re.escape(shown)}(?!\.?\d)", text) is not None


def _met(condition: str, number: Number, value: Value) -> bool:
    if condition in ("equal", _APART):
        if number.stated is None:
            raise ValueError(f"'{condition}' compares with what the text states, and the row does not say what that is")
        stated = number.stated.replace(",", "")
        decimals = len(stated.partition(".")[2])
        equal = abs(value.value - float(stated)) <= 0.5 * 10**-decimals + 1e-9
        return equal if condition == "equal" else not equal
    match = _CONDITION.match(condition)
    if match is None:
        raise ValueError(f"'{condition}' is no condition; write equal, apart, or like 'low > 0' and 'value < stated'")
    which, sign, bound = match.groups()
    if bound == "stated" and number.stated is None:
        raise ValueError(f"'{condition}' needs what the text states")
    left = getattr(value, which)
    if left is None:
        raise ValueError(f"'{condition}' needs an interval; give low and high")
    right = float(number.stated.replace(",", "")) if bound == "stated" and number.stated else float(bound)
    return {"<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right}[sign]
