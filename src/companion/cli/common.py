"""What the verbs share: their options, and how a result leaves the program."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

EXIT = {"holds": 0, "fails": 1, "inconclusive": 3}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
TargetName = Annotated[str, typer.Option(help="Embedded model, folder in the hub's layout, or hub id.")]
DrafterName = Annotated[str, typer.Option(help="'none', 'lookup', 'draft' (embedded model), a folder, or a hub id.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Same seed, same tokens, whatever shares the batch.")]


def print_json(record: Any) -> None:
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")


def report(experiment: Any, result: Any, as_json: bool) -> None:
    """One JSON object, or the tables of the experiment's module; a result with a verdict decides the exit code."""
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        experiment.show(result)
    if hasattr(result, "verdict"):
        raise typer.Exit(EXIT[result.verdict])
