"""Execute a notebook with papermill, unless nothing that it depends on has changed since it last ran.

A run happens in a process of its own, in a temporary folder, and is moved into place when it is complete, so that an
interrupt leaves either the old result or the new one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from companion.book import notebooks
from companion.book.layout import Layout
from companion.provenance import write_atomic


class NotebookError(ValueError):
    """A notebook did not run to its end, or breaks a convention; the message names the notebook and the cell."""


@dataclass(frozen=True)
class Execution:
    """One complete run of a notebook."""

    notebook: NotebookNode
    key: str
    seconds: float
    finished: str  # UTC, ISO 8601
    reused: bool
    stderr: str = ""  # what its cells wrote to standard error; not shown in the book


def execute(
    source: Path,
    layout: Layout,
    given: Mapping[str, Any],
    *,
    force: bool = False,
    cell_timeout: int | None = None,
    progress: bool = False,
) -> Execution:
    """Run ``source`` with those of the ``given`` parameters that it declares, or return the stored run.

    Args:
        given: values for the notebook's ``parameters`` cell.
        force: run even if the stored run is still valid.
        cell_timeout: seconds that one cell may take; None for no limit.
        progress: show papermill's bar over the cells.

    Raises NotebookError with the notebook, the cell and the exception when the run fails.
    """
    notebook = notebooks.read(source)
    found = notebooks.source_problems(notebook)
    if found:
        raise NotebookError(f"{source.name}: " + "; ".join(found))
    chosen = {name: given[name] for name in notebooks.parameters(notebook) if name in given}
    stored = layout.executed / source.name
    key = run_key(notebook, layout, chosen)
    if not force and stored.is_file():
        previous = _load(stored)
        if previous is not None and previous.key == key:
            return previous
    layout.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=layout.build) as scratch:
        output = Path(scratch) / source.name
        started = time.monotonic()
        failure = _run(source, output, layout, chosen, cell_timeout, progress)
        seconds = time.monotonic() - started
        if failure is not None:
            if output.is_file():
                layout.failed.mkdir(parents=True, exist_ok=True)
                output.replace(layout.failed / source.name)
            raise NotebookError(f"{source.name}: {failure}")
        ran = notebooks.read(output)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    ran.metadata["companion"] = {"key": key, "seconds": round(seconds, 1), "finished": finished}
    write_atomic(stored, notebooks.dumps(ran))
    return Execution(ran, key, round(seconds, 1), finished, reused=False, stderr=_stderr(ran))


def run_key(notebook: NotebookNode, layout: Layout, chosen: Mapping[str, Any]) -> str:
    """A hash of all that decides a run: code cells, parameters, our package, the data folder, installed versions.

    Prose is not part of it: a corrected sentence reaches the page without a new run.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps([cell.source for cell in notebooks.code_cells(notebook)]).encode())
    digest.update(json.dumps(dict(sorted(chosen.items()))).encode())
    digest.update(layout.inputs_hash().encode())
    digest.update(environment_hash().encode())
    return digest.hexdigest()


@cache
def environment_hash() -> str:
    """A hash of the interpreter's version and of every installed distribution's."""
    installed = sorted(
        f"{distribution.metadata['Name']}=={distribution.version}"
        for distribution in importlib.metadata.distributions()
    )
    return hashlib.sha256("\n".join([sys.version, *installed]).encode()).hexdigest()


def _load(stored: Path) -> Execution | None:
    try:
        notebook = notebooks.read(stored)
    except ValueError:
        return None  # damaged from outside; it can be made again
    record = notebook.metadata.get("companion")
    if record is None:
        return None
    return Execution(notebook, record["key"], record["seconds"], record["finished"], True, _stderr(notebook))


def _stderr(notebook: NotebookNode) -> str:
    return "".join(
        output.text
        for cell in notebooks.code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    )


def _run(
    source: Path, output: Path, layout: Layout, chosen: Mapping[str, Any], cell_timeout: int | None, progress: bool
) -> str | None:
    """None, or one sentence on what went wrong."""
    order = {
        "source": str(source),
        "output": str(output),
        "cwd": str(layout.notebooks),
        "parameters": dict(chosen),
        "timeout": cell_timeout,
        "progress": progress,
    }
    process = subprocess.Popen([sys.executable, "-m", "companion.book.execute"], stdin=subprocess.PIPE, text=True)
    try:
        process.communicate(json.dumps(order))
    except BaseException:  # Ctrl-C, above all: papermill ends its kernel on SIGINT
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    if process.returncode == 0:
        return None
    if not output.is_file():
        return f"the kernel could not be started (exit status {process.returncode}, message above)"
    return next(
        (f"{line}; its partial output is kept in {layout.failed}" for line in notebooks.errors(notebooks.read(output))),
        f"the run ended without finishing (exit status {process.returncode}, message above)",
    )


def main() -> int:
    """The process that runs one notebook: an order as JSON on standard input."""
    order = json.load(sys.stdin)
    import papermill  # after this import, so that papermill keeps the bar that the kernel's environment turns off
    import tqdm.auto  # noqa: F401

    os.environ.update({"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "JUPYTER_PREFER_ENV_PATH": "1"})
    try:
        papermill.execute_notebook(
            order["source"],
            order["output"],
            parameters=order["parameters"],
            kernel_name="python3",
            cwd=order["cwd"],
            execution_timeout=order["timeout"],
            progress_bar=order["progress"],
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
    except KeyboardInterrupt:
        return 130
    except papermill.PapermillExecutionError as error:
        print("\n".join(error.traceback), file=sys.stderr)
        return 1
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
