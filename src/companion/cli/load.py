"""`companion profile` and `companion experiment load`: what a step takes, and serving many requests at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from companion.cli.common import Device, DrafterName, Json, Output, Seed, TargetName, report, resumable
from companion.cli.measure import experiment


def profile(
    target: TargetName = "tiny-qwen3",
    drafter: DrafterName = "dspark",
    threads: Annotated[
        list[int] | None, typer.Option(help="May be repeated, one table each; default: 1 and 2.")
    ] = None,
    requests: Annotated[
        list[int] | None, typer.Option(help="Requests at once; may be repeated. Default: 1, 2, 4, 8, 16, 32.")
    ] = None,
    contexts: Annotated[
        list[int] | None, typer.Option(help="Mean context lengths; may be repeated. Default: 64, 192, 384.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed steps of every cell, at least.")] = 8,
    seed: Seed = 0,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure SPS(B): what the engine's steps take by tokens, requests and context, on this machine."""
    from companion.experiments import capacity_profile as study

    given = {"threads": threads, "requests": requests, "contexts": contexts}
    config = study.Config(
        target=target,
        drafter=drafter,
        device=device,
        repeats=repeats,
        seed=seed,
        **{name: tuple(sorted(values)) for name, values in given.items() if values},
    )
    report(study, study.run(config, output), as_json)


@experiment.command("load")
def load(
    target: TargetName = "tiny-qwen3",
    drafter: DrafterName = "dspark",
    capacity: Annotated[
        Path | None, typer.Option(help="A table that `companion profile` wrote; default: the book's.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Blocks of this drafter on other prompts, to calibrate on; default: the book's.")
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="One line a run; a killed measurement goes on from it.")] = None,
    quick: Annotated[bool, typer.Option(help="A few short runs, to see that it works.")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Throughput and speed per user of every policy with 1 to 32 requests at once. Exit 0, 1 or 3."""
    from companion.experiments.load import study

    config = study.Config(target=target, drafter=drafter, device=device, seed=seed)
    with resumable("the runs that were done are kept"):
        result = study.run(output, rows, config.quick() if quick else config, capacity, calibration)
    report(study, result, as_json)
