"""The command line: `companion VERB --help` is enough to use each verb.

Exit codes: 0 done or holds, 1 fails or bad input, 2 usage, 3 inconclusive (nothing was compared).
"""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

ASK_ABOVE = 10 * 2**30  # bytes of features that are written without asking
EXIT = {"holds": 0, "fails": 1, "inconclusive": 3}

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
train = typer.Typer(no_args_is_help=True, help="Train the embedded models, and drafters.")
evaluate = typer.Typer(no_args_is_help=True, help="Measure a model against its bars.")
bench = typer.Typer(no_args_is_help=True, help="Speed and memory, as ratios within one run.")
experiment = typer.Typer(no_args_is_help=True, help="Measurements of the book, stored with their provenance.")
app.add_typer(train, name="train")
app.add_typer(evaluate, name="evaluate")
app.add_typer(bench, name="bench")
app.add_typer(experiment, name="experiment")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
TargetName = Annotated[str, typer.Option(help="Embedded model, folder in the hub's layout, or hub id.")]
DrafterName = Annotated[str, typer.Option(help="'none', 'lookup', 'draft' (embedded model), a folder, or a hub id.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Same seed, same tokens, whatever shares the batch.")]


class Planner(StrEnum):
    iid = "iid"
    certified = "certified"


class DrafterKind(StrEnum):
    dspark = "dspark"
    dflash = "dflash"
    eagle3 = "eagle3"


class Head(StrEnum):
    vanilla = "vanilla"
    gated = "gated"
    rnn = "rnn"


class Proposal(StrEnum):
    sampled = "sampled"
    greedy = "greedy"


def main() -> None:
    """Entry point: a user's mistake is one sentence on standard error, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console without the character shows a question mark
    try:
        app()
    except (ValueError, OSError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {_escape(str(error))}")
        sys.exit(1)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _print_json(record: Any) -> None:
    sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")


@app.command()
def generate(
    prompt: Annotated[str, typer.Option(help="The user's message; '-' reads standard input.")],
    target: TargetName = "tiny-qwen3",
    drafter: DrafterName = "draft",
    depth: Annotated[
        int | None, typer.Option(help="Tokens drafted and verified per round; default: the drafter's.")
    ] = None,
    proposal: Annotated[Proposal, typer.Option(help="How a draft model proposes.")] = Proposal.sampled,
    max_new_tokens: Annotated[int, typer.Option(help="Cap on new tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set with this mass.")] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Keep tokens with at least this share of the largest probability.")
    ] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="A stop string; may be repeated.")] = None,
    think: Annotated[bool, typer.Option("--think/--no-think", help="The chat template's enable_thinking.")] = True,
    seed: Seed = 0,
    device: Device = "cpu",
    stream: Annotated[bool, typer.Option("--stream", help="Print text as it is committed.")] = False,
    as_json: Json = False,
) -> None:
    """Decode one prompt, losslessly, with a drafter or plainly (--drafter none)."""
    import companion
    from companion.metrics import committed_per_round

    if stream and as_json:
        raise typer.BadParameter("--stream and --json exclude each other")
    model = companion.load_target(target, device=device)
    speculator = companion.load_drafter(drafter, model, max_depth=depth, proposal=proposal.value)
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt  # the line's end is not the prompt's
    events = companion.stream(
        model,
        speculator,
        text,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        stop_strings=stop or (),
        seed=seed,
        thinking=think,
    )
    result = None
    for event in events:
        if stream:
            sys.stdout.write(event.text)
            sys.stdout.flush()
        result = event.result
    assert result is not None
    if as_json:
        rounds = [asdict(row) for row in result.rounds]
        record = {"text": result.text, "token_ids": result.tokens, "finish_reason": result.finish_reason}
        _print_json({**record, "phases": result.phases, "prompt_ids": result.prompt_tokens, "rounds": rounds})
        return
    sys.stdout.write("\n" if stream else result.text + "\n")
    pace = f", {committed_per_round(result.rounds):.2f} tokens per round" if result.rounds else ""
    Console(stderr=True, highlight=False).print(
        f"[dim]{len(result.tokens)} tokens, finished by {result.finish_reason}, {len(result.rounds)} rounds{pace}[/]"
    )


@app.command()
def ceiling(
    entropy: Annotated[float, typer.Argument(help="Entropy of the verifying distribution, nats.")],
    vocab: Annotated[int, typer.Option(help="Vocabulary size, or the kept set's size under top-k or top-p.")] = 151_936,
    support: Annotated[int, typer.Option(help="Tokens in the drafter's support; 1 is a deterministic drafter.")] = 1,
    as_json: Json = False,
) -> None:
    """Bounds on the largest probability at an entropy: floor e^-H, ceiling p*(H, V) (the note, Prop. 4)."""
    from companion.ceiling import entropy_floor, top_m_ceiling

    if not math.isfinite(entropy):
        raise ValueError(f"entropy must be a finite number of nats, got {entropy}")
    if vocab < 1:
        raise ValueError(f"vocab must be at least 1, got {vocab}")
    if not 0 <= entropy <= math.log(vocab) + 1e-12:
        raise ValueError(
            f"the entropy of {vocab:,} tokens lies between 0 and {math.log(vocab):.4f} nats, got {entropy}"
        )
    record = {
        "entropy": entropy,
        "vocab": vocab,
        "support": support,
        "floor": float(entropy_floor(entropy)),
        "ceiling": float(top_m_ceiling(entropy, vocab, support)),
    }
    if as_json:
        _print_json(record)
    else:
        sys.stdout.write(f"floor {record['floor']:.6f}  ceiling {record['ceiling']:.6f}\n")


@app.command()
def plan(
    acceptance: Annotated[float, typer.Option(help="Per-position acceptance, or a ceiling on it.")],
    max_depth: Annotated[int, typer.Option(help="Deepest draft allowed.")] = 7,
    min_depth: Annotated[int, typer.Option(help="Shallowest draft allowed.")] = 1,
    planner: Annotated[
        Planner, typer.Option(help="i.i.d. model, or what is certified from slot 1 alone.")
    ] = Planner.iid,
    draft_token_us: Annotated[float, typer.Option(help="Placeholder of the note, not a measurement.")] = 40.0,
    verify_fixed_us: Annotated[float, typer.Option(help="Placeholder of the note, not a measurement.")] = 900.0,
    verify_token_us: Annotated[float, typer.Option(help="Placeholder of the note, not a measurement.")] = 25.0,
    as_json: Json = False,
) -> None:
    """The draft depth that maximises expected tokens per microsecond (the note, section 6)."""
    from companion.planning import CostModel, plan_depth

    cost = CostModel(draft_token_us, verify_fixed_us, verify_token_us)
    best = plan_depth(acceptance, cost, planner=planner.value, min_depth=min_depth, max_depth=max_depth)
    if as_json:
        _print_json({**asdict(best), "cost_us": asdict(cost)})
    else:
        most = "at most " if planner is Planner.certified else ""  # an upper bound, and no expectation
        sys.stdout.write(f"depth {best.depth} ({best.planner}, {most}{best.tokens_per_round:.3f} tokens per round)\n")


@app.command()
def reproduce(
    target: Annotated[str | None, typer.Option(help="Run the notebooks on this target instead of their own.")] = None,
    drafter: Annotated[
        str | None, typer.Option(help="Draft model of that target: one that shares its tokenizer.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: the notebooks' own.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Full sample sizes instead of quick ones.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Execute even what has not changed.")] = False,
    cell_timeout: Annotated[int, typer.Option(help="Seconds that one cell may take; 0 for no limit.")] = 1800,
) -> None:
    """Execute every notebook with papermill and build the book; prints where it is."""
    from companion.book.run import reproduce as build

    given = {"target": target, "drafter": drafter, "draft": drafter, "device": device, "quick": False if full else None}
    build(
        {name: value for name, value in given.items() if value is not None},
        force=force,
        cell_timeout=cell_timeout or None,
    )


@train.command("target")
def train_target(
    out: Annotated[Path, typer.Option(help="Run folder: log, checkpoint, and at the end the model.")] = Path(
        "runs/target"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the corpus and the initial weights.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; default: the shipped model's.")] = None,
    workers: Annotated[int, typer.Option(help="Training processes.")] = 2,
    threads: Annotated[int, typer.Option(help="CPU threads of each.")] = 1,
) -> None:
    """Train tiny-qwen3 from nothing; the defaults are the recipe of the shipped weights. Resumes what is in --out."""
    from dataclasses import replace

    from companion.training.target import TargetConfig, train_target

    config = TargetConfig(seed=seed, workers=workers, threads=threads)
    if steps is not None:
        config = replace(config, schedule=replace(config.schedule, steps=steps))
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
    from dataclasses import replace

    from companion.training.draft import DraftConfig, train_draft
    from companion.training.regenerate import Regeneration

    config = DraftConfig(seed=seed, traces=Regeneration(target=target, seed=seed))
    if steps is not None:
        config = replace(config, schedule=replace(config.schedule, steps=steps))
    _finish(train_draft(config, out).finished, out)


@train.command("drafter")
def train_drafter(
    kind: Annotated[DrafterKind, typer.Option(help="DFlash is DSpark without heads.")] = DrafterKind.dspark,
    head: Annotated[Head, typer.Option(help="DSpark's sequential head.")] = Head.vanilla,
    think_share: Annotated[float, typer.Option(help="Share of thinking traces, 0 to 1.")] = 0.0,
    samples: Annotated[int, typer.Option(help="Responses of the target to learn from.")] = 2400,
    layers: Annotated[int, typer.Option(help="Drafter layers (Eagle3 has one).")] = 2,
    block_size: Annotated[int, typer.Option(help="Tokens drafted at once; Eagle3: unrolled steps.")] = 7,
    rank: Annotated[int, typer.Option(help="Of the Markov head.")] = 32,
    target: TargetName = "tiny-qwen3",
    seed: Annotated[int, typer.Option(help="Of initial weights, order and anchors; the traces keep theirs.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; default: 800.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/KIND.")] = None,
    data: Annotated[Path | None, typer.Option(help="Traces and features, to share between runs.")] = None,
    workers: Annotated[int, typer.Option(help="Training processes.")] = 2,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before large features are written.")] = False,
) -> None:
    """Train DSpark, DFlash or Eagle3 on the target's own output and hidden states. Resumes what is in --out."""
    from dataclasses import replace

    from companion.training.drafter import DrafterConfig, dflash_config, train_drafter
    from companion.training.regenerate import Regeneration

    common: dict[str, Any] = {
        "traces": Regeneration(target=target, seed=2, samples=samples, think_share=think_share),
        "layers": 1 if kind is DrafterKind.eagle3 else layers,
        "block_size": block_size,
        "seed": seed,
    }
    if kind is DrafterKind.dflash:
        config = dflash_config(**common)
    else:
        config = DrafterConfig(**common, kind=kind.value, head=head.value, rank=rank)  # type: ignore[arg-type]
    if steps is not None:
        config = replace(config, schedule=replace(config.schedule, steps=steps))

    def agree(tokens: int, size: int) -> bool:
        sentence = f"The target's hidden states take {tokens:,} tokens x {size // max(tokens, 1):,} bytes"
        Console(stderr=True, highlight=False).print(f"{sentence} = {size / 2**30:.2f} GiB on disk.")
        return yes or size < ASK_ABOVE or typer.confirm("Write them?")

    folder = out or Path("runs") / kind.value
    _finish(train_drafter(config, folder, data, workers=workers, agree=agree).finished, folder)


@train.command("drafters")
def train_drafters(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Recipes: dflash, dspark, dspark-rnn, eagle3, dspark-think-5, -50, -100; default: all."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of each; default: 5 of dflash and dspark, else 3.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs, their traces and features.")] = Path("runs/drafters"),
    workers: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
) -> None:
    """Train DFlash, DSpark (four mixes and heads) and Eagle3, several seeds of each. Resumes what is in --out."""
    from companion.training.zoo import train_zoo

    for folder in train_zoo(out, names, seeds, workers):
        sys.stdout.write(f"{folder}\n")


def _finish(finished: bool, out: Path) -> None:
    if not finished:
        Console(stderr=True).print(f"stopped; the checkpoint is in {out}, and the same command goes on from there")
        raise typer.Exit(130)
    sys.stdout.write(f"{out / 'model'}\n")


@evaluate.command("target")
def evaluate_target(
    target: TargetName = "tiny-qwen3",
    samples: Annotated[int, typer.Option(help="Held-out prompts per domain, mode and temperature.")] = 1000,
    other_samples: Annotated[int, typer.Option(help="Prompts of each harder held-out kind.")] = 250,
    seed: Seed = 0,
    device: Device = "cpu",
    output: Annotated[Path | None, typer.Option(help="Store the result, with provenance, as JSON.")] = None,
    rows: Annotated[Path | None, typer.Option(help="One line per response; a killed run goes on from it.")] = None,
    workers: Annotated[int, typer.Option(help="Processes; they change no number.")] = 1,
    as_json: Json = False,
) -> None:
    """Does it reason: right answers, format and entropy, each bar with its 95 % interval. Exit 0, 1 or 3."""
    from companion.experiments import evaluate_target as experiment

    config = experiment.Config(target=target, samples=samples, other_samples=other_samples, seed=seed, device=device)
    result = experiment.run(config, output, rows, workers)
    if as_json:
        _print_json(result.model_dump(mode="json"))
    else:
        experiment.show(result)
    raise typer.Exit(EXIT[result.verdict])


@evaluate.command("drafter")
def evaluate_drafter(
    drafter: DrafterName = "draft",
    target: TargetName = "tiny-qwen3",
    depth: Annotated[int, typer.Option(help="Tokens drafted per round.")] = 5,
    prompts: Annotated[int, typer.Option(help="Held-out prompts per domain and mode.")] = 60,
    at_least: Annotated[float, typer.Option(help="Demanded tau with thinking off, all domains together.")] = 2.5,
    seed: Seed = 0,
    device: Device = "cpu",
    output: Annotated[Path | None, typer.Option(help="Store the result, with provenance, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Accepted length by domain, mode and phase, sampled and greedy, with 95 % intervals. Exit 0, 1 or 3."""
    from companion.experiments import evaluate_drafter as experiment

    config = experiment.Config(
        target=target, drafter=drafter, depth=depth, prompts=prompts, at_least=at_least, seed=seed, device=device
    )
    result = experiment.run(config, output)
    if as_json:
        _print_json(result.model_dump(mode="json"))
    else:
        experiment.show(result)
    raise typer.Exit(EXIT[result.verdict])


@experiment.command("drafter-rounds")
def drafter_rounds(
    models: Annotated[Path, typer.Option(help="Folder of trained drafters, NAME-SEED/model.")] = Path("runs/drafters"),
    output: Annotated[Path, typer.Option(help="One file a drafter and temperature; a killed run goes on.")] = Path(
        "runs/rounds"
    ),
    target: TargetName = "tiny-qwen3",
    prompts: Annotated[int, typer.Option(help="Held-out prompts per domain and mode.")] = 60,
    temperatures: Annotated[list[float] | None, typer.Option(help="May be repeated; default: 0 and 1.")] = None,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Processes; they change no number.")] = 2,
) -> None:
    """Decode held-out prompts with every trained drafter, and keep the Rounds."""
    from companion.experiments import drafter_rounds as study

    config = study.Config(target=target, prompts=prompts, temperatures=tuple(temperatures or (0.0, 1.0)), seed=seed)
    for path in study.run(models, output, config, workers):
        sys.stdout.write(f"{path}\n")


@experiment.command("accepted-length")
def accepted_length(
    rounds: Annotated[Path | None, typer.Option(help="Stored rounds; default: those of the book's drafters.")] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples over prompts and seeds.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Store the result, with provenance, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Accepted length and acceptance by position of every drafter, with 95 % intervals. Exit 0, 1 or 3."""
    from companion.engine.load import data_folder
    from companion.experiments import accepted_length as study

    folder = rounds or data_folder() / "results" / "drafters"
    result = study.run(folder, output, study.Config(resamples=resamples, seed=seed))
    if as_json:
        _print_json(result.model_dump(mode="json"))
    else:
        study.show(result)
    raise typer.Exit(EXIT[result.verdict])


@bench.command("decode")
def bench_decode(
    target: TargetName = "tiny-qwen3",
    draft: Annotated[str, typer.Option(help="Draft model for both engines.")] = "tiny-qwen3-draft",
    prompts: Annotated[int, typer.Option(help="Prompts per domain.")] = 6,
    repeats: Annotated[int, typer.Option(help="Timed passes; the median is reported.")] = 3,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
    device: Device = "cpu",
    output: Annotated[Path | None, typer.Option(help="Also store the result, with provenance, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Tokens per second: our engine, plain and speculative, against transformers' generate on the same weights."""
    from companion.experiments import bench_decode as experiment

    config = experiment.Config(
        target=target, draft=draft, prompts=prompts, repeats=repeats, threads=threads, device=device
    )
    result = experiment.run(config, output)
    if as_json:
        _print_json(result.model_dump(mode="json"))
    else:
        experiment.show(result)


@bench.command("show")
def bench_show(
    result: Annotated[Path, typer.Argument(help="A file that `bench decode --output` wrote.")],
    picture: Annotated[Path | None, typer.Option(help="Also draw it, as PNG.")] = None,
) -> None:
    """Print the tables of a stored benchmark, and draw its picture."""
    from companion.experiments import bench_decode as experiment

    stored = experiment.load(result)
    experiment.show(stored)
    if picture is not None:
        from companion import figures, figures_bench

        figures.use_style()
        figures_bench.speed(stored).savefig(picture)


if __name__ == "__main__":
    main()
