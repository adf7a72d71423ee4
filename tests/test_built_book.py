"""The pages in build/html as a reader gets them: complete, rendered, and without a request to another host."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.book

ROOT = Path(__file__).resolve().parents[1]
HTML = ROOT / "build" / "html"
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
ELSEWHERE = re.compile(r"^(?:https?:)?//")

# attributes that make a browser fetch something by itself; a link that a reader may follow is none of them
FETCHED = {
    ("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"),
    ("audio", "src"), ("embed", "src"), ("object", "data"), ("use", "href"), ("image", "href"),
}  # fmt: skip


class Page(HTMLParser):
    """What a page fetches, the files it links to, its title, and its visible text outside of scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.classes: set[str] = set()
        self.scripts: list[str] = []
        self.headings = 0
        self.identifiers: set[str] = set()
        self._in_script = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if (tag, name) in FETCHED:
                self.fetched.append(value)
            if tag == "a" and name == "href":
                self.links.append(value)
            if name == "class":
                self.classes |= set(value.split())
            if name == "id":
                self.identifiers.add(value)
        self._in_script = tag == "script"
        self.headings += tag == "h1"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts.append(data)

    def target(self, reference: str) -> Path:
        return (self.path.parent / reference.split("#")[0].split("?")[0]).resolve()


@pytest.fixture(scope="module")
def pages() -> dict[str, Page]:
    assert (HTML / "index.html").is_file(), "there is no build/html; run make book"
    found = {
        path.relative_to(HTML).as_posix(): Page(path)
        for path in HTML.rglob("*.html")
        if "_static" not in path.relative_to(HTML).parts
    }
    return found


def test_every_notebook_and_every_page_is_there(pages: dict[str, Page]) -> None:
    wanted = {"index.html", "intro.html", "claims.html", "status.html", "references.html"}
    wanted |= {f"notebooks/{name}.html" for name in NOTEBOOKS}
    assert wanted <= set(pages)
    assert NOTEBOOKS
    assert [name for name in wanted - {"index.html"} if not pages[name].headings] == []


def test_no_page_fetches_from_another_host(pages: dict[str, Page]) -> None:
    fetched = [f"{name}: {url}" for name, page in pages.items() for url in page.fetched if ELSEWHERE.match(url)]
    named = [
        f"{name}: {url}"
        for name, page in pages.items()
        for script in page.scripts
        for url in re.findall(r"https?://[^\"'\s]+\.(?:js|css|woff2?)\b", script)
    ]
    styles = [
        f"{path.name}: {url}"
        for path in HTML.rglob("*.css")
        for url in re.findall(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", path.read_text(encoding="utf-8"))
    ]
    assert fetched + named + styles == []


def test_what_a_page_fetches_and_links_to_exists(pages: dict[str, Page]) -> None:
    missing = [
        f"{name}: {reference}"
        for name, page in pages.items()
        for reference in page.fetched + page.links
        if reference and not re.match(r"^(?:[a-z]+:|//|#)", reference) and not page.target(reference).exists()
    ]
    assert missing == []


def test_a_link_into_a_page_finds_its_place(pages: dict[str, Page]) -> None:
    lost, followed = [], 0
    for name, page in pages.items():
        for reference in page.links:
            path, _, anchor = reference.partition("#")
            if not anchor or re.match(r"^(?:[a-z]+:|//)", reference):
                continue
            place = pages.get(page.target(path).relative_to(HTML).as_posix()) if path else page
            followed += 1
            if place is not None and anchor not in place.identifiers:
                lost.append(f"{name}: {reference}")
    assert followed > 100
    assert lost == []


def test_the_claims_page_leads_to_the_chapters(pages: dict[str, Page]) -> None:
    links = [reference for reference in pages["claims.html"].links if reference.startswith("notebooks/")]
    assert len([reference for reference in links if "#" in reference]) > 100
    assert {"claims", "claim-kind", "claims-summary"} <= pages["claims.html"].classes


def test_formulas_are_rendered_by_the_mathjax_that_is_shipped(pages: dict[str, Page]) -> None:
    with_formulas = [name for name, page in pages.items() if "math" in page.classes]
    assert "intro.html" in with_formulas
    for name in with_formulas:
        scripts = [pages[name].target(url) for url in pages[name].fetched if "mathjax" in url]
        assert scripts == [HTML / "_static" / "mathjax" / "tex-chtml-full.js"], name
    fonts = HTML / "_static" / "mathjax" / "output" / "chtml" / "fonts" / "woff-v2"
    named = set(
        re.findall(
            r"MathJax_[A-Za-z0-9]+-[A-Za-z]+(?=\.woff)", (HTML / "_static/mathjax/tex-chtml-full.js").read_text()
        )
    )
    assert named <= {path.stem for path in fonts.glob("*.woff")}
    assert (fonts / "MathJax_Main-Regular.woff").is_file()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_an_executed_notebook_is_what_the_page_was_made_from(name: str, pages: dict[str, Page]) -> None:
    assert f"notebooks/{name}.html" in pages
    executed = json.loads((HTML / "_sources" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in executed["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["execution_count"] is not None for cell in code)
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert kinds
    assert "error" not in kinds
    text = (HTML / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    assert "⟨measured⟩" not in text, "the page shows stored outputs, not those of a run"
    assert "injected-parameters" not in text
