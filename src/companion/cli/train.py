"""`companion train`: the embedded models and the drafters, each run resumable in its folder."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from companion.cli.common import Device, TargetName, resumable

ASK_ABOVE = 10 * 2**30  # bytes of features that are written without asking

train = typer.Typer(no_args_is_help=True, help="Train the embedded models, and drafters.")


class DrafterKind(StrEnum):
    dspark = "dspark"
    dflash = "dflash"
    eagle3 = "eagle3"
    medusa = "medusa"


class Head(StrEnum):
    vanilla = "vanilla"
    gated = "gated"
    rnn = "rnn"


class Precision(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"


@train.command("target")
def train_target(
    out: Annotated[Path, typer.Option(help="Run folder: log, checkpoint, and at the end the model.")] = Path(
        "runs/target"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the corpus and the initial weights.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; default: the shipped model's.")] = None,
    start: Annotated[
        str | None, typer.Option(help="Train on from this target, tiny-qwen3 for instance; default: from nothing.")
    ] = None,
    overlap: Annotated[
        float, typer.Option(help="Share of answers without thinking that are written as a thought would be.")
    ] = 0.25,
    workers: Annotated[int, typer.Option(help="Training processes.")] = 2,
    threads: Annotated[int, typer.Option(help="CPU threads of each.")] = 1,
) -> None:
    """Train tiny-qwen3 from nothing; the defaults are the recipe of the shipped weights. Resumes what is in --out."""
    from companion.training.target import TargetConfig, train_target

    config = TargetConfig(seed=seed, start=start, overlap=overlap, workers=workers, threads=threads)
    config = _with_steps(config, steps)
    result = train_target(config, out)
    _finish(result.finished, out)


@train.command("draft")
def train_draft(
    out: Annotated[Path, typer.Option(help="Run folder: target output, log, checkpoint, at the end the model.")] = Path(
        "runs/draft"
    ),
    target: TargetName = "tiny-qwen3",
    seed: Annotated[int, typer.Option(help="Seed of the prompts and the initial weights.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; default: the shipped model's.")] = None,
) -> None:
    """Train the draft model on the target's own output. Resumes what is in --out."""
    from companion.training.draft import DraftConfig, train_draft
    from companion.training.regenerate import Regeneration

    config = DraftConfig(seed=seed, traces=Regeneration(target=target, seed=seed))
    config = _with_steps(config, steps)
    _finish(train_draft(config, out).finished, out)


@train.command("drafter")
def train_drafter(
    kind: Annotated[DrafterKind, typer.Option(help="DFlash is DSpark without heads.")] = DrafterKind.dspark,
    head: Annotated[Head, typer.Option(help="DSpark's sequential head.")] = Head.vanilla,
    think_share: Annotated[float, typer.Option(help="Share of thinking traces, 0 to 1.")] = 0.0,
    samples: Annotated[int, typer.Option(help="Responses of the target to learn from.")] = 2400,
    layers: Annotated[int, typer.Option(help="Drafter layers (Eagle3 and Medusa have one).")] = 2,
    block_size: Annotated[int, typer.Option(help="Tokens drafted at once; Eagle3: unrolled steps.")] = 7,
    rank: Annotated[int, typer.Option(help="Of the Markov head; 0: none.")] = 32,
    target: TargetName = "tiny-qwen3",
    seed: Annotated[int, typer.Option(help="Of initial weights, order and anchors; the traces keep theirs.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; default: 2400.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/KIND.")] = None,
    data: Annotated[Path | None, typer.Option(help="Traces and features, to share between runs.")] = None,
    device: Device = "cpu",
    precision: Annotated[
        Precision | None, typer.Option(help="bf16: autocast, weights stay fp32. Default: bf16 on a GPU.")
    ] = None,
    batches_per_step: Annotated[
        int | None, typer.Option(help="Batches of an optimiser step, shared by the processes; give one each at least.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes on this CPU; default: 2, and 1 on a GPU. torchrun brings its own.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before large features are written.")] = False,
) -> None:
    """Train DSpark, DFlash, Eagle3 or Medusa heads on the target's own output and hidden states.

    Resumes what is in --out. On several GPUs: torchrun --nproc-per-node 8 -m companion train drafter --device cuda ...
    """
    from companion.engine.load import find_model
    from companion.engine.target import Qwen3Shape
    from companion.training.drafter import DrafterConfig, dflash_config, train_drafter
    from companion.training.group import is_first
    from companion.training.recipe import spread_layers
    from companion.training.regenerate import Regeneration

    common: dict[str, Any] = {
        "traces": Regeneration(target=target, seed=2, samples=samples, think_share=think_share),
        "target_layers": spread_layers(Qwen3Shape.from_config(find_model(target).config()).layers),
        "layers": layers if kind in (DrafterKind.dspark, DrafterKind.dflash) else 1,
        "block_size": block_size,
        "seed": seed,
        "precision": precision.value if precision else "bf16" if device.startswith("cuda") else "fp32",
    }
    if batches_per_step is not None:
        common["batches_per_step"] = batches_per_step
    if kind is DrafterKind.dflash:
        config = dflash_config(**common)
    else:
        config = DrafterConfig(**common, kind=kind.value, head=head.value, rank=rank)  # type: ignore[arg-type]
    config = _with_steps(config, steps)

    def agree(tokens: int, size: int) -> bool:
        sentence = f"The target's hidden states take {tokens:,} tokens x {size // max(tokens, 1):,} bytes"
        Console(stderr=True, highlight=False).print(f"{sentence} = {size / 2**30:.2f} GiB on disk.")
        return yes or size < ASK_ABOVE or typer.confirm("Write them?")

    folder = out or Path("runs") / kind.value
    if workers is None:
        workers = 1 if device.startswith("cuda") else 2
    finished = train_drafter(config, folder, data, workers=workers, device=device, agree=agree).finished
    if is_first():
        _finish(finished, folder)


@train.command("drafters")
def train_drafters(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recipes: dflash, dspark, dspark-rnn, eagle3, medusa, medusa-markov, dspark-think-5, -50, -100; "
            "default: all of these. Or ablations: groups (depth, gamma, head, rank, anchor, weight, confidence, mix, "
            "backbone), or single ones (depth-5)."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of each; default: 5 of dflash and dspark, else 3.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/drafters"),
    data: Annotated[Path | None, typer.Option(help="Folder of traces and features; default: --out.")] = None,
    device: Device = "cpu",
    workers: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
) -> None:
    """Train the drafters of the book, or ablations of them, several seeds of each. Resumes what is in --out."""
    from companion.training.zoo import train_zoo

    with resumable("the last checkpoint of every run is kept"):
        folders = train_zoo(out, names, seeds, workers, data, device)
    for folder in folders:
        sys.stdout.write(f"{folder}\n")


def _with_steps(config: Any, steps: int | None) -> Any:
    return config if steps is None else replace(config, schedule=replace(config.schedule, steps=steps))


def _finish(finished: bool, out: Path) -> None:
    if not finished:
        Console(stderr=True).print(f"stopped; the checkpoint is in {out}, and the same command goes on from there")
        raise typer.Exit(130)
    sys.stdout.write(f"{out / 'model'}\n")
