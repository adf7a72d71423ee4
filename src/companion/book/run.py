"""The three things a reader or a maintainer asks for: the book, a comparison, fresh reference outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from companion.book import notebooks
from companion.book.execute import Execution, execute, prepare, stored_run
from companion.book.layout import Layout
from companion.book.pages import build, stage
from companion.provenance import file_hash, write_atomic, write_json

Say = Callable[[str], None]
CELL_TIMEOUT = 1800  # seconds; a kernel that hangs ends with a sentence and not with the patience of the reader


def say(line: str) -> None:
    print(line, flush=True)


def execute_all(
    layout: Layout,
    given: Mapping[str, Any],
    *,
    force: bool = False,
    cell_timeout: int | None = CELL_TIMEOUT,
    say: Say = say,
) -> dict[Path, Execution]:
    """Execute every notebook in reading order, or reuse its stored run, and say which.

    ValueError for a parameter that no notebook declares; NotebookError when a notebook fails.
    """
    sources = layout.sources()
    declared = {name for source in sources for name in _declared(source)}
    unknown = sorted(set(given) - declared)
    if unknown:
        raise ValueError(
            f"no notebook declares a parameter named {', '.join(unknown)}; known: {', '.join(sorted(declared))}"
        )
    runs = {}
    for number, source in enumerate(sources, 1):
        head = f"[{number}/{len(sources)}] {source.name}"
        chosen, key = prepare(source, layout, given)
        run = None if force else stored_run(source, layout, key)
        if run is not None:
            say(f"{head}: nothing it depends on has changed; reusing the run of {run.finished} ({run.seconds:.0f} s)")
        else:
            say(f"{head}: executing")
            run = execute(source, layout, chosen, key, cell_timeout=cell_timeout, progress=sys.stderr.isatty())
            say(f"{head}: executed in {run.seconds:.0f} s")
        if run.stderr.strip():
            say(f"{head}: note: its cells wrote to standard error: {run.stderr.strip().splitlines()[0][:160]}")
        runs[source] = run
    return runs


def reproduce(
    given: Mapping[str, Any] | None = None,
    *,
    layout: Layout | None = None,
    force: bool = False,
    strict: bool = True,
    cell_timeout: int | None = CELL_TIMEOUT,
    say: Say = say,
) -> Path:
    """Execute the notebooks and build the book. Returns the path of its first page.

    Args:
        given: parameters for the notebooks that declare them, for instance ``{"target": "Qwen/Qwen3-0.6B"}``.
        force: execute even what has not changed.
        strict: fail on any warning of the build.
        cell_timeout: seconds that one cell may take; None for no limit.
    """
    layout = layout or Layout.find()
    runs = execute_all(layout, given or {}, force=force, cell_timeout=cell_timeout, say=say)
    stage(layout, runs)
    say("building the pages")
    changed = build(layout, strict=strict)
    first = layout.html / "index.html"
    say(f"the book is {'built' if changed else 'up to date'}: open {first}")
    return first


def refresh(*, layout: Layout | None = None, say: Say = say) -> list[Path]:
    """Execute every notebook with its default parameters and rewrite its stored outputs; the files that changed.

    Run twice, the second run changes no byte.
    """
    layout = layout or Layout.find()
    changed = []
    for source, run in execute_all(layout, {}, force=True, say=say).items():
        if _rewrite(source, notebooks.reference(notebooks.read(source), run.notebook)):
            changed.append(source)
    say("rewritten: " + ", ".join(path.name for path in changed) if changed else "no stored output changed")
    return changed


def compare(*, layout: Layout | None = None, say: Say = say) -> int:
    """Run every notebook again under nbval and compare with its stored outputs; pytest's exit status.

    Notebooks that passed before and of which nothing has changed since are not run again, and named.
    """
    layout = layout or Layout.find()
    rules = layout.notebooks / "nbval_sanitize.cfg"
    record = layout.build / "compared.json"
    passed: dict[str, str] = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    keys = {}
    for source in layout.sources():
        _, key = prepare(source, layout, {})
        found = notebooks.stored_problems(notebooks.read(source))
        if found:
            raise ValueError(f"{source.name}: " + "; ".join(found))
        keys[source.name] = f"{file_hash(source)} {file_hash(rules)} {key}"
    due = [name for name in keys if passed.get(name) != keys[name]]
    if len(due) < len(keys):
        say("compared before and unchanged since: " + ", ".join(name for name in keys if name not in due))
    if not due:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", f"--nbval-sanitize-with={rules}"]
    command += [f"--nbval-cell-timeout={CELL_TIMEOUT}", "-p", "no:cacheprovider", f"--rootdir={layout.root}"]
    if not sys.stdout.isatty():
        command.append("--color=no")  # nbval colours its reports unless told
    status = subprocess.run(
        [*command, *(str(layout.notebooks / name) for name in due)],
        cwd=layout.root,
        env={**os.environ, "TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        check=False,
    ).returncode
    if status == 0:
        write_json(record, keys)
    return status


def _declared(source: Path) -> dict[str, Any]:
    try:
        return notebooks.parameters(notebooks.read(source))
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from error


def _rewrite(path: Path, notebook: Any) -> bool:
    text = notebooks.dumps(notebook)
    if path.read_text(encoding="utf-8") == text:
        return False
    write_atomic(path, text)
    return True
