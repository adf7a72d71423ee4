"""Recording Phase 1: rows appended as responses end, and a killed run ends with the numbers of one that was not.

Prompts are decoded in fixed groups (`Chunk`). A group that was cut is decoded again as a whole, since rounding may
depend on what shares a batch, and the responses of it that were done are kept as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion import protocols
from companion.compact import load_provenance
from companion.engine.generate import GenerationResult
from companion.engine.load import ModelFolder, TextTarget, find_model
from companion.experiments.phase_gap.design import Arm, Chunk, Config, Drafter, check, chunks
from companion.experiments.phase_gap.prompts import PromptSet
from companion.experiments.phase_gap.stored import check_same, save_arm
from companion.experiments.stored import append_rows, resume_rows
from companion.metrics import committed_per_round
from companion.parallel import ordered_map
from companion.provenance import collect
from companion.rounds import Round, Rounds, RoundsWriter
from companion.training.corpus import MODES


class Text(BaseModel):
    """What a response said, kept only when that was asked for."""

    prompt_id: str
    text: str


def record(
    config: Config, prompts: PromptSet, planned: Sequence[Arm], output: Path, *, workers: int = 1, rows: bool = False
) -> list[Path]:
    """Record what ``output`` does not hold yet; returns the files, one a recording.

    With ``rows`` the full rounds stay beside them as JSONL, every statistic of every row included. Everything that can
    be refused is refused before anything is decoded: another run's files, prompts that do not fit, a drafter of another
    target (ValueError).
    """
    check(config)
    target = _load(config.target, config.device)
    _check_prompts(target, prompts, config)
    for drafter in dict.fromkeys(arm.drafter for arm in planned):
        _depth(drafter.model, config.target, config.device)
    todo = [arm for arm in planned if not _done(config, prompts, arm, output)]
    for arm in () if rows else {*planned} - {*todo}:
        raw_path(output, arm).unlink(missing_ok=True)  # a run was killed after the last step but one
    each = len(MODES) * len(prompts.prompts)
    firsts = {arm.drafter.name: arm.drafter.seed for arm in sorted(planned, key=lambda a: -a.drafter.seed)}
    if workers == 1:
        already = each * (len(planned) - len(todo))
        with tqdm(total=each * len(planned), initial=already, desc="responses", disable=None, smoothing=0.02) as bar:
            for arm in todo:
                bar.set_postfix_str(arm.label)
                _record_arm(config, prompts, output, rows, firsts, arm, bar)
    else:
        with tqdm(total=len(planned), initial=len(planned) - len(todo), desc="recordings", disable=None) as bar:
            for line in ordered_map(partial(_record_arm, config, prompts, output, rows, firsts), todo, workers):
                bar.set_postfix_str(line)
                bar.update()
    return [_path(output, arm) for arm in planned]


def _path(output: Path, arm: Arm) -> Path:
    return output / f"{arm.label}.npz"


def raw_path(output: Path, arm: Arm) -> Path:
    """The rows of a recording that is not finished, or of one whose rows are kept."""
    return output / f"{arm.label}.jsonl"


def _done(config: Config, prompts: PromptSet, arm: Arm, output: Path) -> bool:
    """Whether the recording is there; ValueError when a file of this name is of something else."""
    path = _path(output, arm)
    if not path.exists():
        return False
    check_same(path, load_provenance(path), identity(config, prompts, arm))
    return True


def identity(config: Config, prompts: PromptSet, arm: Arm) -> dict[str, Any]:
    """The part of the provenance that is known before anything is decoded."""
    drafter = arm.drafter
    return {
        "target": _load(config.target, config.device).source,
        "drafter": describe(drafter),
        "thinking": "both",
        "sampling": asdict(arm.sampling),
        "seeds": [arm.seed],
        "prompt_set": prompts.hash,
        "settings": {
            "drafter_name": drafter.name,
            "drafter_seed": drafter.seed,
            "think_share": drafter.think_share,
            "family": drafter.family,
            "prompts": prompts.counts,
            "source": prompts.source,
            "max_new_tokens": config.max_new_tokens,
            "max_batch": config.max_batch,
            "depth": _depth(drafter.model, config.target, config.device),
            "untrimmed": True,
        },
    }


def describe(drafter: Drafter) -> dict[str, Any]:
    """Label, revision and weights' hashes of a drafter."""
    folder = find_model(drafter.model)
    return ModelFolder(folder.path, drafter.label, folder.revision).describe()


def _check_prompts(target: TextTarget, prompts: PromptSet, config: Config) -> None:
    for mode in MODES:
        for prompt in prompts.prompts:
            length = len(target.render(prompt.text, thinking=mode == "think"))
            if length + config.max_new_tokens > target.max_context:
                raise ValueError(
                    f"prompt {prompt.number} of {prompt.domain} has {length} tokens, and with max_new_tokens "
                    f"{config.max_new_tokens} it does not fit into the {target.max_context} that {target.name} reads; "
                    "ask for fewer"
                )


def _record_arm(
    config: Config,
    prompts: PromptSet,
    output: Path,
    keep_rows: bool,
    firsts: Mapping[str, int],  # of each drafter, the first seed of its training
    arm: Arm,
    bar: tqdm[Any] | None = None,
) -> str:
    """Decode one recording and store it; runs in a worker process, or in this one."""
    target = _load(config.target, config.device)
    drafter = companion.load_drafter(arm.drafter.model, target)
    assert drafter is not None
    own = identity(config, prompts, arm)
    header = collect() | own
    kept = {"rows": keep_rows, "text": config.keep_text}
    raw, texts = raw_path(output, arm), output / f"{arm.label}.text.jsonl"
    written = {t.prompt_id for t in resume_rows(texts, own, Text)} if config.keep_text else set()
    threads = torch.get_num_threads()
    if config.device == "cpu":
        torch.set_num_threads(1)  # as in a worker process, so that sums are taken in the same order
    try:
        with RoundsWriter(raw, header | {"kept": kept}) as writer:
            done = {prompt_id for prompt_id, _ in writer.done}
            for chunk in _unfinished(prompts, config, done, bar):
                for result, number in decode(target, drafter, prompts, chunk, config, arm):
                    name = chunk.prompt_id(number)
                    if config.keep_text and name not in written:
                        append_rows(texts, [Text(prompt_id=name, text=result.text)])
                    if name not in done:
                        writer.extend(_thin(row, number, **kept) for row in result.rounds)
                        if bar is not None:
                            bar.update()
            table = Rounds(writer.rows, header | {"seconds": _seconds(writer.rows)})
    finally:
        torch.set_num_threads(threads)
    keep = config.confidence == "all" or (config.confidence == "first" and arm.drafter.seed == firsts[arm.drafter.name])
    save_arm(table, _path(output, arm), confidence=keep)
    if not keep_rows:
        raw.unlink()
    return f"{arm.label}: tau {committed_per_round(table):.2f}"


def _unfinished(prompts: PromptSet, config: Config, done: set[str | None], bar: tqdm[Any] | None) -> Iterator[Chunk]:
    """Groups that are not wholly there. They are decoded in order, so what lies before a response is finished: one
    whose first token was its last has no round to show."""
    planned = list(chunks(prompts, config.max_batch))
    names = [{chunk.prompt_id(n) for n in chunk.numbers} for chunk in planned]
    reached = max((i for i, own in enumerate(names) if own & done), default=0)
    for i, (chunk, own) in enumerate(zip(planned, names, strict=True)):
        there = own if i < reached else own & done
        if bar is not None:
            bar.update(len(there))
        if there != own:
            yield chunk


def decode(
    target: TextTarget, drafter: protocols.Drafter, prompts: PromptSet, chunk: Chunk, config: Config, arm: Arm
) -> Iterator[tuple[GenerationResult, int]]:
    """Responses of a group with their prompts' numbers, as they end."""
    asked = prompts.of(chunk.domain)
    sampling = arm.sampling
    events = companion.stream(
        target,
        drafter,
        [asked[n].text for n in chunk.numbers],
        max_new_tokens=config.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        thinking=chunk.mode == "think",
        seed=arm.seed,
        max_batch=config.max_batch,
        labels=[{"prompt_id": chunk.prompt_id(n), "domain": chunk.domain, "mode": chunk.mode} for n in chunk.numbers],
    )
    for event in events:
        if event.result is not None:
            yield event.result, chunk.numbers[event.request]


def _thin(row: Round, number: int, *, rows: bool, text: bool) -> Round:
    """What is kept of a row; its token ids are the text, so they go unless that was asked for."""
    row = replace(row, request=number, tokens=row.tokens if text else [])
    if rows:
        return row
    return replace(row, entropy=[], max_p=[], think_end_mass=[], served_entropy=[], served_max_p=[])


def _seconds(rows: Sequence[Round]) -> dict[str, dict[str, float]]:
    """Seconds and committed tokens of each mode, batched: what the next recording's cost is told from."""
    found: dict[str, dict[str, float]] = {mode: {"seconds": 0.0, "tokens": 0.0, "responses": 0.0} for mode in MODES}
    for row in rows:
        assert row.mode is not None
        cell = found[row.mode]
        cell["seconds"] += (row.draft_seconds + row.verify_seconds) / row.batch
        cell["tokens"] += row.committed
        cell["responses"] += row.ended is not None
    return {mode: {name: round(value, 3) for name, value in cell.items()} for mode, cell in found.items()}


@cache
def _load(name: str, device: str) -> TextTarget:
    return companion.load_target(name, device=device)


@cache
def _depth(model: str, target: str, device: str) -> int:
    """Tokens of a full draft. ValueError for a drafter that is not this target's."""
    drafter = companion.load_drafter(model, _load(target, device))
    assert drafter is not None
    return drafter.max_depth
