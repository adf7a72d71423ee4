"""From a notebook to a page: conventions, the cache, interrupts, the comparison, the strict build."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from companion import provenance
from companion.book import measured, notebooks
from companion.book.execute import Execution, NotebookError, prepare, stored_run
from companion.book.layout import Layout
from companion.book.marks import BLANK, MARK, blank
from companion.book.pages import BuildError, build, stage
from companion.book.run import compare, execute_all, refresh

ROOT = Path(__file__).resolve().parents[1]

Write = Callable[..., Path]


def notebook(*cells: str, parameters: str = "scale = 2", prose: str = "# A page") -> NotebookNode:
    made = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    made.cells = [new_markdown_cell(prose), new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    made.cells += [new_code_cell(source) for source in cells]
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    return made


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A checkout with the real configuration and rules, and no notebook yet."""
    for folder in ("notebooks", "book", "data", "src/companion"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "_config.yml").write_text((ROOT / "_config.yml").read_text())
    for name in ("nbval_sanitize.cfg", "conftest.py"):
        (tmp_path / "notebooks" / name).write_text((ROOT / "notebooks" / name).read_text())
    (tmp_path / "src/companion/rule.py").write_text("x = 1\n")
    return Layout(tmp_path)


@pytest.fixture
def write(layout: Layout) -> Write:
    def written(name: str, *cells: str, **more: Any) -> Path:
        path = layout.notebooks / name
        nbformat.write(notebook(*cells, **more), path)
        return path

    return written


# ---- what a notebook must be


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ("scale = 2\nhalf = scale / 2", "'half' is not a plain literal"),
        ("import os", "may only assign literals"),
        ("a, b = 1, 2", "may only assign literals"),
        ("a: int", "may only assign literals"),
    ],
)
def test_parameters_are_plain_literals(parameters: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        notebooks.parameters(notebook(parameters=parameters))


def test_parameters_are_read_with_their_defaults() -> None:
    text = 'target: str = "tiny"\ndepths = [1, -2]\nseed = None\n# a remark\nthink = True'
    expected = {"target": "tiny", "depths": [1, -2], "seed": None, "think": True}
    assert notebooks.parameters(notebook(parameters=text)) == expected


def test_exactly_one_parameters_cell() -> None:
    doubled = notebook("1 + 1")
    doubled.cells[2].metadata["tags"] = ["parameters"]
    assert "found 2" in notebooks.source_problems(doubled)[0]


@pytest.mark.parametrize("tag", ["raises-exception", "skip-execution"])
def test_tags_that_tools_read_differently_are_refused(tag: str) -> None:
    tagged = notebook("1 + 1")
    tagged.cells[2].metadata["tags"] = [tag]
    assert any(tag in line for line in notebooks.source_problems(tagged))


def test_another_kernel_is_refused() -> None:
    other = notebook()
    other.metadata.kernelspec.name = "my-kernel"
    assert any("python3" in line for line in notebooks.source_problems(other))


def test_stored_images_errors_and_run_metadata_are_found() -> None:
    stored = notebook("1", "2", "3")
    for cell in notebooks.code_cells(stored):
        cell.execution_count = 1
    assert notebooks.stored_problems(stored) == []
    stored.metadata["papermill"] = {}
    stored.cells[2].outputs = [new_output("display_data", data={"image/png": "x", "text/plain": "<Figure>"})]
    stored.cells[3].outputs = [new_output("error", ename="ValueError", evalue="no", traceback=[])]
    stored.cells[4].execution_count = None
    found = " / ".join(notebooks.stored_problems(stored))
    for part in ("metadata of a run", "cell 2 stores an image", "cell 3 holds an error output", "cell 4 was not run"):
        assert part in found


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_committed_notebooks_keep_the_conventions(path: Path) -> None:
    committed = notebooks.read(path)
    assert notebooks.source_problems(committed) + notebooks.stored_problems(committed) == []
    assert notebooks.dumps(notebooks.reference(committed, committed)) == path.read_text(encoding="utf-8")
    drawn = [
        (cell.id, caption)
        for cell, caption in zip(committed.cells, notebooks.captions(committed), strict=True)
        if cell.cell_type == "code" and "plt.show()" in cell.source
    ]
    assert [cell for cell, caption in drawn if len(caption) < 30] == [], "a figure without a caption below it"


def test_a_figure_is_told_by_its_caption_to_who_cannot_see_it() -> None:
    figure = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    source = notebook(figure, "print(1)", figure)
    source.cells.insert(4, new_markdown_cell("*The rise of $\\tau$,\nsee {doc}`other` and here.*\n\nIt is *good*."))
    source.cells.append(new_markdown_cell("No caption, *only* words."))
    words = "The rise of tau, see other and here."
    assert notebooks.captions(source) == [words, words, words, words, "", "", ""]
    run = copy.deepcopy(source)
    for cell in run.cells:
        if cell.source == figure:
            cell.outputs = [new_output("display_data", {"image/png": "iVBORw0KGgo="})]
    shown = [cell.metadata.get("mystnb", {}).get("image", {}).get("alt") for cell in notebooks.page(source, run).cells]
    assert shown == [None, None, words, None, None, None, None]


# ---- marks


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (5.4132, "ms", "⟨5.41 ms⟩"), (1234.5, "tok/s", "⟨1,234 tok/s⟩"), (0.00123, "", "⟨0.00123⟩"),
        (999.96, "s", "⟨1,000 s⟩"), (0.0, "s", "⟨0 s⟩"), (-2.5, "", "⟨-2.50⟩"), (float("inf"), "", "⟨inf⟩"),
        (float("nan"), "", "⟨nan⟩"), ("an H200", "", "⟨an H200⟩"),
    ],
)  # fmt: skip
def test_measured_is_rounded_and_marked(value: float | str, unit: str, text: str) -> None:
    assert measured(value, unit) == text
    assert blank(f"took {text}, sum 45") == f"took {BLANK}, sum 45"


def test_rules_of_the_comparison_hide_the_mark_and_no_result() -> None:
    text = (ROOT / "notebooks" / "nbval_sanitize.cfg").read_text(encoding="utf-8")
    rules = re.findall(r"^regex: (.*)$\n^replace: (.*)$", text, flags=re.MULTILINE)  # as nbval reads the file
    assert len(rules) == text.count("\n[")
    assert rules[0] == (MARK.pattern, BLANK)

    def sanitize(output: str) -> str:
        for regex, replacement in rules:
            output = re.sub(regex, replacement, output)
        return output

    assert sanitize("a  ⟨1.2 ms⟩\nb ⟨1,234 ms⟩ \n") == sanitize("a ⟨3 ms⟩\nb       ⟨9 ms⟩\n")
    assert sanitize("<Figure size 640x480 with 1 Axes>") == sanitize("<Figure size 1024x640 with 1 Axes>")
    assert sanitize("<f at 0x7fa48fcb1590>") == sanitize("<f at 0x7fffffcb1590>")
    for left, right in [
        ("1.23 s", "1.24 s"), ("0.865471", "0.865472"), ("-1", "1"), ("0xdeadbeef", "0xdeadbee5"), ("a\nb", "a b"),
        ("<Figure size 1x1 with 1 Axes>", "<Figure size 1x1 with 2 Axes>"), ("2026-11-29", "2026-11-30"), ("a b", "ab"),
    ]:  # fmt: skip
        assert sanitize(left) != sanitize(right)


# ---- execution and its cache


def test_a_run_is_reused_until_something_it_depends_on_changes(layout: Layout, write: Write) -> None:
    cells = ["import sys\nprint('two', 2 * scale)\nprint('noise', file=sys.stderr)", "print('took', '⟨%s⟩' % id(sys))"]
    source = write("01_a.ipynb", *cells)
    lines: list[str] = []
    (run,) = execute_all(layout, {}, say=lines.append).values()
    assert "01_a.ipynb: executed in" in lines[-2]
    assert "note: its cells wrote to standard error: noise" in lines[-1]
    assert notebooks.code_cells(run.notebook)[1].outputs[0].text == "two 4\n"

    (again,) = execute_all(layout, {}, say=lines.append).values()
    assert "nothing it depends on has changed" in lines[-2]
    assert again == run

    def key(given: dict[str, Any] | None = None) -> str:
        return prepare(source, Layout(layout.root), given or {})[1]

    write("01_a.ipynb", *cells, prose="# Other prose")
    assert key() == run.key
    page = notebooks.page(notebooks.read(source), run.notebook)
    assert page.cells[0].source == "# Other prose"
    assert "⟨" in page.cells[3].outputs[0].text

    different = {"unused parameter": key({"unknown": 3}), "parameter": key({"scale": 3})}
    assert different["unused parameter"] == run.key
    write("01_a.ipynb", *cells, "1 + 1")
    different["code"] = key()
    write("01_a.ipynb", *cells)
    (layout.root / "data" / "model.bin").write_bytes(b"weights")
    different["data"] = key()
    (layout.root / "data" / "model.bin").unlink()
    (layout.root / "src/companion/rule.py").write_text("x = 2\n")
    different["package"] = key()
    assert len({run.key, *different.values()}) == 5
    (layout.root / "src/companion/rule.py").write_text("x = 1\n")
    assert key() == run.key

    stored = layout.executed / source.name
    stored.write_text(stored.read_text()[:100])
    assert stored_run(source, layout, run.key) is None


def test_parameters_reach_the_cells_and_the_page_shows_them(layout: Layout, write: Write) -> None:
    source = write("01_a.ipynb", "double = 2 * scale\nprint(double)")
    (run,) = execute_all(layout, {"scale": 21}).values()
    page = notebooks.page(notebooks.read(source), run.notebook)
    assert [cell.outputs[0].text for cell in page.cells if cell.get("outputs")] == ["42\n"]
    assert len(page.cells) == 3
    assert page.cells[1].source == "scale = 2\n# set for this run\nscale = 21"
    with pytest.raises(ValueError, match="no notebook declares a parameter named target, tempo; known: scale"):
        execute_all(layout, {"target": "x", "scale": 1, "tempo": 2})


def test_a_failing_cell_is_named_and_nothing_is_stored(layout: Layout, write: Write) -> None:
    write("01_bad.ipynb", "print('before')", "raise RuntimeError('the sum is wrong')", "print('after')")
    with pytest.raises(NotebookError, match=r"01_bad\.ipynb: cell \d+ holds an error output: RuntimeError: the sum is"):
        execute_all(layout, {})
    assert not list(layout.executed.glob("*"))
    assert (layout.failed / "01_bad.ipynb").is_file()
    assert [path.name for path in layout.build.iterdir()] == ["failed"]


def test_a_cell_that_hangs_is_stopped(layout: Layout, write: Write) -> None:
    write("01_slow.ipynb", "import time\ntime.sleep(60)")
    started = time.monotonic()
    with pytest.raises(NotebookError, match=r"01_slow\.ipynb: "):
        execute_all(layout, {}, cell_timeout=1)
    assert time.monotonic() - started < 50


def test_an_interrupt_keeps_what_is_complete_and_the_next_call_resumes(layout: Layout, write: Write) -> None:
    write("01_done.ipynb", "print('done')")
    write("02_long.ipynb", "from pathlib import Path\nimport time\nPath('started').touch()\ntime.sleep(600)")
    write_program = (
        "from companion.book.__main__ import main; import sys; sys.argv = ['book', 'reproduce']; sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", write_program],
        cwd=layout.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (layout.notebooks / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "stopped; what was complete is kept, and the next call goes on from there"
    assert [path.name for path in layout.executed.iterdir()] == ["01_done.ipynb"]
    assert [path.name for path in layout.build.iterdir()] == ["executed"]
    assert not list(layout.notebooks.glob("*ipc*"))  # no socket of a kernel stays

    write("02_long.ipynb", "print('short now')")
    lines: list[str] = []
    execute_all(layout, {}, say=lines.append)
    assert [line.split(";")[0] for line in lines if "[1/2]" in line] == [
        "[1/2] 01_done.ipynb: nothing it depends on has changed"
    ]


# ---- stored outputs


def test_refresh_twice_changes_no_byte_and_the_comparison_compares(layout: Layout, write: Write) -> None:
    source = write(
        "01_a.ipynb",
        "import os, sys, time\nimport matplotlib.pyplot as plt\nfrom companion.book import measured",
        "for i in range(3):\n    print(i, flush=True)\n    time.sleep(0.1)\n    print(i, file=sys.stderr)",
        "print('took', measured(time.time() % 1000, 's'))",
        "plt.plot([1, 2])\nplt.show()",
        "42",
    )
    assert refresh(layout=layout) == [source]
    first = source.read_bytes()
    assert refresh(layout=layout) == []
    assert source.read_bytes() == first
    stored = notebooks.read(source)
    assert notebooks.stored_problems(stored) == []
    outputs = [cell.outputs for cell in notebooks.code_cells(stored)]
    assert [len(found) for found in outputs] == [0, 0, 1, 1, 1, 1]
    assert outputs[2][0].text == "0\n1\n2\n"
    assert outputs[3][0].text == f"took {BLANK}\n"
    assert list(outputs[4][0].data) == ["text/plain"]

    assert compare(layout=layout) == 0
    lines: list[str] = []
    assert compare(layout=layout, say=lines.append) == 0
    assert lines == ["compared before and unchanged since: 01_a.ipynb"]

    source.write_bytes(first.replace(b'"42"', b'"43"', 1))  # the output, not the source: a wrong result must not pass
    assert compare(layout=layout) == 1


def test_comparison_refuses_what_would_compare_nothing(layout: Layout, write: Write) -> None:
    write("01_a.ipynb", "print(1)")
    with pytest.raises(ValueError, match="was not run, so that nothing would be compared"):
        compare(layout=layout)
    (layout.notebooks / "01_a.ipynb").unlink()
    with pytest.raises(ValueError, match="no notebook in"):
        compare(layout=layout)


# ---- pages


def test_an_error_output_never_reaches_a_page(layout: Layout, write: Write) -> None:
    source = write("01_a.ipynb", "print(1)")
    ran = notebooks.read(source)
    ran.cells[2].outputs = [new_output("error", ename="ValueError", evalue="no", traceback=["no"])]
    run = Execution(ran, key="k", seconds=1.0, finished="2026-01-01T00:00:00+00:00")
    with pytest.raises(NotebookError, match=r"01_a\.ipynb: cell 2 holds an error output: ValueError: no"):
        stage(layout, {source: run})
    assert not layout.stage.exists()


def test_the_build_is_strict_and_keeps_the_last_good_pages(
    layout: Layout, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = provenance.collect()
    monkeypatch.setattr("companion.book.status.collect", lambda: here)  # whatever is committed while this runs
    book = layout.root / "book"
    (book / "_toc.yml").write_text("format: jb-book\nroot: intro\nchapters:\n- glob: notebooks/*\n- file: status\n")
    (book / "references.bib").write_text("@misc{known, title={Known}, author={A}, year={2020}}\n")
    (book / "static").mkdir()
    (book / "static" / "companion.css").write_text("")
    tables = "\n".join(f"```{{include}} generated/{name}.md\n```\n" for name in ("machine", "versions", "notebooks"))
    (book / "status.md").write_text(f"# Status\n\n{tables}")
    intro = book / "intro.md"
    intro.write_text("# Intro\n\n```{bibliography}\n```\n\n{cite:t}`known` and $x$\n")
    source = write("01_a.ipynb", "print(6 * 7)", prose="# A page\n\n```{prf:proposition} P\n:label: p\n\n$x$\n```\n")
    runs = execute_all(layout, {})
    stage(layout, runs)
    assert build(layout) is True
    assert "42" in (layout.html / "notebooks" / "01_a.html").read_text()
    assert "01_a" in (layout.html / "status.html").read_text()
    stage(layout, runs)
    assert build(layout) is False  # the same pages

    intro.write_text("# Intro\n\n```{bibliography}\n```\n\n{cite:t}`unknown`\n")
    stage(layout, runs)
    with pytest.raises(BuildError, match=r"status 1; its log is(?s:.)*unknown"):
        build(layout)
    assert "Known" in (layout.html / "intro.html").read_text()
    assert source.name == "01_a.ipynb"
    assert sorted(path.name for path in layout.build.iterdir()) == ["executed", "html", "html.key", "html.log", "stage"]


def test_launch_buttons_stay_off_until_there_is_a_public_address() -> None:
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert "launch_buttons" not in config
    assert json.dumps("thebe") not in config
