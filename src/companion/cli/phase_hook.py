"""`companion experiment phase-hook`: what the note's hook is worth, by phase."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from companion.cli.common import Device, Json, Output, Seed, TargetName, report, resumable


def phase_hook(
    target: TargetName = "tiny-qwen3",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="A name as elsewhere, with -argmax behind it for deterministic proposals; may be repeated. Default: "
            "the embedded ones."
        ),
    ] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="May be repeated; default: 0 and 1.")] = None,
    prompts: Annotated[int, typer.Option(help="Judged prompts of each domain.")] = 5,
    repeats: Annotated[int, typer.Option(help="Answers to each of them.")] = 1,
    threads: Annotated[int, typer.Option(help="Of torch, on a CPU.")] = 1,
    rows: Annotated[
        Path | None, typer.Option(help="One line a drafter and temperature; a killed run goes on from it.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Two drafters and few prompts, to see that it works.")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Wall-clock and accepted length by phase: hook off, uncalibrated, calibrated, oracle. Exit 0, 1 or 3."""
    from companion.experiments.phase_hook import study

    given = {"drafters": drafter, "temperatures": temperature}
    chosen = {name: tuple(values) for name, values in given.items() if values}
    config = study.Config(target=target, prompts=prompts, repeats=repeats, threads=threads, device=device, seed=seed)
    config = (config.quick() if quick else config).model_copy(update=chosen)
    with resumable("the drafters and temperatures that were done are kept"):
        result = study.run(output, rows, config)
    report(study, result, as_json)
