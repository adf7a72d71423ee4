"""Stage the pages and build them strictly; what was there before stays until the new HTML is complete."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from companion.book import notebooks
from companion.book.claims import claims_tables, read_claims
from companion.book.execute import Execution, NotebookError, environment_hash
from companion.book.layout import Layout, tree_hash
from companion.book.status import status_tables
from companion.provenance import write_atomic


class BuildError(ValueError):
    """The book did not build; the message holds the warnings and where the log is."""


def stage(layout: Layout, runs: Mapping[Path, Execution]) -> None:
    """Lay out in ``build/stage`` exactly what the book is built from: pages, configuration, executed notebooks.

    NotebookError when an executed notebook holds an error output, which Sphinx would publish.
    """
    layout.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stage-", dir=layout.build) as scratch:
        root = Path(scratch) / "stage"
        shutil.copytree(layout.root / "book", root, ignore=shutil.ignore_patterns(".*"))
        shutil.copy2(layout.root / "_config.yml", root / "_config.yml")
        (root / "notebooks").mkdir()
        for source, run in runs.items():
            broken = notebooks.errors(run.notebook)
            if broken:
                raise NotebookError(f"{source.name}: " + "; ".join(broken))
            page = notebooks.page(notebooks.read(source), run.notebook)
            (root / "notebooks" / source.name).write_text(notebooks.dumps(page), encoding="utf-8")
        generated = root / "generated"
        generated.mkdir()
        claims = layout.root / "book" / "claims"
        pieces = status_tables(runs)
        if claims.is_dir():
            pieces |= claims_tables(read_claims(claims), layout.root)
        for name, piece in pieces.items():
            (generated / f"{name}.md").write_text(piece, encoding="utf-8")
        told = layout.root / "data" / "results" / "phase_gap.json.gz"
        if told.is_file():
            _draw_story(told, generated / "story.png")
        if layout.stage.exists():
            layout.stage.rename(Path(scratch) / "old")
        root.rename(layout.stage)


def _draw_story(result: Path, picture: Path) -> None:
    from companion.experiments.phase_gap import study
    from companion.figures import use_style
    from companion.figures_story import story

    use_style()
    story(study.load(result)).savefig(picture, metadata={"Software": None})


def build(layout: Layout, *, strict: bool = True) -> bool:
    """Build ``build/html`` from ``build/stage``; False when it is already built from the very same files.

    Always from nothing: a second, incremental build would not repeat the warnings of the first and so turn a failure
    into a success.
    """
    key = tree_hash(sorted(path for path in layout.stage.rglob("*") if path.is_file()), layout.stage)
    key = f"{key} {environment_hash()} {'strict' if strict else 'lenient'}"
    stamp = layout.build / "html.key"
    if (layout.html / "index.html").is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return False
    log = layout.build / "html.log"
    with tempfile.TemporaryDirectory(prefix="html-", dir=layout.build) as scratch:
        command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build"]
        command += ["-W", "-n", "--keep-going"] if strict else []
        with log.open("w", encoding="utf-8") as sink:
            status = subprocess.run(
                [*command, str(layout.stage), "--path-output", scratch],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        built = Path(scratch) / "_build" / "html"
        if status != 0 or not (built / "index.html").is_file():
            raise BuildError(_complaint(log, status))
        stamp.unlink(missing_ok=True)
        if layout.html.exists():
            layout.html.rename(Path(scratch) / "old")
        built.rename(layout.html)
    write_atomic(stamp, key)
    return True


def _complaint(log: Path, status: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line.strip() for line in lines if "WARNING" in line or "ERROR" in line or "Error:" in line]
    return "\n  ".join([f"jupyter-book stopped with status {status}; its log is {log}", *(telling or lines[-5:])])
