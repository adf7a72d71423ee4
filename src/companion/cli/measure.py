"""`companion evaluate`, `bench` and `experiment`: measurements, printed or stored with their provenance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from companion.cli.common import Device, DrafterName, Json, Output, Seed, TargetName, report, resumable, writable

evaluate = typer.Typer(no_args_is_help=True, help="Measure a model against its bars.")
bench = typer.Typer(no_args_is_help=True, help="Speed and memory, as ratios within one run.")
experiment = typer.Typer(no_args_is_help=True, help="Measurements of the book, stored with their provenance.")


@evaluate.command("target")
def evaluate_target(
    target: TargetName = "tiny-qwen3",
    samples: Annotated[int, typer.Option(help="Held-out prompts per domain, mode and temperature.")] = 1000,
    other_samples: Annotated[int, typer.Option(help="Prompts of each harder held-out kind.")] = 250,
    seed: Seed = 0,
    device: Device = "cpu",
    output: Output = None,
    rows: Annotated[
        Path | None, typer.Option(help="One line per response; a killed run goes on from it. Default: a file in runs/.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes; they change no number.")] = 1,
    as_json: Json = False,
) -> None:
    """Does it reason: right answers, format and entropy, each bar with its 95 % interval.

    Exit code 0: all bars hold; 1: one fails; 3: too little data for one.
    """
    from companion.experiments import evaluate_target as study

    config = study.Config(target=target, samples=samples, other_samples=other_samples, seed=seed, device=device)
    with resumable("the responses that were done are kept"):
        result = study.run(config, output, rows, workers)
    report(study, result, as_json)


@evaluate.command("drafter")
def evaluate_drafter(
    drafter: DrafterName = "draft",
    target: TargetName = "tiny-qwen3",
    depth: Annotated[int, typer.Option(help="Tokens drafted per round.")] = 5,
    prompts: Annotated[int, typer.Option(help="Held-out prompts per domain and mode.")] = 60,
    at_least: Annotated[
        float | None,
        typer.Option(help="Demand this tau with thinking off, all domains together; 'draft' must reach 2.5."),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Accepted length by domain, mode and phase, sampled and greedy, with 95 % intervals.

    Exit code 0: the demand holds, or there is none; 1: it fails; 3: too little data.
    """
    from companion.experiments import evaluate_drafter as study

    if at_least is None and drafter == study.DRAFT_MODEL:
        at_least = study.DRAFT_MODEL_TAU
    config = study.Config(
        target=target, drafter=drafter, depth=depth, prompts=prompts, at_least=at_least, seed=seed, device=device
    )
    result = study.run(config, output)
    report(study, result, as_json)


@experiment.command("drafter-rounds")
def drafter_rounds(
    models: Annotated[Path, typer.Option(help="Folder of trained drafters, NAME-SEED/model.")] = Path("runs/drafters"),
    output: Annotated[Path, typer.Option(help="One file a drafter and temperature; a killed run goes on.")] = Path(
        "runs/rounds"
    ),
    target: TargetName = "tiny-qwen3",
    prompts: Annotated[int, typer.Option(help="Held-out prompts per domain and mode.")] = 60,
    temperatures: Annotated[list[float] | None, typer.Option(help="May be repeated; default: 0 and 1.")] = None,
    confidence: Annotated[bool, typer.Option(help="Keep that of every slot: it is most of a file.")] = True,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Processes; they change no number.")] = 2,
) -> None:
    """Decode held-out prompts with every trained drafter, and keep the Rounds."""
    from companion.experiments import drafter_rounds as study

    at = tuple(temperatures or (0.0, 1.0))
    config = study.Config(target=target, prompts=prompts, temperatures=at, seed=seed, confidence=confidence)
    with resumable("the files that were done are kept"):
        paths = study.run(models, output, config, workers)
    for path in paths:
        sys.stdout.write(f"{path}\n")


@experiment.command("accepted-length")
def accepted_length(
    rounds: Annotated[Path | None, typer.Option(help="Stored rounds; default: those of the book's drafters.")] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples over prompts and seeds.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Accepted length and acceptance by position of every drafter, with 95 % intervals.

    Exit code 0: all bars hold; 1: one fails; 3: too little data for one.
    """
    from companion.engine.load import data_folder
    from companion.experiments import accepted_length as study

    folder = rounds or data_folder() / "results" / "drafters"
    result = study.run(folder, output, study.Config(resamples=resamples, seed=seed))
    report(study, result, as_json)


@experiment.command("anchors")
def anchors(
    models: Annotated[Path, typer.Option(help="Folder of trained drafters, NAME-SEED/model.")] = Path("runs/drafters"),
    output: Annotated[Path, typer.Option(help="One file a drafter and temperature; a killed run goes on.")] = Path(
        "runs/anchors"
    ),
    target: TargetName = "tiny-qwen3",
    anchors: Annotated[int, typer.Option(help="Of each domain and mode; whole responses are taken.")] = 1200,
    prompts: Annotated[int, typer.Option(help="Most held-out prompts taken for them, per domain and mode.")] = 60,
    every: Annotated[int, typer.Option(help="Draft at every n-th token; above 1 no loop can be followed.")] = 1,
    temperatures: Annotated[list[float] | None, typer.Option(help="May be repeated; default: 0 and 1.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Kept by target and drafter at temperatures above 0.")] = None,
    thinking: Annotated[bool | None, typer.Option(help="Only responses with thinking on, or off.")] = None,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Processes; they change no number.")] = 2,
) -> None:
    """Draft at every token of the target's own responses with every trained drafter, and keep the blocks."""
    from companion.experiments import anchor_survey as study
    from companion.training.corpus import MODES

    config = study.Config(
        target=target,
        anchors=anchors,
        prompts=prompts,
        every=every,
        top_k=top_k,
        modes=MODES if thinking is None else ("think",) if thinking else ("no_think",),
        temperatures=tuple(temperatures or (0.0, 1.0)),
        seed=seed,
    )
    for path in study.run(models, output, config, workers):
        sys.stdout.write(f"{path}\n")


@experiment.command("decay")
def decay(
    anchors: Annotated[Path | None, typer.Option(help="Stored blocks; default: those of the book's drafters.")] = None,
    rounds: Annotated[Path | None, typer.Option(help="Stored rounds of the same drafters' real loops.")] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples over prompts and seeds.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Conditional acceptance by position at many anchors, and the real loop beside it. Exit 0, 1 or 3."""
    from companion.engine.load import data_folder
    from companion.experiments import suffix_decay as study

    results = data_folder() / "results"
    loop = rounds if rounds is not None or anchors is not None else results / "drafters"
    result = study.run(anchors or results / "anchors", loop, output, study.Config(resamples=resamples, seed=seed))
    report(study, result, as_json)


@experiment.command("calibration")
def calibration(
    anchors: Annotated[
        Path | None, typer.Option(help="Stored blocks of one drafter, at several samplings; default: the book's.")
    ] = None,
    rounds: Annotated[
        list[Path] | None, typer.Option(help="Rounds files of the same drafter's real loop; may be repeated.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples over prompts.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    output: Output = None,
    temperatures: Annotated[
        Path | None, typer.Option(help="Store the fitted temperatures for a scheduler.", callback=writable)
    ] = None,
    as_json: Json = False,
) -> None:
    """Does a temperature mend the confidence head: by position, domain, phase and sampling. Exit 0, 1 or 3."""
    from companion.engine.load import data_folder
    from companion.experiments import calibration as study

    results = data_folder() / "results"
    own = [results / "drafters" / f"dspark-0-T{t}.npz" for t in (0, 1)]
    loop = rounds if rounds is not None or anchors is not None else own
    config = study.Config(resamples=resamples, seed=seed)
    result = study.run(anchors or results / "calibration", loop or [], output, temperatures, config)
    report(study, result, as_json)


@experiment.command("ablations")
def ablations(
    rounds: Annotated[
        list[Path] | None, typer.Option(help="Stored rounds; may be repeated. Default: the book's, and its ablations'.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples over prompts and seeds.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """One change at a time: accepted length by group, paired differences, and the confidence heads' forecasts."""
    from companion.engine.load import data_folder
    from companion.experiments import ablations as study

    stored = data_folder() / "results"
    folders = rounds or [stored / "drafters", stored / "ablations"]
    report(study, study.run(folders, output, study.Config(resamples=resamples, seed=seed)), as_json)


@experiment.command("broken-triples")
def broken_triples(
    models: Annotated[Path, typer.Option(help="Folder of trained drafters, NAME-SEED/model.")] = Path("runs/drafters"),
    reference: Annotated[Path, typer.Option(help="Where the target's reference text is kept.")] = Path("runs/chat"),
    target: TargetName = "tiny-qwen3",
    prompts: Annotated[int, typer.Option(help="Held-out chat prompts.")] = 60,
    answers: Annotated[int, typer.Option(help="Answers to other chat prompts that make the reference.")] = 3000,
    seed: Seed = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Chat drafts whose pairs of tokens are fine and whose triples are not: what a bigram head cannot see."""
    from companion.experiments import broken_triples as study

    config = study.Config(target=target, prompts=prompts, reference=answers, seed=seed)
    report(study, study.run(models, reference, output, config), as_json)


@bench.command("decode")
def bench_decode(
    target: TargetName = "tiny-qwen3",
    draft: Annotated[str, typer.Option(help="Draft model for both engines.")] = "tiny-qwen3-draft",
    prompts: Annotated[int, typer.Option(help="Prompts per domain.")] = 6,
    repeats: Annotated[int, typer.Option(help="Timed passes; the median is reported.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Tokens per second: our engine, plain and speculative, against transformers' generate on the same weights."""
    from companion.experiments import bench_decode as study

    config = study.Config(target=target, draft=draft, prompts=prompts, repeats=repeats, threads=threads, device=device)
    result = study.run(config, output)
    report(study, result, as_json)


@bench.command("drafters")
def bench_drafters(
    models: Annotated[list[Path], typer.Argument(help="Folders of drafters, or of runs: NAME-SEED/model.")],
    target: TargetName = "tiny-qwen3",
    prompts: Annotated[int, typer.Option(help="Prompts per domain.")] = 6,
    repeats: Annotated[int, typer.Option(help="Timed passes.")] = 3,
    threads: Annotated[list[int] | None, typer.Option(help="May be repeated; default: 1 and 2.")] = None,
    proposals: Annotated[int, typer.Option(help="Timed proposals of each family and length.")] = 30,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Wall-clock of drafters over plain decoding, lookup and transformers, by domain and stage. Exit 0, 1 or 3."""
    from companion.experiments import bench_drafters as study

    config = study.Config(
        target=target,
        prompts=prompts,
        repeats=repeats,
        threads=tuple(threads or (1, 2)),
        proposals=proposals,
        device=device,
    )
    report(study, study.run(models, config, output), as_json)


@bench.command("show")
def bench_show(
    result: Annotated[Path, typer.Argument(help="A file that `bench decode` or `bench drafters` wrote.")],
    picture: Annotated[Path | None, typer.Option(help="Also draw it, as PNG.")] = None,
) -> None:
    """Print the tables of a stored benchmark, and draw its picture."""
    from companion.experiments import bench_decode, bench_drafters

    drafters = bench_drafters.is_result(result)
    study: Any = bench_drafters if drafters else bench_decode
    stored = study.load(result)
    study.show(stored)
    if picture is not None:
        from companion import figures, figures_bench

        figures.use_style()
        draw: Any = figures_bench.drafter_speeds if drafters else figures_bench.speed
        draw(stored).savefig(picture)
