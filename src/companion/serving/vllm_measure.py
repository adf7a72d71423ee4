"""Acceptance by phase, measured on vLLM: prompts in, the Rounds table out, as from our own engine.

    target, drafter = identify("Qwen/Qwen3-4B"), identify("deepseek-ai/dspark_qwen3_4b_block7")
    engine = Offline(Setup("Qwen/Qwen3-4B", "dspark", 7, drafter="deepseek-ai/dspark_qwen3_4b_block7"))
    rounds = measure(engine, plan, questions, tags, Path("rounds.jsonl"))
    print(Report(ledger_of_rounds(rounds)))

What enters the file has been reconciled twice: each answer's steps with its tokens (`companion.serving.vllm.rounds`),
and each group's steps with the engine's own counters, which no other request may have moved. Groups are written as
they are done, so a run that was cut, by a server that died say, goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from companion.phase.sources import DRAFTS_EVERY_STEP
from companion.phase.tracker import ThinkTokens
from companion.protocols import Sampling
from companion.provenance import collect
from companion.rounds import Round, Rounds, RoundsWriter
from companion.serving.vllm.offline import METHODS, Offline, Setup
from companion.serving.vllm.rounds import Answer, Counters, Question, counted, rounds_of_log, rounds_of_metrics
from companion.serving.vllm.row_file import read_rows, with_rows
from companion.serving.vllm.server import Gone, Server

__all__ = ["Answer", "Offline", "Plan", "Question", "Server", "Setup", "identify", "measure", "render", "tokenizer_of"]


class Prompt(Protocol):
    """As in `companion.experiments.phase_gap.prompts`."""

    @property
    def domain(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def text(self) -> str: ...


class Engine(Protocol):
    """`Offline` or `Server`."""

    release: str
    max_context: int | None

    def answer(
        self, questions: Sequence[Question], sampling: Sampling, *, seed: int, max_new_tokens: int
    ) -> list[Answer]: ...
    def counters(self) -> Counters: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How the questions are asked, and what a record must say of it.

    ``target`` and ``drafter`` are what `identify` gives; ``depth`` is vLLM's num_speculative_tokens. ``policy`` is the
    table that our scheduler was given, None where vLLM verified all that it drafted: with one, the run is trimmed and
    calibrates nothing. ``log`` is the scheduler's file, ``rows`` the probe's; ``group`` prompts are reconciled at once.
    """

    method: str
    depth: int
    target: dict[str, Any]
    drafter: dict[str, Any] | None
    thinking: bool
    sampling: Sampling
    seed: int = 0
    max_new_tokens: int = 600
    group: int = 32
    policy: dict[str, Any] | None = None
    log: Path | None = None
    rows: Path | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.group < 1 or self.max_new_tokens < 2:
            raise ValueError("a group holds at least 1 prompt, and an answer at least 2 tokens: the first has no round")
        if self.sampling.min_p:
            raise ValueError("vLLM leaves min_p out when it speculates, so the record would not be true; drop min_p")
        if self.log is None and (self.method not in DRAFTS_EVERY_STEP or self.policy is not None):
            what = f"{self.method} may skip drafting" if self.policy is None else "a policy may set depth 0"
            raise ValueError(
                f"{what}, and vLLM's metrics leave such steps out, so phases would drift; let our scheduler write its "
                "own log of the steps (log=, --log)"
            )


def measure(engine: Engine, plan: Plan, questions: Sequence[Question], tags: ThinkTokens, output: Path) -> Rounds:
    """The rounds of all questions, also in ``output``; what it holds already is not asked again.

    ValueError for questions that do not fit, for a file of another run, for answers that do not reconcile, and for a
    server that stops in the middle: what was measured stays in the file.
    """
    _check(engine, plan, questions)
    texts = [f"{q.prompt_id}\n{' '.join(map(str, q.tokens))}" for q in questions]
    settings = asdict(plan) | {"untrimmed": plan.policy is None, "vllm": engine.release}
    del settings["log"], settings["rows"]  # places, not settings
    described = {name: settings.pop(name) for name in ("target", "drafter", "thinking", "sampling")}
    record = collect(**described, seeds=[settings.pop("seed")], prompts=texts, **settings)
    record["harness"] = {"name": "vllm", "version": engine.release, "reader": record["harness"]}
    with RoundsWriter(output, record) as writer:
        done = {prompt_id for prompt_id, _ in writer.done}
        left = [q for q in questions if q.prompt_id not in done]
        numbers = {question.prompt_id: number for number, question in enumerate(questions)}
        for start in range(0, len(left), plan.group):
            asked = left[start : start + plan.group]
            try:
                answers = _asked(engine, plan, asked)
            except Gone as error:
                raise ValueError(
                    f"vLLM stopped answering after {len(questions) - len(left) + start} of {len(questions)} prompts "
                    f"({error}); {output} keeps those: start it again, and the same command goes on from there"
                ) from error
            for rows in _rounds(plan, asked, answers, tags, numbers):
                writer.extend(rows)
        return Rounds(writer.rows, record)


def _check(engine: Engine, plan: Plan, questions: Sequence[Question]) -> None:
    if not questions:
        raise ValueError("there are no questions to ask")
    if len({q.prompt_id for q in questions}) < len(questions):
        raise ValueError("two questions have one prompt id; their answers could not be told apart")
    longest = max(questions, key=lambda q: len(q.tokens))
    needed = len(longest.tokens) + plan.max_new_tokens + plan.depth
    if engine.max_context is not None and needed > engine.max_context:
        raise ValueError(
            f"prompt {longest.prompt_id} has {len(longest.tokens)} tokens, with max_new_tokens {plan.max_new_tokens} "
            f"and {plan.depth} drafts {needed}, and vLLM's context holds {engine.max_context}: near its end steps "
            "draft less or nothing; ask for fewer tokens, or start vLLM with a longer max_model_len"
        )


def _asked(engine: Engine, plan: Plan, asked: Sequence[Question]) -> list[Answer]:
    """The answers of a group, once the engine's counters moved by what they account for."""
    before = engine.counters()
    answers = engine.answer(asked, plan.sampling, seed=plan.seed, max_new_tokens=plan.max_new_tokens)
    wanted = counted(answers)
    for _ in range(20):  # a server answers a moment before it counts
        found = engine.counters().since(before)
        if found == wanted:
            return answers
        time.sleep(0.1)
    raise ValueError(
        f"vLLM counted {found.drafts} steps with {found.drafted} drafted and {found.accepted} accepted tokens, and the "
        f"answers account for {wanted.drafts}, {wanted.drafted} and {wanted.accepted}: something else ran on it, or it "
        "reports otherwise than it counts; nothing of this group was written"
    )


def _rounds(
    plan: Plan, asked: Sequence[Question], answers: Sequence[Answer], tags: ThinkTokens, numbers: dict[str, int]
) -> Iterator[list[Round]]:
    mode = "think" if plan.thinking else "no_think"
    written = [] if plan.log is None else Rounds.load(plan.log).rows
    statistics = None if plan.rows is None else read_rows(plan.rows)
    for question, answer in zip(asked, answers, strict=True):
        request, drafts = numbers[question.prompt_id], (answer.metrics or {}).get("num_spec_tokens", plan.depth)
        if drafts != plan.depth:
            raise ValueError(f"vLLM drafts {drafts} tokens, and the record would say {plan.depth}; give its depth")
        if plan.log is not None:
            rows = rounds_of_log(written, answer, question, request=request, mode=mode)
        else:
            rows = rounds_of_metrics(answer, question, method=plan.method, tags=tags, request=request, mode=mode)
        yield rows if statistics is None else with_rows(rows, statistics)


def identify(name: str, revision: str | None = None) -> dict[str, Any]:
    """Name and revision of a model for the record: weights' hashes of a folder, the hub's commit of a hub id.

    Of a hub id nothing is downloaded. ValueError where the hub cannot be asked and no revision is given.
    """
    from companion.engine.load import DRAFTERS, EMBEDDED, find_model

    if name in EMBEDDED or name in DRAFTERS or Path(name).is_dir():
        return find_model(name).describe()
    if revision is None:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        try:
            revision = HfApi().model_info(name).sha
        except (HfHubHTTPError, OSError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"cannot ask the hub which revision of {name} is served ({reason}); say it (--target-revision, "
                "--drafter-revision), or give a folder"
            ) from error
    return {"name": name, "revision": revision}


def place_of(name: str) -> str:
    """Where vLLM finds a model: the folder of one that ships, else the name itself, a folder or a hub id."""
    from companion.engine.load import DRAFTERS, EMBEDDED, find_model

    return str(find_model(name).path) if name in EMBEDDED or name in DRAFTERS else name


def questions_of(prompts: Iterable[Prompt], tokenizer: Any, *, thinking: bool) -> list[Question]:
    """Prompts as they are asked, named DOMAIN/NUMBER."""
    return [Question(f"{p.domain}/{p.number}", render(tokenizer, p.text, thinking=thinking), p.domain) for p in prompts]


def tokenizer_of(name: str, revision: str | None = None) -> Any:
    """The tokenizer of an embedded model, a folder or a hub id; ValueError where there is none, or no chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place_of(name), revision=revision)
    except Exception as error:  # transformers passes on whatever it stumbled over
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(f"{name} has no tokenizer that transformers can load ({reason})") from error
    if not tokenizer.chat_template:
        raise ValueError(f"the tokenizer of {name} has no chat template, so a message cannot be put to the model")
    return tokenizer


def render(tokenizer: Any, text: str, *, thinking: bool) -> tuple[int, ...]:
    """Token ids of one user message up to where the answer begins, by the tokenizer's own chat template."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    return tuple(tokenizer.encode(prompt, add_special_tokens=False))
