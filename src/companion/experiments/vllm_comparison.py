"""The same prompts through this engine and through vLLM: texts, accepted lengths by phase, a policy that takes effect.

Arms: this engine alone and with each drafter; vLLM alone, with each drafter, with our depth policy by phase in its
scheduler, and with its own adaptive verification where it runs (where not, its words are kept). vLLM keeps much of
itself global, so every arm is a process of its own, and one that is done is not run again. Greedy: all texts have to be
those of plain decoding by this engine, and what differs between arms is only how they came to be.

No time is compared. On a processor the two engines run other builds of PyTorch, and a third party's build of vLLM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from tqdm import tqdm

import companion
from companion.drafters.load import load_drafter
from companion.experiments.phase_gap.prompts import load_prompts
from companion.experiments.stored import read_result
from companion.phase.report import Report
from companion.phase.sources import ledger_of_rounds
from companion.phase.tracker import ThinkTokens
from companion.protocols import Phase, Sampling
from companion.provenance import collect, write_json
from companion.rounds import Rounds
from companion.serving.vllm.export import export
from companion.serving.vllm.offline import METHODS
from companion.serving.vllm.options import Options
from companion.serving.vllm.release import require_vllm
from companion.serving.vllm.rounds import Answer, Counters
from companion.serving.vllm_measure import (
    Offline,
    Plan,
    Question,
    Setup,
    identify,
    measure,
    place_of,
    questions_of,
    tokenizer_of,
)
from companion.training.target import claim_folder

OURS, VLLM, POLICY, ADAPTIVE = "ours", "vLLM", "policy", "adaptive"
DESIGN = "config.json"
PHASES: tuple[Phase, ...] = ("think", "output")


class Config(BaseModel):
    """``drafters``: vLLM's method to a drafter, None for ngram; the first is the one that a policy steers."""

    target: str = "tiny-qwen3"
    drafters: dict[str, str | None] = {"draft_model": "tiny-qwen3-draft", "eagle3": "eagle3", "ngram": None}
    depth: int = 4
    policy: dict[str, int] = {"think": 1, "output": 4}  # depth by phase
    per_domain: int = 8
    prompt_seed: int = 11
    max_new_tokens: int = 400
    device: str = "cpu"
    arguments: dict[str, Any] = {}  # of vLLM's LLM
    seed: int = 0


class Length(BaseModel):
    """Tokens a round, with its 95 % interval over responses, and the drafts that were verified in one."""

    value: float
    low: float
    high: float
    verified: float
    rounds: int


class Arm(BaseModel):
    """What one way of decoding gave. ``lengths`` by phase; empty without a drafter."""

    name: str
    engine: str  # ours or vLLM
    method: str | None
    same: int  # texts equal to plain decoding's by this engine
    compared: int
    lengths: dict[Phase, Length]
    refused: str | None = None  # vLLM's own words, where it does not run here


class Result(BaseModel):
    config: Config
    release: str  # of vLLM
    arms: list[Arm]
    provenance: dict[str, Any]


def arms(config: Config) -> list[str]:
    """ENGINE/METHOD, with /policy or /adaptive behind it."""
    methods, (steered, *_) = list(config.drafters), config.drafters
    ours = [f"{OURS}/{method}" for method in methods if method != "ngram"]  # vLLM's lookup is another
    theirs = [f"{VLLM}/{method}" for method in methods]
    return [OURS, *ours, VLLM, *theirs, f"{VLLM}/{steered}/{POLICY}", f"{VLLM}/{steered}/{ADAPTIVE}"]


def run(output: Path | None = None, folder: Path | None = None, config: Config | None = None) -> Result:
    """Decode what ``folder`` does not hold yet, and write ``output``. ValueError for a design that cannot be run, for a
    folder of another design, and for an arm that failed."""
    config = config or Config()
    check(config)
    release = require_vllm().__version__.partition("+")[0]
    folder = folder or Path("runs") / "vllm_comparison"
    claim_folder(folder, config.model_dump(mode="json"), DESIGN)
    names = arms(config)
    for name in tqdm(names, desc="vLLM beside this engine", unit="arm", disable=None):
        if not (_place(folder, name) / "texts.json").is_file():
            _in_a_process(name, folder)
    found = [_summary(config, folder, name) for name in names]
    result = Result(
        config=config,
        release=release,
        arms=found,
        provenance=collect(
            target=identify(config.target),
            drafters=[identify(drafter) for drafter in config.drafters.values() if drafter],
            thinking=True,
            sampling={"temperature": 0.0},
            seeds=[config.seed],
            prompts=[f"{q.prompt_id}\n{' '.join(map(str, q.tokens))}" for q in questions(config)],
            vllm=release,
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def check(config: Config) -> None:
    """ValueError for a design that cannot be run."""
    if not config.drafters or set(config.drafters) - set(METHODS):
        raise ValueError(f"name drafters by vLLM's methods ({', '.join(METHODS)}), got {list(config.drafters)}")
    if next(iter(config.drafters)) == "ngram":
        raise ValueError("the first drafter is the one that a policy steers, and ngram drafts as it finds; put it last")
    if set(config.policy) != set(PHASES) or not all(0 <= d <= config.depth for d in config.policy.values()):
        raise ValueError(f"a policy has a depth of 0 to {config.depth} for think and for output, got {config.policy}")


def questions(config: Config) -> list[Question]:
    prompts = load_prompts(("held-out",), config.per_domain, config.prompt_seed).prompts
    return questions_of(prompts, tokenizer_of(config.target), thinking=True)


def _place(folder: Path, name: str) -> Path:
    return folder / name.replace("/", "-")


def _in_a_process(name: str, folder: Path) -> None:
    command = [sys.executable, "-m", "companion.experiments.vllm_comparison", name, str(folder)]
    cpu = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(command, env=os.environ | cpu, capture_output=True, text=True, check=False)
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
        raise ValueError(f"arm {name} failed: {last}; what is done is in {folder}, the same command goes on from there")


def decode(name: str, folder: Path) -> None:
    """One arm: its texts, and its rounds where it drafts."""
    config = Config.model_validate_json((folder / DESIGN).read_text(encoding="utf-8"))
    place = _place(folder, name)
    place.mkdir(exist_ok=True)
    engine, method, kind = [*name.split("/"), None, None][:3]
    asked = questions(config)
    decoders = {OURS: _ours, VLLM: _plain_vllm if method is None else _vllm}
    try:
        texts = decoders[str(engine)](config, method, kind, asked, place)
        record: dict[str, Any] = {"texts": texts}
    except ValueError as error:
        if kind != ADAPTIVE:
            raise
        record = {"refused": str(error)}
    write_json(place / "texts.json", record)


def _ours(
    config: Config, method: str | None, kind: str | None, asked: Sequence[Question], place: Path
) -> dict[str, list[int]]:
    target = companion.load_target(config.target, device=config.device)
    named = config.drafters[method] if method else None
    depth = config.depth if named else None
    drafter = load_drafter("draft" if named == "tiny-qwen3-draft" else named, target, max_depth=depth)
    results = companion.generate(
        target,
        drafter,
        [list(q.tokens) for q in asked],
        temperature=0,
        max_new_tokens=config.max_new_tokens,
        labels=[{"prompt_id": q.prompt_id, "domain": str(q.domain), "mode": "think"} for q in asked],
    )
    if named:
        record = collect(
            target=target.source,
            drafter=identify(named),
            thinking=True,
            sampling={"temperature": 0.0},
            seeds=[config.seed],
            prompts=[q.prompt_id for q in asked],
            depth=config.depth,
            untrimmed=True,
        )
        Rounds((row for result in results for row in result.rounds), record).save(place / "rounds.jsonl")
    return {q.prompt_id: list(map(int, r.tokens)) for q, r in zip(asked, results, strict=True)}


def _arguments(config: Config) -> dict[str, Any]:
    small = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 8, "max_model_len": 1024}
    return (small if config.device == "cpu" else {}) | config.arguments


def _plain_vllm(
    config: Config, method: str | None, kind: str | None, asked: Sequence[Question], place: Path
) -> dict[str, list[int]]:
    vllm = require_vllm()
    llm = vllm.LLM(model=place_of(config.target), seed=config.seed, **_arguments(config))
    greedy = vllm.SamplingParams(temperature=0.0, max_tokens=config.max_new_tokens, skip_special_tokens=False)
    found = llm.generate([{"prompt_token_ids": list(q.tokens)} for q in asked], greedy, use_tqdm=False)
    return {q.prompt_id: list(one.outputs[0].token_ids) for q, one in zip(asked, found, strict=True)}


def _vllm(
    config: Config, method: str | None, kind: str | None, asked: Sequence[Question], place: Path
) -> dict[str, list[int]]:
    assert method is not None
    tags, named = ThinkTokens.of(tokenizer_of(config.target)), config.drafters[method]
    policy = dict(config.policy) if kind == POLICY else None
    log = (place / "log").absolute() if policy or method == "ngram" else None
    drafter = place_of(named) if named else None
    with tempfile.TemporaryDirectory() as scratch:
        if method == "eagle3" and named == "eagle3":
            export(named, Path(scratch) / "eagle3")
            drafter = str(Path(scratch) / "eagle3")
        speculative: dict[str, Any] = {"prompt_lookup_min": 2, "prompt_lookup_max": 4} if named is None else {}
        if kind == ADAPTIVE:
            speculative |= {"enable_adaptive_verification": True}
        setup = Setup(
            target=place_of(config.target),
            method=method,
            depth=config.depth,
            drafter=drafter,
            options=Options(tags, policy, log) if log else None,
            seed=config.seed,
            arguments=_arguments(config),
            speculative=speculative,
        )
        plan = Plan(
            method=method,
            depth=config.depth,
            target=identify(config.target),
            drafter=identify(named) if named else {"name": "ngram", "revision": "prompt lookup"},
            thinking=True,
            sampling=Sampling(0.0),
            seed=config.seed,
            max_new_tokens=config.max_new_tokens,
            policy=policy,
            log=log,
        )
        heard = Heard(Offline(setup))
        measure(heard, plan, asked, tags, place / "rounds.jsonl")
    return heard.texts


class Heard:
    """An engine whose answers are kept as well, by prompt."""

    def __init__(self, engine: Offline) -> None:
        self._engine = engine
        self.release, self.max_context = engine.release, engine.max_context
        self.texts: dict[str, list[int]] = {}

    def answer(
        self, questions: Sequence[Question], sampling: Sampling, *, seed: int, max_new_tokens: int
    ) -> list[Answer]:
        answers = self._engine.answer(questions, sampling, seed=seed, max_new_tokens=max_new_tokens)
        self.texts |= {q.prompt_id: list(a.tokens) for q, a in zip(questions, answers, strict=True)}
        return answers

    def counters(self) -> Counters:
        return self._engine.counters()


def _summary(config: Config, folder: Path, name: str) -> Arm:
    engine, method, _ = [*name.split("/"), None, None][:3]
    record = json.loads((_place(folder, name) / "texts.json").read_text(encoding="utf-8"))
    plain = json.loads((_place(folder, OURS) / "texts.json").read_text(encoding="utf-8"))["texts"]
    texts = record.get("texts", {})
    rounds = _place(folder, name) / "rounds.jsonl"
    return Arm(
        name=name,
        engine=str(engine),
        method=method,
        same=sum(texts[prompt] == plain[prompt] for prompt in texts),
        compared=len(texts),
        lengths=lengths(Rounds.load(rounds)) if rounds.is_file() and texts else {},
        refused=record.get("refused"),
    )


def lengths(rounds: Rounds) -> dict[Phase, Length]:
    """By phase; rounds that lie in both count in neither."""
    report, found = Report(ledger_of_rounds(rounds)), {}
    for phase in PHASES:
        mean = report.arm(phase).mean_length
        own = [row.verified for row in rounds if set(row.phases) == {phase}]
        if mean is not None and (ends := mean.interval()) is not None:
            verified = sum(own) / len(own)
            found[phase] = Length(value=mean.value, low=ends.low, high=ends.high, verified=verified, rounds=len(own))
    return found


def load(path: Path) -> Result:
    """A stored result. ValueError when the file is none."""
    return read_result(path, Result, "vllm compare")


def rows(result: Result) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table."""
    heads = ["", "same text", "inside: tokens a round", "verified", "behind: tokens a round", "verified"]
    found = []
    for arm in result.arms:
        cells = [f"{arm.same} of {arm.compared}" if arm.compared else "refused"]
        for phase in PHASES:
            own: Length | None = arm.lengths.get(phase)
            cells += (
                ["", ""] if own is None else [f"{own.value:.2f} [{own.low:.2f}, {own.high:.2f}]", f"{own.verified:.2f}"]
            )
        found.append([arm.name.replace("/", ", "), *cells])
    return heads, found


def show(result: Result) -> None:
    """Print the table, and what vLLM said where it does not run."""
    from rich.console import Console
    from rich.table import Table

    heads, cells = rows(result)
    table = Table(*heads, title=f"vLLM {result.release} beside this engine, {result.config.target}, greedy, thinking")
    for row in cells:
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    refusals: Mapping[str, str] = {arm.name: arm.refused for arm in result.arms if arm.refused}
    for name, words in refusals.items():
        console.print(f"{name}: {words}", markup=False)


if __name__ == "__main__":
    decode(sys.argv[1], Path(sys.argv[2]))
