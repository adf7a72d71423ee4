"""The claims table as the book shows it: Markdown, made from the rows while the pages are laid out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from companion.book.claims import links
from companion.book.claims.check import holds
from companion.book.claims.model import KINDS, OUTCOMES, Claim, Claims, Number, Text
from companion.book.claims.values import value_of

_HEAD = ["where", "what is said", "what became of it"]
_SHORT = {"exact": "exact", "tiny": "in kind", "gpu": "needs a GPU", "never": "cannot be", "outside": "out of scope"}


def claims_tables(claims: Claims, root: Path) -> dict[str, str]:
    """Pieces of the pages by name: ``claims-summary``, ``claims-not-yet``, ``claims-TEXT`` for each text,
    ``claims-slips`` with what slips in any of them, and ``claims-findings``.

    ValueError when a number cannot be had, or is no longer what its row says: such a page is not printed.
    """
    pieces = {"claims-summary": _summary(claims), "claims-not-yet": _not_yet(claims)}
    for name, text in claims.texts.items():
        pieces[f"claims-{name}"] = f"{{cite:t}}`{text.cite}`: {text.about}\n\n" + _parts(
            text, "###", _HEAD, claims, root
        )
    pieces["claims-slips"] = _slips(claims, root)
    pieces["claims-findings"] = _parts(claims.findings, "##", ["about", "what was found", "evidence"], claims, root)
    return pieces


def _summary(claims: Claims) -> str:
    """How many rows of which kind, by text, and what became of those that were reproduced."""
    head = ["", *(text.title for text in claims.texts.values()), "all"]
    lists = [text.claims for text in claims.texts.values()] + [claims.rows]
    lines = [head, ["---", *("---:" for _ in lists)]]
    for kind, label in KINDS.items():
        lines.append([f"**{label}**", *(str(sum(c.kind == kind for c in rows)) for rows in lists)])
        if kind not in ("exact", "tiny"):  # of the others nothing was reproduced
            continue
        for outcome, name in OUTCOMES.items():
            counts = [sum((c.kind, c.outcome) == (kind, outcome) for c in rows) for rows in lists]
            if any(counts):
                lines.append([f"&emsp;{name}", *map(str, counts)])
        waiting = [sum(c.kind == kind and c.later is not None for c in rows) for rows in lists]
        if any(waiting):
            lines.append(["&emsp;not in the book yet", *map(str, waiting)])
    lines.append(["all", *(str(len(rows)) for rows in lists)])
    return _directive(_pipes(lines), "claims-summary")


def _not_yet(claims: Claims) -> str:
    lines = [["chapter to come", "rows that wait for it"], ["---", "---:"]]
    for name, planned in claims.not_yet.items():
        lines.append([planned.title, str(sum(claim.later == name for claim in claims.rows))])
    return _pipes(lines)


def _parts(text: Text, level: str, head: list[str], claims: Claims, root: Path) -> str:
    return "\n".join(f"{level} {part}\n\n{_rows(rows, head, claims, root)}" for part, rows in text.parts.items())


def _slips(claims: Claims, root: Path) -> str:
    found = {text.title: [c for c in text.claims if c.outcome == "slip"] for text in claims.texts.values()}
    return "\n".join(f"## The {name}\n\n{_rows(rows, _HEAD, claims, root)}" for name, rows in found.items() if rows)


def _rows(rows: Iterable[Claim], head: list[str], claims: Claims, root: Path) -> str:
    lines = [head, ["---"] * len(head)]
    return _directive(_pipes([*lines, *([c.where, c.says, _found(c, claims, root)] for c in rows)]), "claims")


def _found(claim: Claim, claims: Claims, root: Path) -> str:
    outcome = "" if claim.outcome is None else f", {OUTCOMES[claim.outcome]}"
    parts = [f'{_badge(claim.kind, outcome)}<a id="{claim.id}"></a>']
    parts += [text for text in (claim.here, claim.why) if text]
    numbers = "<br>".join(_number(claim, number, root) for number in claim.numbers)
    lines = [" ".join(parts), numbers, f"`{claim.command}`" if claim.command else "", _link(claim, claims, root)]
    return "<br>".join(line for line in lines if line)


def _number(claim: Claim, number: Number, root: Path) -> str:
    value = value_of(number, root / "data" / "results")
    broken = holds(number, value)
    if broken:
        raise ValueError(f"{claim.id}: {number.of} is {value.shown(number)} now, and {broken[0]} does not hold")
    unit = f" {number.unit}" if number.unit else ""
    ours = ", on tiny-qwen3" if number.result is not None and claim.kind != "tiny" else ""
    shown = f"**{value.shown(number)}**{unit}{ours}"
    stated = "" if number.stated is None else f"text {number.stated}{unit}, here "
    return f"{number.of}: {stated}{shown}" if number.of else f"{stated}{shown}"


def _link(claim: Claim, claims: Claims, root: Path) -> str:
    """An anchor of a page that Sphinx makes of a notebook is no label of its own, so the link is written out; the
    tests follow it, in the sources and in the built pages."""
    if claim.later is not None:
        return f"*not in the book yet: {claims.not_yet[claim.later].title}*"
    if claim.at is None:
        return ""
    chapter, anchor = links.split(claim.at)
    path = root / "notebooks" / f"{chapter}.ipynb"
    name = links.anchors(path).get(anchor) or links.title(path)
    target = f"notebooks/{chapter}.html" + (f"#{anchor}" if anchor else "")
    return f'<a href="{target}">{chapter[:2]}, {escape(name)}</a>'


def _badge(kind: str, outcome: str = "") -> str:
    return f'<span class="claim-kind claim-{kind}">{_SHORT[kind]}{outcome}</span> '


def _pipes(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(_cells(line))} |\n" for line in lines)


def _cells(line: list[str]) -> Iterator[str]:
    for cell in line:
        if "\n" in cell:
            raise ValueError(f"a cell of the claims table holds a line break: {cell!r}")
        yield cell.replace("|", "\\|")


def _directive(table: str, name: str) -> str:
    return f":::{{table}}\n:class: {name}\n\n{table}:::\n"
