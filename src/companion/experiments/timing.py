"""What the speed benchmarks share: the same prompts for every method, taking turns, and memory of fresh processes.

Speed is a ratio within one run. Methods alternate prompt by prompt, so that a slow spell of the machine hits all of
them alike.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import companion
from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget, find_model
from companion.protocols import Drafter
from companion.rounds import Round
from companion.training.corpus import DOMAINS, held_out_samples

Prompts = dict[str, list[list[int]]]  # of each domain
Decoder = Callable[[list[int]], tuple[list[int], GenerationResult | None]]  # prompt ids to new ids, and our rounds

PLAIN = "plain"  # every race has it: outputs are compared with its


def held_out_prompts(target: TextTarget, count: int, seed: int) -> Prompts:
    """``count`` held-out prompts of each domain, thinking off."""
    return {
        domain: [
            target.render(sample.prompt, thinking=False)
            for sample in held_out_samples(domain, "no_think", count, seed=seed)
        ]
        for domain in DOMAINS
    }


def our_decoder(target: TextTarget, drafter: Drafter | None, max_new_tokens: int) -> Decoder:
    """Greedy decoding with our engine."""

    def decode(ids: list[int]) -> tuple[list[int], GenerationResult]:
        result = companion.generate(target, drafter, ids, max_new_tokens=max_new_tokens, temperature=0.0)
        return result.tokens, result

    return decode


def transformers_decoder(
    target: str, max_new_tokens: int, device: str, *, assistant: str | None = None, lookup: bool = False, depth: int = 5
) -> Decoder:
    """transformers' own greedy generate: plain, with prompt lookup, or assisted at a constant depth."""
    from transformers import GenerationConfig

    model = transformers_model(target, device)
    eos, pad = model.generation_config.eos_token_id, model.generation_config.pad_token_id
    settings = GenerationConfig(do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=eos, pad_token_id=pad)
    extra: dict[str, Any] = {}
    if lookup:
        extra = {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": 3}
    elif assistant is not None:
        helper = transformers_model(assistant, device)
        helper.generation_config.num_assistant_tokens = depth
        helper.generation_config.num_assistant_tokens_schedule = "constant"
        helper.generation_config.assistant_confidence_threshold = 0.0
        extra = {"assistant_model": helper}
    model.generation_config = settings

    def decode(ids: list[int]) -> tuple[list[int], None]:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs = torch.tensor([ids], device=device)
            output = model.generate(inputs, attention_mask=torch.ones_like(inputs), **extra)
        return output[0, len(ids) :].tolist(), None

    return decode


def transformers_model(name: str, device: str) -> Any:
    """The same weights as transformers' module."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(find_model(name).path, dtype=torch.float32)
    return model.to(device).eval()


@dataclass
class Race:
    """What methods did on the same prompts."""

    seconds: dict[tuple[str, str], list[list[float]]] = field(default_factory=dict)  # (domain, method): [pass][prompt]
    tokens: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)  # new ones, likewise
    rounds: dict[tuple[str, str], list[Round]] = field(default_factory=dict)  # of our engine
    same: dict[str, tuple[int, int]] = field(default_factory=dict)  # outputs equal to plain decoding's, outputs

    def rates(self, domain: str, method: str) -> list[float]:
        """Tokens per second of each pass."""
        key = domain, method
        return [sum(n) / sum(s) for n, s in zip(self.tokens[key], self.seconds[key], strict=True)]


def race(decoders: Mapping[str, Decoder], prompts: Prompts, repeats: int) -> Race:
    """Decode every prompt by every method, warm, ``repeats`` times; plain decoding must be the first method."""
    for decode in decoders.values():
        decode(next(iter(prompts.values()))[0])  # warm-up
    found = Race(same=dict.fromkeys(decoders, (0, 0)))
    for _ in tqdm(range(repeats), desc="timed passes", disable=None):
        for domain, rows in prompts.items():
            for method in decoders:
                found.seconds.setdefault((domain, method), []).append([])
                found.tokens.setdefault((domain, method), []).append([])
            for ids in rows:
                reference: list[int] = []
                for method, decode in decoders.items():
                    started = time.perf_counter()
                    new, result = decode(ids)
                    found.seconds[domain, method][-1].append(time.perf_counter() - started)
                    found.tokens[domain, method][-1].append(len(new))
                    reference = new if method == PLAIN else reference
                    hits, total = found.same[method]
                    found.same[method] = hits + (new == reference), total + 1
                    if result is not None:
                        found.rounds.setdefault((domain, method), []).extend(result.rounds)
    return found


def copy_speed(size: int, device: torch.device, repeats: int = 30) -> float:
    """Bytes read and written per second when ``size`` bytes are copied: the machine's own memory speed, median."""
    source, sink = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        sink.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 2 * size / statistics.median(times)


def peak_of(work: Callable[..., None], *arguments: Any) -> float:
    """Peak resident memory, MiB, of a fresh process that does ``work``."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (work, arguments))


def _peak(work: Callable[..., None], arguments: tuple[Any, ...]) -> float:
    work(*arguments)
    # VmHWM where there is /proc: ru_maxrss of a spawned child starts at its parent's size
    status = Path("/proc/self/status")
    if status.exists():
        line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
