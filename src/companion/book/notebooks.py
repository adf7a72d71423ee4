"""What a notebook of this book is: its conventions, its parameters, and the two forms derived from a run of it.

The committed notebook holds source and text outputs; a run of it gives the page of the book (`page`: figures and
measured numbers kept) and a fresh committed form (`reference`: text only, marks blanked, the same bytes every time).
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from companion.book.marks import blank

PARAMETERS = "parameters"  # papermill's tag for the cell whose values a run may replace
INJECTED = "injected-parameters"  # papermill's tag for the cell it adds below that one
_CAPTION = re.compile(r"\*(?![*\s])(.+?)\*(?=\n\s*\n|\s*\Z)", re.DOTALL)
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_REFUSED_TAGS = {
    "raises-exception": "papermill stops there; catch the exception and print it",
    "skip-execution": "nbval runs such a cell all the same; guard it with an if that prints one fixed line",
}


def read(path: Path) -> NotebookNode:
    """The notebook at ``path``. ValueError when the file is no notebook."""
    try:
        return nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, AttributeError, KeyError) as error:
        raise ValueError(f"{path} is not a notebook ({type(error).__name__}); restore it or remove it") from error


def dumps(notebook: NotebookNode) -> str:
    """The text of a notebook file."""
    return nbformat.writes(notebook) + "\n"


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Code cells in order, without the one that papermill injects."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and INJECTED not in tags(cell)]


def parameters(notebook: NotebookNode) -> dict[str, Any]:
    """Names and defaults of the cell tagged ``parameters``.

    ValueError unless there is exactly one such cell and each of its statements gives a name a plain literal: what is
    derived from a parameter belongs in the next cell, where papermill's values have arrived.
    """
    tagged = [cell for cell in notebook.cells if PARAMETERS in tags(cell)]
    if len(tagged) != 1:
        raise ValueError(f"expected exactly one cell tagged '{PARAMETERS}', found {len(tagged)}")
    found: dict[str, Any] = {}
    for statement in ast.parse(tagged[0].source).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                try:
                    found[name] = ast.literal_eval(value)
                except ValueError as error:
                    raise ValueError(
                        f"parameter '{name}' is not a plain literal; derive it in the next cell"
                    ) from error
            case _:
                raise ValueError(f"the '{PARAMETERS}' cell may only assign literals, got: {ast.unparse(statement)}")
    return found


def source_problems(notebook: NotebookNode) -> list[str]:
    """What keeps a notebook from being executed as this book does it; empty when all is well."""
    found = []
    try:
        parameters(notebook)
    except ValueError as error:
        found.append(str(error))
    if notebook.metadata.get("kernelspec", {}).get("name") != _KERNEL["name"]:
        found.append("kernelspec.name must be python3, the kernel of the environment it runs in")
    for number, cell in enumerate(notebook.cells):
        found += [
            f"cell {number} is tagged '{tag}': {_REFUSED_TAGS[tag]}" for tag in tags(cell) if tag in _REFUSED_TAGS
        ]
    return found


def stored_problems(notebook: NotebookNode) -> list[str]:
    """What a committed notebook may not hold; `make refresh` puts all of it right."""
    found = []
    if "papermill" in notebook.metadata or "widgets" in notebook.metadata:
        found.append("metadata of a run is stored; `make refresh` removes it")
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if cell.execution_count is None:
            found.append(f"cell {number} was not run, so that nothing would be compared; `make refresh` runs it")
        if _pictures(cell):
            found.append(f"cell {number} stores an image; `make refresh` removes it")
    return found + errors(notebook)


def errors(notebook: NotebookNode) -> list[str]:
    """One line for each error output: Sphinx publishes such a page without a word."""
    return [
        f"cell {number} holds an error output: {output.ename}: {output.evalue}"
        for number, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]


def page(source: NotebookNode, run: NotebookNode) -> NotebookNode:
    """The notebook as the book shows it: the prose of ``source`` now, the outputs of ``run``.

    The cell that papermill injects is folded into the parameters cell, so that a page shows the values it ran with.
    """
    notebook = _with_outputs(source, run)
    injected = [cell.source.removeprefix("# Parameters\n").strip() for cell in run.cells if INJECTED in tags(cell)]
    for cell in notebook.cells:
        if PARAMETERS in tags(cell) and injected:
            cell.source = "\n".join([cell.source.rstrip(), "# set for this run", *injected])
    for cell, caption in zip(notebook.cells, captions(notebook), strict=True):
        if caption and _pictures(cell):
            cell.metadata["mystnb"] = {**cell.metadata.get("mystnb", {}), "image": {"alt": caption}}
    return notebook


def _pictures(cell: NotebookNode) -> bool:
    return any(kind.startswith("image/") for output in cell.get("outputs", []) for kind in output.get("data", {}))


def captions(notebook: NotebookNode) -> list[str]:
    """For every cell the words of the caption below it: the emphasised paragraph that opens the next Markdown cell,
    empty where there is none. It is what a reader is told who cannot see the figure."""
    found: list[str] = []
    below = ""
    for cell in reversed(notebook.cells):
        found.append(below)
        if cell.cell_type == "markdown":
            match = _CAPTION.match(cell.source)
            plain = re.sub(r"\{[\w:-]+\}`([^`]*)`", r"\1", match[1] if match else "")  # a reference: what it names
            below = " ".join(re.sub(r"[$`*\\]", "", plain).split())
    return found[::-1]


def reference(source: NotebookNode, run: NotebookNode) -> NotebookNode:
    """The notebook as it is committed: text outputs only, what is marked as measured left out."""
    notebook = _with_outputs(source, run)
    for cell in code_cells(notebook):
        cell.outputs = [output for output in map(_as_text, cell.outputs) if output is not None]
    return notebook


def _with_outputs(source: NotebookNode, run: NotebookNode) -> NotebookNode:
    notebook = copy.deepcopy(source)
    notebook.metadata = NotebookNode(kernelspec=dict(_KERNEL), language_info={"name": "python"})
    for cell in notebook.cells:
        cell.metadata = NotebookNode({key: value for key, value in cell.metadata.items() if key in ("tags", "mystnb")})
    for cell, ran in zip(code_cells(notebook), code_cells(run), strict=True):
        cell.outputs = list(_merged(copy.deepcopy(ran.outputs)))
        cell.execution_count = ran.execution_count
    return notebook


def _merged(outputs: list[NotebookNode]) -> Iterator[NotebookNode]:
    """Without standard error (bars, warnings), and neighbouring writes to standard output joined: how a kernel cuts
    its stream into messages differs from run to run."""
    previous: NotebookNode | None = None
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            continue
        output.pop("transient", None)
        if previous is not None and output.output_type == previous.output_type == "stream":
            previous.text += output.text
            continue
        if previous is not None:
            yield previous
        previous = output
    if previous is not None:
        yield previous


def _as_text(output: NotebookNode) -> NotebookNode | None:
    if output.output_type == "stream":
        output.text = blank(output.text)
    elif output.output_type in ("display_data", "execute_result"):
        kept: Mapping[str, Any] = {
            kind: blank(value) if isinstance(value, str) else value
            for kind, value in output.data.items()
            if not kind.startswith("image/")
        }
        if not kept:
            return None
        output.data = NotebookNode(kept)
        output.metadata = NotebookNode()
    return output
