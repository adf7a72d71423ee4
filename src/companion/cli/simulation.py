"""`companion experiment load-simulation`: recorded drafts served at any load, on any table of times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from companion.cli.common import Json, Output, report


def load_simulation(
    anchors: Annotated[
        Path | None, typer.Option(help="Blocks that `experiment anchors` recorded, NAME-0-T*.npz; default: the book's.")
    ] = None,
    capacity: Annotated[
        Path | None, typer.Option(help="A table that `companion profile` wrote; default: the book's, if there is one.")
    ] = None,
    calibration: Annotated[Path | None, typer.Option(help="Blocks to calibrate on; default: the book's.")] = None,
    real: Annotated[
        Path | None, typer.Option(help="Runs of `experiment load` on that table, to validate against.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Workloads, each of resampled responses.")] = 8,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    quick: Annotated[bool, typer.Option(help="Few loads and seeds, to see that it works.")] = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Throughput, speed and budget of every policy, an oracle beside them, and the open questions. Exit 0, 1 or 3."""
    from companion.experiments.simulation import study

    for given in (capacity, real):
        if given is not None and not given.is_file():
            raise ValueError(f"there is no file {given}; leave the option out for the book's")
    config = study.Config(seeds=seeds)
    result = study.run(
        output,
        config.quick() if quick else config,
        anchors=anchors,
        capacity=capacity,
        calibration=calibration,
        real=real,
        workers=workers,
    )
    report(study, result, as_json)
