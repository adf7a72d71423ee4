"""Execute a notebook with papermill, and know when a stored run still stands.

A run happens in a process of its own, in a temporary folder, and is moved into place when it is complete, so that an
interrupt leaves either the old result or the new one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
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

_CHILD = Path(__file__).with_name("child.py")


class NotebookError(ValueError):
    """A notebook did not run to its end, or breaks a convention; the message names the notebook and the cell."""


@dataclass(frozen=True)
class Execution:
    """One complete run of a notebook."""

    notebook: NotebookNode
    key: str
    seconds: float
    finished: str  # UTC, ISO 8601
    stderr: str = ""  # what its cells wrote to standard error; not shown in the book


def prepare(source: Path, layout: Layout, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Those of the ``given`` parameters that the notebook declares, and the key of a run with them.

    NotebookError when the notebook breaks a convention.
    """
    notebook = notebooks.read(source)
    found = notebooks.source_problems(notebook)
    if found:
        raise NotebookError(f"{source.name}: " + "; ".join(found))
    chosen = {name: given[name] for name in notebooks.parameters(notebook) if name in given}
    return chosen, run_key(notebook, layout, chosen)


def stored_run(source: Path, layout: Layout, key: str) -> Execution | None:
    """The complete run that is stored for this notebook, if it has this key."""
    stored = layout.executed / source.name
    if not stored.is_file():
        return None
    try:
        notebook = notebooks.read(stored)
    except ValueError:
        return None  # damaged from outside; it can be made again
    record = notebook.metadata.get("companion", {})
    if record.get("key") != key:
        return None
    return Execution(notebook, key, record["seconds"], record["finished"], _stderr(notebook))


def execute(
    source: Path,
    layout: Layout,
    chosen: Mapping[str, Any],
    key: str,
    *,
    cell_timeout: int | None = None,
    progress: bool = False,
) -> Execution:
    """Run ``source`` and store the run under ``key``; ``chosen`` and ``key`` are what `prepare` returned.

    Args:
        cell_timeout: seconds that one cell may take; None for no limit.
        progress: show papermill's bar over the cells.

    Raises NotebookError with the notebook, the cell and the exception when the run fails.
    """
    layout.build.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=layout.build) as scratch,
        tempfile.TemporaryDirectory() as sockets,  # the system's folder: the path of a socket must be short
    ):
        output = Path(scratch) / source.name
        order = {
            "source": str(source),
            "output": str(output),
            "cwd": str(layout.notebooks),
            "parameters": dict(chosen),
            "sockets": f"{sockets}/kernel",
            "timeout": cell_timeout,
            "progress": progress,
        }
        started = time.monotonic()
        failure = _run(order, output, layout)
        seconds = round(time.monotonic() - started, 1)
        if failure is not None:
            if output.is_file():
                layout.failed.mkdir(parents=True, exist_ok=True)
                output.replace(layout.failed / source.name)
            raise NotebookError(f"{source.name}: {failure}")
        ran = notebooks.read(output)
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    ran.metadata["companion"] = {"key": key, "seconds": seconds, "finished": finished}
    write_atomic(layout.executed / source.name, notebooks.dumps(ran))
    return Execution(ran, key, seconds, finished, _stderr(ran))


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
    installed = {f"{found.metadata['Name']}=={found.version}" for found in importlib.metadata.distributions()}
    return hashlib.sha256("\n".join([sys.version, *sorted(installed)]).encode()).hexdigest()


def _stderr(notebook: NotebookNode) -> str:
    return "".join(
        output.text
        for cell in notebooks.code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    )


def _run(order: Mapping[str, Any], output: Path, layout: Layout) -> str | None:
    """None, or one sentence on what went wrong."""
    process = subprocess.Popen([sys.executable, "-P", str(_CHILD)], stdin=subprocess.PIPE, text=True)
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
