"""What CONTRIBUTING.md says of the notebooks is so."""

import re
from pathlib import Path

from companion.book import notebooks

ROOT = Path(__file__).resolve().parents[1]


def test_outputs_that_are_not_compared_are_named() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (rule,) = [part for part in re.split(r"\n(?=\* |\n)", text) if "`NBVAL_IGNORE_OUTPUT`" in part]
    marked = {
        path.stem
        for path in (ROOT / "notebooks").glob("*.ipynb")
        if any("NBVAL_IGNORE_OUTPUT" in cell.source for cell in notebooks.code_cells(notebooks.read(path)))
    }
    assert marked == set(re.findall(r"`(\d\d_\w+)`", rule))


def test_it_stays_one_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) < 90
