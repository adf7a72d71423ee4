"""`companion vllm`: measure acceptance by phase on vLLM, and print what our scheduler is to be told there."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from companion.cli.common import EXIT, Json, TargetName, print_json, writable

vllm = typer.Typer(no_args_is_help=True, help="vLLM as the engine: phase-segmented acceptance, our depth policy.")


class Method(StrEnum):
    dspark = "dspark"
    dflash = "dflash"
    eagle = "eagle"
    eagle3 = "eagle3"
    draft_model = "draft_model"
    ngram = "ngram"


PolicyTable = Annotated[
    str | None,
    typer.Option(
        help='JSON: {"depth": 3}, {"think": 2, "output": 7}, {"hook": FILE, "target": NAME, "drafter": NAME} or '
        '{"factory": "module:callable", "arguments": {}}.'
    ),
]
Log = Annotated[Path | None, typer.Option(help="The scheduler's file of rounds, begun anew.", callback=writable)]
Probe = Annotated[Path | None, typer.Option(help="Its file of row statistics (runner V2).", callback=writable)]
Revision = Annotated[str | None, typer.Option(help="Commit on the hub; default: the newest.")]


def table(text: str | None, name: str) -> dict[str, Any] | None:
    """A JSON object given on the command line. ValueError for anything else."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a JSON object, got {text}")
    return found


@vllm.command()
def options(
    target: TargetName = "tiny-qwen3",
    policy: PolicyTable = None,
    log: Log = None,
    probe: Probe = None,
    untested: Annotated[bool, typer.Option("--untested", help="Accept another release of vLLM.")] = False,
    revision: Revision = None,
) -> None:
    """The JSON for `vllm serve --additional-config`: think tags of the target's tokenizer, policy, files."""
    from companion.phase.tracker import ThinkTokens
    from companion.serving.vllm.options import Options
    from companion.serving.vllm_measure import tokenizer_of

    tags = ThinkTokens.of(tokenizer_of(target, revision))
    told = Options(tags, table(policy, "--policy"), log and log.absolute(), probe and probe.absolute(), untested)
    print_json(told.to_dict())


@vllm.command()
def export(
    drafter: Annotated[str, typer.Argument(help="Eagle3 in DeepSpec's layout: embedded name, folder or hub id.")],
    folder: Annotated[Path, typer.Argument(help="Where to write what vLLM reads.")],
) -> None:
    """A drafter under the configuration that vLLM asks for; the weights are copied as they are."""
    from companion.serving.vllm.export import export as write

    method = write(drafter, folder)
    Console(highlight=False, soft_wrap=True).print(f"{folder}: method {method}", markup=False)


@vllm.command()
def measure(
    output: Annotated[Path, typer.Option(help="Rounds file; a run that was cut goes on from it.", callback=writable)],
    drafter: Annotated[str | None, typer.Option(help="Embedded name, folder or hub id; none for ngram.")] = None,
    method: Annotated[Method, typer.Option(help="vLLM's speculative method.")] = Method.dspark,
    depth: Annotated[int, typer.Option(help="num_speculative_tokens.")] = 7,
    target: TargetName = "tiny-qwen3",
    server: Annotated[str | None, typer.Option(help="Address of a running server; default: vLLM in here.")] = None,
    served_model: Annotated[str | None, typer.Option(help="Its name there, if several are served.")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at once to a server.")] = 8,
    prompts: Annotated[list[str] | None, typer.Option(help="As in experiment phase-gap; default: held-out.")] = None,
    per_domain: Annotated[int, typer.Option(help="Prompts of each domain.")] = 20,
    prompt_seed: Annotated[int, typer.Option(help="Which held-out prompts.")] = 11,
    think: Annotated[bool, typer.Option("--think/--no-think", help="The template's enable_thinking.")] = True,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="None: all.")] = None,
    top_p: Annotated[float, typer.Option(help="1: all.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of vLLM's draws, the same for each request.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="Cap of an answer.")] = 600,
    group: Annotated[int, typer.Option(help="Prompts that are asked, reconciled and written together.")] = 32,
    policy: PolicyTable = None,
    log: Log = None,
    probe: Probe = None,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Asynchronous scheduling, where our scheduler is used.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="JSON: arguments of vLLM's LLM, such as tensor_parallel_size.")
    ] = None,
    target_revision: Revision = None,
    drafter_revision: Revision = None,
    untested: Annotated[bool, typer.Option("--untested", help="Accept another release of vLLM.")] = False,
    as_json: Json = False,
) -> None:
    """Accepted lengths inside and outside the think span on vLLM. Exit code 3: a phase is empty.

    With --server, --policy and --log say what the server was started with; its log must be readable from here.
    """
    from companion.experiments.phase_gap.prompts import HELD_OUT, load_prompts
    from companion.phase.report import Report
    from companion.phase.sources import ledger_of_rounds
    from companion.phase.tracker import ThinkTokens
    from companion.protocols import Sampling
    from companion.serving.vllm import release
    from companion.serving.vllm.options import Options
    from companion.serving.vllm_measure import (
        Offline,
        Plan,
        Server,
        Setup,
        identify,
        place_of,
        questions_of,
        tokenizer_of,
    )
    from companion.serving.vllm_measure import measure as run

    told = table(policy, "--policy")
    plan = Plan(
        method=method.value,
        depth=depth,
        target=identify(target, target_revision),
        drafter=identify(drafter, drafter_revision) if drafter else {"name": "ngram", "revision": "prompt lookup"},
        thinking=think,
        sampling=Sampling(temperature, top_k, top_p),
        seed=seed,
        max_new_tokens=max_new_tokens,
        group=group,
        policy=told,
        log=log,
        rows=probe,
    )
    tokenizer = tokenizer_of(target, target_revision)
    tags = ThinkTokens.of(tokenizer)
    asked = load_prompts(tuple(prompts or (HELD_OUT,)), per_domain, prompt_seed)
    questions = questions_of(asked.prompts, tokenizer, thinking=think)
    if server is not None:
        running: Any = Server(server, served_model, concurrency=concurrency)
        release.check_release(running.release, untested=untested)
    else:
        ours = Options(tags, told, log, probe, untested) if told or log or probe else None
        setup = Setup(
            target=place_of(target),
            method=method.value,
            depth=depth,
            drafter=place_of(drafter) if drafter else None,
            target_revision=target_revision,
            drafter_revision=drafter_revision,
            options=ours,
            asynchronous=asynchronous,
            seed=seed,
            arguments=table(engine, "--engine") or {},
        )
        running = Offline(setup, untested=untested)
    report = Report(ledger_of_rounds(run(running, plan, questions, tags, output)))
    arms = {"think": report.think, "output": report.output}
    if as_json:
        found = {name: arm.mean_length and arm.mean_length.value for name, arm in arms.items()}
        print_json(
            {
                "rounds": len(report.ledger.steps),
                "mean_accepted_length": found,
                "straddling": report.straddles.rate,
                "origin": report.origin.banner,
            }
        )
    else:
        Console(highlight=False, soft_wrap=True).print(str(report), markup=False)
    if any(arm.mean_length is None for arm in arms.values()):
        raise typer.Exit(EXIT["inconclusive"])


@vllm.command()
def compare(
    output: Annotated[Path | None, typer.Option(help="Result file (JSON).", callback=writable)] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where arms are kept as they are done; default: runs/vllm_comparison.")
    ] = None,
    target: TargetName = "tiny-qwen3",
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="METHOD=NAME, ngram= for none; may be repeated. The policy steers the first."),
    ] = None,
    depth: Annotated[int, typer.Option(help="num_speculative_tokens.")] = 4,
    inside: Annotated[int, typer.Option(help="The policy's depth inside the think span.")] = 1,
    per_domain: Annotated[int, typer.Option(help="Prompts of each domain.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(help="Cap of an answer.")] = 400,
    device: Annotated[str, typer.Option(help="Of this engine; cpu also starts vLLM in fp32 and eager.")] = "cpu",
    engine: Annotated[str | None, typer.Option(help="JSON: arguments of vLLM's LLM.")] = None,
    as_json: Json = False,
) -> None:
    """The same prompts through this engine and through vLLM, greedy: texts, accepted lengths by phase, our policy.

    Exit code 1 where a text differs from plain decoding's by this engine.
    """
    from companion.experiments import vllm_comparison as study

    given: dict[str, Any] = {}
    if drafter:
        pairs = [one.partition("=") for one in drafter]
        if not all(sign for _, sign, _ in pairs):
            raise ValueError(f"a drafter is given as METHOD=NAME, got {', '.join(drafter)}")
        given["drafters"] = {method: name or None for method, _, name in pairs}
    config = study.Config(
        target=target,
        depth=depth,
        policy={"think": inside, "output": depth},
        per_domain=per_domain,
        max_new_tokens=max_new_tokens,
        device=device,
        arguments=table(engine, "--engine") or {},
        **given,
    )
    result = study.run(output, folder, config)
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        study.show(result)
    if any(arm.same < arm.compared for arm in result.arms):
        raise typer.Exit(EXIT["fails"])
