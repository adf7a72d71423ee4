"""`companion experiment forced-exit`: answer accuracy against think length, without and with each exit rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from companion.cli.common import Device, Json, Output, TargetName, report, resumable


def forced_exit(
    target: TargetName = "tiny-qwen3",
    tuning: Annotated[int, typer.Option(help="Prompts per domain on which settings are chosen.")] = 50,
    judging: Annotated[int, typer.Option(help="Other prompts per domain, on which they are judged.")] = 120,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Sampling seed; may be repeated. Default: 0 and 1.")
    ] = None,
    probe_every: Annotated[int, typer.Option(help="Think tokens between two places where a span can be left.")] = 8,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    max_new_tokens: Annotated[int, typer.Option(help="Cap on a response, its thought included.")] = 600,
    rows: Annotated[
        Path | None, typer.Option(help="One line per response; a killed run goes on from it. Default: a file in runs/.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few prompts, to see that it works.")] = False,
    workers: Annotated[int, typer.Option(help="Processes; they change no number.")] = 1,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """What ending a thought early costs and saves: the note's rules, the answer entropy's, and a fixed length.

    Exit code 0: what the recording rests on holds; 1: it does not; 3: too little data.
    """
    from companion.experiments.forced_exit import study

    config = study.Config(
        target=target,
        device=device,
        tuning=tuning,
        judging=judging,
        seeds=tuple(seeds or (0, 1)),
        probe_every=probe_every,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
    )
    with resumable("the responses that were done are kept"):
        result = study.run(config.quick() if quick else config, output, rows, workers)
    report(study, result, as_json)
