"""`companion experiment phase-gap`, `phase-rates` and `phase-signals`: Phase 1 on any target and any drafters of it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from companion.cli.common import Device, Json, Output, Seed, TargetName, print_json, report, resumable, writable


class Rate(StrEnum):
    solved = "solved"
    token_acceptance = "token_acceptance"


class Straddle(StrEnum):
    exclude = "exclude"
    to_think = "to_think"
    to_output = "to_output"
    by_token = "by_token"


class Kept(StrEnum):
    all = "all"
    first = "first"
    none = "none"


def phase_gap(
    drafter: Annotated[
        list[str] | None, typer.Option(help="Embedded name, folder or hub id; may be repeated. Default: dspark.")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Also every trained drafter in this folder, NAME-SEED/model.")
    ] = None,
    target: TargetName = "tiny-qwen3",
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            help='JSONL with "prompt" and "domain", math500, gsm8k, mt-bench, a data set of the hub, or held-out (the '
            "embedded corpora, the default); may be repeated."
        ),
    ] = None,
    per_domain: Annotated[int, typer.Option(help="Prompts of each domain, asked with thinking on and off.")] = 100,
    temperatures: Annotated[list[float] | None, typer.Option(help="May be repeated; default: 0 and 1.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Kept by target and drafter at temperatures above 0.")] = None,
    top_p: Annotated[float, typer.Option(help="As top-k.")] = 1.0,
    seeds: Annotated[list[int] | None, typer.Option(help="Of the draws; may be repeated. Default: 0.")] = None,
    prompt_seed: Annotated[int, typer.Option(help="Which held-out prompts.")] = 11,
    max_new_tokens: Annotated[int, typer.Option(help="Cap of a response; those that reach it are counted.")] = 600,
    max_batch: Annotated[int, typer.Option(help="Requests at once.")] = 30,
    rounds: Annotated[Path, typer.Option(help="Folder of the recordings; a killed run goes on from it.")] = Path(
        "runs/phase_gap"
    ),
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Keep what was generated.")] = False,
    keep_rows: Annotated[
        bool, typer.Option("--keep-rows", help="Keep every statistic of every row too, as a Rounds file in JSONL.")
    ] = False,
    confidence: Annotated[
        Kept, typer.Option(help="Of which training seeds confidences are kept: they are most of a file.")
    ] = Kept.all,
    workers: Annotated[int, typer.Option(help="Processes, one recording each; they change no number.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print tokens, hours and disk; decode nothing.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Decode nothing; judge what the folder holds.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few prompts, to see that it works.")] = False,
    straddle: Annotated[
        Straddle, typer.Option(help="Where rounds with tokens of both phases count.")
    ] = Straddle.exclude,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples over prompts and training seeds.")] = 2000,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Is the accepted length inside the think span lower than outside (H1), the confidence worse (H2): Phase 1.

    Exit code 0: the demands hold; 1: one fails; 3: too little data for one, an empty phase say.
    """
    from companion.experiments.phase_gap import cost, design, study
    from companion.experiments.phase_gap.prompts import HELD_OUT

    config = design.Config(
        target=target,
        device=device,
        per_domain=per_domain,
        prompt_seed=prompt_seed,
        sources=tuple(prompts or (HELD_OUT,)),
        temperatures=tuple(temperatures or (0.0, 1.0)),
        top_k=top_k,
        top_p=top_p,
        seeds=tuple(seeds or (0,)),
        max_new_tokens=max_new_tokens,
        max_batch=max_batch,
        confidence=confidence.value,
        keep_text=keep_text,
    )
    config = config.quick() if quick else config
    analysis = study.Analysis(resamples=resamples, straddle=straddle.value)
    if stored:
        return report(study, study.judge_folder(rounds, output, analysis), as_json)
    named = drafter or ([] if models else ["dspark"])
    if dry_run:
        found = study.dry_run(config, named, models, rounds, keep_rows=keep_rows)
        return print_json(found.model_dump(mode="json")) if as_json else cost.show(found)
    with resumable("the responses that were done are kept"):
        result = study.run(config, named, models, rounds, output, analysis, workers=workers, keep_rows=keep_rows)
    report(study, result, as_json)


def phase_rates(
    recording: Annotated[Path, typer.Argument(help="A recording of phase-gap: DRAFTER-SEED-TEMPERATURE-SEED.npz.")],
    target: TargetName = "tiny-qwen3",
    rate: Annotated[
        Rate, typer.Option(help="What a planner means by an acceptance rate, or the note's smaller one.")
    ] = Rate.solved,
    output: Annotated[Path | None, typer.Option(help="Write the file; default: print it.", callback=writable)] = None,
) -> None:
    """The settings file of a hook (TOML) with the rates of a recording, for `companion generate --hook`."""
    from companion.engine.load import find_model
    from companion.engine.target import Qwen3Shape
    from companion.experiments.phase_gap.hook_file import hook_file

    vocab_size = Qwen3Shape.from_config(find_model(target).config()).vocab_size
    text = hook_file(recording, vocab_size, rate.value)
    if output is None:
        sys.stdout.write(text)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")


def phase_signals(
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="Embedded name, folder or hub id; may be repeated. Default: dspark, dspark-think-50."),
    ] = None,
    target: TargetName = "tiny-qwen3",
    prompts: Annotated[list[str] | None, typer.Option(help="As in phase-gap; default: held-out.")] = None,
    per_domain: Annotated[int, typer.Option(help="Prompts of each domain, asked with thinking on and off.")] = 40,
    prompt_seed: Annotated[int, typer.Option(help="Which held-out prompts.")] = 12,
    temperature: Annotated[float, typer.Option(help="Above 0: a greedy row has no entropy to speak of.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Decoded without it, and with it.")] = 20,
    max_new_tokens: Annotated[int, typer.Option(help="Cap of a response.")] = 600,
    max_batch: Annotated[int, typer.Option(help="Requests at once.")] = 30,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples over prompts.")] = 300,
    seed: Seed = 0,
    device: Device = "cpu",
    output: Output = None,
    as_json: Json = False,
) -> None:
    """What a ceiling, the confidence, the note's EAT and a phase's own rate see of acceptance, and one row late."""
    from companion.experiments import phase_signals as study

    config = study.Config(
        target=target,
        per_domain=per_domain,
        prompt_seed=prompt_seed,
        temperature=temperature,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        max_batch=max_batch,
        resamples=resamples,
        seed=seed,
        device=device,
    )
    given = {"drafters": drafter, "sources": prompts}
    config = config.model_copy(update={name: tuple(values) for name, values in given.items() if values})
    report(study, study.run(config, output), as_json)
