"""What the verbs share: their options, and how a result leaves the program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

EXIT = {"holds": 0, "fails": 1, "inconclusive": 3}
INTERRUPTED = 130


def writable(path: Path | None) -> Path | None:
    """The same path, if a file can be written there. ValueError otherwise: before anything is measured for it."""
    if path is None:
        return None
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; name a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ValueError(f"cannot write {path}: nothing can be put into {folder}; name another place")
    return path


Output = Annotated[Path | None, typer.Option(help="Store the result, with provenance, as JSON.", callback=writable)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
TargetName = Annotated[str, typer.Option(help="Embedded model, folder in the hub's layout, or hub id.")]
DrafterName = Annotated[
    str, typer.Option(help="none, lookup, draft, dspark or another name in data/drafters; a folder; or a hub id.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a target from the hub.")]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="True shapes, weights drawn: for timing; the text means nothing.")
]
Graphs = Annotated[bool, typer.Option("--graphs", help="CUDA graphs for short forwards; not run on a GPU yet.")]
Seed = Annotated[int, typer.Option(help="Same seed, same tokens, whatever shares the batch.")]


def print_json(record: Any) -> None:
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """Ctrl-C inside says what is kept (a clause), and that the same command goes on from there."""
    try:
        yield
    except KeyboardInterrupt as stop:
        Console(stderr=True, highlight=False).print(f"stopped; {kept}, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from stop


def report(experiment: Any, result: Any, as_json: bool) -> None:
    """One JSON object, or the tables of the experiment's module; a result with a verdict decides the exit code."""
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        experiment.show(result)
    if getattr(result, "verdict", None):
        raise typer.Exit(EXIT[result.verdict])
