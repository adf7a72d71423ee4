"""Tables of a notebook: one function from rows to Markdown, which the book renders and the comparison reads as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.display import Markdown


def table(header: Sequence[object], rows: Iterable[Sequence[object]], align: str | None = None) -> Markdown:
    """A Markdown table; cells are shown as ``str`` gives them, so format numbers before.

    ``align`` has one letter a column, l, c or r; by default the first column is left and the others right. ValueError
    when a row or ``align`` has another length than ``header``.
    """
    from IPython.display import Markdown

    letters = align or "l" + "r" * (len(header) - 1)
    body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    for cells in (letters, *body):
        if len(cells) != len(header):
            raise ValueError(f"the table has {len(header)} columns, and {cells!r} has {len(cells)}")
    rule = [{"l": ":--", "c": ":-:", "r": "--:"}[letter] for letter in letters]
    return Markdown("\n".join("| " + " | ".join(cells) + " |" for cells in (map(str, header), rule, *body)))
