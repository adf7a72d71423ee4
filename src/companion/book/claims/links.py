"""Chapters and the anchors in them, from their sources: what a link of the claims table may point to."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from docutils.nodes import make_id

from companion.book import notebooks
from companion.book.marks import MARK

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*\s*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_LABEL = re.compile(r"^:label: (\S+)$", re.MULTILINE)


@cache
def anchors(chapter: Path) -> dict[str, str]:
    """Identifiers that the page of this notebook will hold, and the heading each stands under.

    A heading gives the identifier that Sphinx makes of it, a proposition or an exercise its label.
    """
    found: dict[str, str] = {}
    heading = ""
    for cell in notebooks.read(chapter).cells:
        if cell.cell_type != "markdown":
            continue
        text = cell.source
        outside = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
        marks = [(m.start(), make_id(m[1]), m[1]) for m in _HEADING.finditer(text) if m[0] in outside]
        marks += [(m.start(), m[1], "") for m in _LABEL.finditer(text)]
        for _, identifier, own in sorted(marks):
            heading = own or heading
            found[identifier] = heading
    return found


@cache
def printed(chapter: Path) -> str:
    """Everything that the notebook's stored outputs print, without the numbers of one machine."""
    texts = []
    for cell in notebooks.code_cells(notebooks.read(chapter)):
        for output in cell.outputs:
            data = output.get("data", {})
            texts.append(output.get("text") or data.get("text/markdown") or data.get("text/plain") or "")
    return MARK.sub("", "\n".join(texts))


def title(chapter: Path) -> str:
    """The heading of the whole page."""
    return next(iter(anchors(chapter).values()))


def split(at: str) -> tuple[str, str]:
    """``chapter#anchor`` -> both; the anchor may be empty."""
    chapter, _, anchor = at.partition("#")
    return chapter, anchor
