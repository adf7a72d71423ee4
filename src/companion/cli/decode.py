"""The verbs that decode, plan and build the book."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from companion.cli.common import (
    Device,
    DrafterName,
    Graphs,
    Json,
    RandomWeights,
    Revision,
    Seed,
    TargetName,
    print_json,
    resumable,
)

if TYPE_CHECKING:
    from companion.engine.load import TextTarget
    from companion.protocols import Drafter
    from companion.scheduling.phase_hook import PhaseHook


class Planner(StrEnum):
    iid = "iid"
    certified = "certified"


class Proposal(StrEnum):
    sampled = "sampled"
    greedy = "greedy"


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
    hook: Annotated[
        Path | None,
        typer.Option(help="Choose depths by phase: a settings file, as `experiment phase-rates` writes it."),
    ] = None,
    capacity: Annotated[
        Path | None, typer.Option(help="The hook's costs: a table of `companion profile`; default: the file's own.")
    ] = None,
    think: Annotated[bool, typer.Option("--think/--no-think", help="The chat template's enable_thinking.")] = True,
    seed: Seed = 0,
    device: Device = "cpu",
    revision: Revision = None,
    random_weights: RandomWeights = False,
    graphs: Graphs = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print text as it is committed.")] = False,
    as_json: Json = False,
) -> None:
    """Decode one prompt, losslessly, with a drafter or plainly (--drafter none)."""
    import companion
    from companion.metrics import committed_per_round

    if stream and as_json:
        raise typer.BadParameter("--stream and --json exclude each other")
    if capacity is not None and hook is None:
        raise typer.BadParameter("--capacity holds the costs of a hook; name the hook's settings, too (--hook)")
    model = companion.load_target(
        target, device=device, revision=revision, random_weights=random_weights, graphs=graphs
    )
    drawn = random_weights and drafter in ("dspark", "dflash")
    speculator = companion.load_drafter(drafter, model, max_depth=depth, proposal=proposal.value, random_weights=drawn)
    policy = None if hook is None else _hook(hook, capacity, model, drafter, speculator)
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt  # the line's end is not the prompt's
    events = companion.stream(
        model,
        speculator,
        text if model.tokenizer else list(text.encode()),  # drawn weights read any ids
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        stop_strings=stop or (),
        policy=policy,
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
        record: dict[str, Any] = {"random_weights": True} if random_weights else {}
        record |= {"text": result.text, "token_ids": result.tokens, "finish_reason": result.finish_reason}
        print_json({**record, "phases": result.phases, "prompt_ids": result.prompt_tokens, "rounds": rounds})
        return
    sys.stdout.write("\n" if stream else result.text + "\n")
    pace = f", {committed_per_round(result.rounds):.2f} tokens per round" if result.rounds else ""
    counts = f"{_count(len(result.tokens), 'token')}, finished by {result.finish_reason}"
    if random_weights:
        counts = f"{model.name}, so the text means nothing: {counts}"
    Console(stderr=True, highlight=False).print(f"[dim]{counts}, {_count(len(result.rounds), 'round')}{pace}[/]")


def _hook(path: Path, capacity: Path | None, target: TextTarget, name: str, drafter: Drafter | None) -> PhaseHook:
    """The hook of a settings file for models that are loaded; ``name`` is what ``drafter`` was loaded by."""
    from companion.engine.load import find_model
    from companion.phase.origin import revision
    from companion.scheduling.capacity_file import load_capacity
    from companion.scheduling.hook_settings import load_hook
    from companion.scheduling.phase_hook import Serving

    if drafter is None:
        raise ValueError("without a drafter there is no depth to choose; name a drafter, or leave the hook out")
    described = None if name == "lookup" else find_model("tiny-qwen3-draft" if name == "draft" else name).describe()
    known = None if described is None else revision(described)
    return load_hook(
        path,
        serving=Serving(target.name, drafter.name, revision(target.source), known),
        vocab_size=target.vocab_size,
        deepest=drafter.max_depth,
        deterministic=drafter.deterministic,
        costs=None if capacity is None else load_capacity(capacity, target=target.source, drafter=described),
    )


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


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
        print_json(record)
    else:
        sys.stdout.write(f"floor {record['floor']:.6f}  ceiling {record['ceiling']:.6f}\n")


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
        print_json({**asdict(best), "cost_us": asdict(cost)})
    else:
        most = "at most " if planner is Planner.certified else ""  # an upper bound, and no expectation
        sys.stdout.write(f"depth {best.depth} ({best.planner}, {most}{best.tokens_per_round:.3f} tokens per round)\n")


def reproduce(
    target: Annotated[str | None, typer.Option(help="Run the notebooks on this target instead of their own.")] = None,
    drafter: Annotated[
        str | None, typer.Option(help="Draft model of that target: one that shares its tokenizer.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: the notebooks' own.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Full sample sizes instead of quick ones.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Execute even what has not changed.")] = False,
    cell_timeout: Annotated[int, typer.Option(min=0, help="Seconds that one cell may take; 0 for no limit.")] = 1800,
) -> None:
    """Execute every notebook with papermill and build the book; prints where it is."""
    from companion.book.run import reproduce as build

    given = {"target": target, "drafter": drafter, "device": device, "quick": False if full else None}
    chosen = {name: value for name, value in given.items() if value is not None}
    with resumable("the chapters that were done are kept"):
        build(chosen, force=force, cell_timeout=cell_timeout or None)
