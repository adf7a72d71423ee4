"""Decode speed and memory as ratios within one run: our engine against transformers on the same weights.

Greedy, batch 1, warm. Every method decodes the same prompts; methods alternate prompt by prompt, so that a slow spell
of the machine hits all of them; one pass gives each method tokens per second, and the median over passes is reported
with its range. Peak memory is the resident set of a fresh process that runs one method.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from tqdm import tqdm

import companion
from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget, find_model
from companion.experiments.forward_cost import WIDTHS, forward_times
from companion.metrics import committed_per_round
from companion.provenance import collect, write_json
from companion.training.corpus import DOMAINS, held_out_samples

METHODS = (
    "plain",
    "lookup",
    "draft",
    "transformers",
    "transformers-lookup",
    "transformers-assisted",
)


class Config(BaseModel):
    target: str = "tiny-qwen3"
    draft: str = "tiny-qwen3-draft"
    prompts: int = 6  # per domain
    repeats: int = 3
    threads: int = 1
    device: str = "cpu"
    max_new_tokens: int = 160
    depth: int = 5  # of lookup and draft, in both engines
    context: int = 96  # cached tokens when one forward is timed
    seed: int = 0


class Speed(BaseModel):
    domain: str
    method: str
    tokens_per_second: float  # median over passes
    low: float
    high: float
    tokens_per_round: float | None  # our engine only
    over_plain: float
    over_transformers: float


class Forward(BaseModel):
    tokens: int
    milliseconds: float  # median
    over_one: float


class Floor(BaseModel):
    """What one forward must at least cost: every weight read once, at this machine's own copy speed."""

    weight_mib: float
    copy_gib_per_second: float  # bytes read and written, a buffer as large as the weights
    milliseconds: float
    one_token_over_floor: float
    gflop_per_token: float


class Result(BaseModel):
    config: Config
    speeds: list[Speed]
    forwards: list[Forward]
    floor: Floor
    peak_mib: dict[str, float]
    identical: dict[str, str]  # method -> outputs equal to plain decoding, of all
    provenance: dict[str, Any]


Decoder = Callable[[list[int]], tuple[list[int], GenerationResult | None]]


def run(config: Config, output: Path | None = None) -> Result:
    """Time every method, then measure memory; stores the result as JSON when ``output`` is given."""
    if min(config.prompts, config.repeats, config.threads) < 1:
        raise ValueError("prompts, repeats and threads must be at least 1: nothing timed is no result")
    torch.set_num_threads(config.threads)
    target = companion.load_target(config.target, device=config.device)
    prompts = _prompts(target, config)
    passes, tokens_per_round, same = _race(target, prompts, config)
    forwards = _forwards(target, config)
    result = Result(
        config=config,
        speeds=_speeds(passes, tokens_per_round),
        forwards=forwards,
        floor=_floor(target, forwards[0].milliseconds),
        peak_mib={method: _peak(method, config) for method in tqdm(METHODS, desc="memory", disable=None)},
        identical={method: f"{hits} of {total}" for method, (hits, total) in same.items()},
        provenance=collect(
            target=target.source,
            drafter=find_model(config.draft).describe(),
            thinking=False,
            sampling={"temperature": 0.0},
            seeds=[config.seed],
            prompts=[str(ids) for rows in prompts.values() for ids in rows],
            **config.model_dump(include={"repeats", "threads", "max_new_tokens", "depth", "context"}),
        ),
    )
    if output is not None:
        write_json(output, result.model_dump(mode="json"))
    return result


def _prompts(target: TextTarget, config: Config) -> dict[str, list[list[int]]]:
    return {
        domain: [
            target.render(sample.prompt, thinking=False)
            for sample in held_out_samples(domain, "no_think", config.prompts, seed=config.seed)
        ]
        for domain in DOMAINS
    }


def _race(
    target: TextTarget, prompts: dict[str, list[list[int]]], config: Config
) -> tuple[dict[tuple[str, str], list[float]], dict[tuple[str, str], float], dict[str, tuple[int, int]]]:
    """Tokens per second of each pass, tau, and how many outputs equal plain decoding's."""
    decoders = {method: _decoder(method, target, config) for method in METHODS}
    for decode in decoders.values():
        decode(prompts["math"][0])  # warm-up
    passes: dict[tuple[str, str], list[float]] = {(d, m): [] for d in prompts for m in METHODS}
    rounds: dict[tuple[str, str], list[Any]] = {key: [] for key in passes}
    same = dict.fromkeys(METHODS, (0, 0))
    for _ in tqdm(range(config.repeats), desc="timed passes", disable=None):
        for domain, rows in prompts.items():
            seconds, tokens = dict.fromkeys(METHODS, 0.0), dict.fromkeys(METHODS, 0)
            for ids in rows:
                reference: list[int] = []
                for method, decode in decoders.items():
                    started = time.perf_counter()
                    new, result = decode(ids)
                    seconds[method] += time.perf_counter() - started
                    tokens[method] += len(new)
                    reference = new if method == "plain" else reference
                    hits, total = same[method]
                    same[method] = hits + (new == reference), total + 1
                    rounds[domain, method].extend(result.rounds if result else ())
            for method in METHODS:
                passes[domain, method].append(tokens[method] / seconds[method])
    return passes, {key: committed_per_round(rows) for key, rows in rounds.items() if rows}, same


def _speeds(passes: dict[tuple[str, str], list[float]], tau: dict[tuple[str, str], float]) -> list[Speed]:
    median = {key: statistics.median(values) for key, values in passes.items()}
    return [
        Speed(
            domain=domain,
            method=method,
            tokens_per_second=median[domain, method],
            low=min(values),
            high=max(values),
            tokens_per_round=tau.get((domain, method)),
            over_plain=median[domain, method] / median[domain, "plain"],
            over_transformers=median[domain, method] / median[domain, "transformers"],
        )
        for (domain, method), values in passes.items()
    ]


def _decoder(method: str, target: TextTarget, config: Config) -> Decoder:
    """A function from prompt ids to new ids."""
    if method.startswith("transformers"):
        return _transformers(method, config)
    drafter = companion.load_drafter(
        {"plain": "none", "lookup": "lookup", "draft": config.draft}[method], target, max_depth=config.depth
    )

    def decode(ids: list[int]) -> tuple[list[int], GenerationResult]:
        result = companion.generate(target, drafter, ids, max_new_tokens=config.max_new_tokens, temperature=0.0)
        return result.tokens, result

    return decode


def _transformers(method: str, config: Config) -> Decoder:
    """transformers' own generate: plain, prompt lookup, or assisted by the same draft model at a constant depth."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    def load(name: str) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(find_model(name).path, dtype=torch.float32)
        return model.to(config.device).eval()

    model = load(config.target)
    eos, pad = model.generation_config.eos_token_id, model.generation_config.pad_token_id
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=config.max_new_tokens, eos_token_id=eos, pad_token_id=pad
    )
    extra: dict[str, Any] = {}
    if method == "transformers-lookup":
        extra = {"prompt_lookup_num_tokens": config.depth, "max_matching_ngram_size": 3}
    elif method == "transformers-assisted":
        assistant = load(config.draft)
        assistant.generation_config.num_assistant_tokens = config.depth
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
        extra = {"assistant_model": assistant}
    model.generation_config = settings

    def decode(ids: list[int]) -> tuple[list[int], None]:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs = torch.tensor([ids], device=config.device)
            output = model.generate(inputs, attention_mask=torch.ones_like(inputs), **extra)
        return output[0, len(ids) :].tolist(), None

    return decode


def _forwards(target: TextTarget, config: Config, repeats: int = 60) -> list[Forward]:
    """Median time of one forward of 1, 2, 4, ... tokens behind a cache of ``context`` tokens."""
    medians = forward_times(target, WIDTHS, context=config.context, repeats=repeats)["median"] / 1e3
    return [Forward(tokens=w, milliseconds=medians[w], over_one=medians[w] / medians[1]) for w in WIDTHS]


def _floor(target: TextTarget, milliseconds: float, repeats: int = 30) -> Floor:
    """Weight bytes over the measured copy speed; each weight also takes one multiply and one add a token."""
    size = target.parameters * target.embedding.element_size()
    source, sink = (torch.ones(size, dtype=torch.uint8, device=target.device) for _ in range(2))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        sink.copy_(source)
        if target.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    speed = 2 * size / statistics.median(times)  # bytes per second, read and written
    floor = 1e3 * size / speed
    return Floor(
        weight_mib=size / 2**20,
        copy_gib_per_second=speed / 2**30,
        milliseconds=floor,
        one_token_over_floor=milliseconds / floor,
        gflop_per_token=2 * target.parameters / 1e9,
    )


def _peak(method: str, config: Config) -> float:
    """Peak resident memory, MiB, of a fresh process that loads the models and decodes one prompt of each domain."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(pool.apply(_decode_once, (method, config)))


def _decode_once(method: str, config: Config) -> float:
    torch.set_num_threads(config.threads)
    target = companion.load_target(config.target, device=config.device)
    prompts = _prompts(target, config.model_copy(update={"prompts": 1}))
    decode = _decoder(method, target, config)
    for rows in prompts.values():
        decode(rows[0])
    return _peak_resident_mib()


def _peak_resident_mib() -> float:
    """VmHWM where there is /proc: ru_maxrss of a spawned child starts at its parent's size."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def load(path: Path) -> Result:
    """A stored result. ValueError when the file is none."""
    try:
        return Result.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ValueError(f"{path} is no result of `companion bench decode --output`; run it again") from error


def show(result: Result) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("domain", "method", "tokens/s", "range", "tau", "over plain", "over transformers", "peak MiB")
    for s in result.speeds:
        tau = "" if s.tokens_per_round is None else f"{s.tokens_per_round:.2f}"
        spread = f"{s.low:.0f} to {s.high:.0f}"
        peak = f"{result.peak_mib[s.method]:.0f}"
        rate = f"{s.tokens_per_second:.0f}"
        table.add_row(s.domain, s.method, rate, spread, tau, f"{s.over_plain:.2f}", f"{s.over_transformers:.2f}", peak)
    console.print(table)
    costs = Table("tokens in one forward", "ms", "over one token")
    for f in result.forwards:
        costs.add_row(str(f.tokens), f"{f.milliseconds:.2f}", f"{f.over_one:.2f}")
    console.print(costs)
    floor = result.floor
    console.print(
        f"floor: {floor.weight_mib:.1f} MiB of weights at {floor.copy_gib_per_second:.1f} GiB/s is "
        f"{floor.milliseconds:.2f} ms; one token takes {floor.one_token_over_floor:.1f} times that"
    )
    console.print("outputs equal to plain decoding: " + ", ".join(f"{m} {n}" for m, n in result.identical.items()))
