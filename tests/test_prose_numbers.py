"""Numbers in the prose of a chapter are printed by a cell of it: none is typed from memory.

What remains are the texts' own numbers, which the chapter quotes and does not compute, and a few that only say where a
thing is. They are named here, each with whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from companion.book import notebooks

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
QUOTED = {
    "01": {"0.74": "the exercise: c* of the five tokens, which the reader computes"},
    "04": {"0.9999": "an example of what 'tiny' means", "0.999": "the same"},
    "08": {"0.6": "the paper, at batch 128", "4.8": "the data sheet"},
    "09": {"0.005": "half of the table's last digit", "76.9": "the paper", "67.6": "the paper", "45.7": "the paper"},
    "10": {"0.53": "the paper's Figure 2", "0.63": "the same"},
    "15": {
        **dict.fromkeys(("5.7", "8.2", "5.8", "3.3"), "the paper's Figure 6"),
        "0.9995": "what three decimals make of a one",
    },
    "16": {"3.331": "the review's trace", "5.2": "a section of the paper"},
    "19": {"0.7": "the temperature of the stored run"},
    "24": {"4.8": "the data sheet", "5.3": "a section of the paper"},
}
UNREAD = re.compile(
    r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\{[^}]*\}`[^`]*`|\]\([^)]*\)", re.DOTALL
)  # formulas, code, references
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+")


def typed(notebook: notebooks.NotebookNode) -> Iterator[str]:
    """Decimal numbers in the prose that are no rounding of what a cell prints or its code names."""
    known = []
    for cell in notebooks.code_cells(notebook):
        known.append(cell.source)
        for output in cell.outputs:
            known += [output.get("text", ""), *map(str, output.get("data", {}).values())]
    printed = [float(number.replace(",", "")) for number in NUMBER.findall("\n".join(known))]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (n for n in NUMBER.findall(UNREAD.sub(" ", cell.source)) if not _rounded(n, printed))


def _rounded(number: str, printed: list[float]) -> bool:
    value, half = float(number.replace(",", "")), 0.5001 * 10.0 ** -len(number.partition(".")[2])
    return any(abs(value - other) <= half for other in printed)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_number_in_the_prose_is_printed_on_the_page_or_quoted(path: Path) -> None:
    found = set(typed(notebooks.read(path)))
    assert found - set(QUOTED.get(path.stem[:2], {})) == set(), "print it in a cell, or name whose it is"


def test_the_list_of_quoted_numbers_holds_no_other() -> None:
    found = {path.stem[:2]: set(typed(notebooks.read(path))) for path in CHAPTERS}
    assert {chapter: set(own) - found[chapter] for chapter, own in QUOTED.items() if set(own) - found[chapter]} == {}


def test_a_planted_number_is_found() -> None:
    notebook = notebooks.read(CHAPTERS[0])
    before = list(typed(notebook))
    notebook.cells[0].source += " It is 4.2421 times faster."
    assert sorted(typed(notebook)) == sorted([*before, "4.2421"])
