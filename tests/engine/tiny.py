"""The shipped models, loaded once for all tests of a worker, and held-out prompts of every domain and mode."""

from __future__ import annotations

from functools import cache

import torch

from companion.drafters.load import load_drafter
from companion.engine.generate import GenerationResult, generate
from companion.engine.load import TextTarget, load_target
from companion.protocols import Drafter
from companion.training.corpus import DOMAINS, MODES, held_out_samples


@cache
def tiny(dtype: torch.dtype = torch.float32) -> TextTarget:
    return load_target("tiny-qwen3", dtype=dtype)


@cache
def prompts(each: int) -> tuple[tuple[int, ...], ...]:
    """``each`` held-out prompts of three domains in both modes, as token ids; domains and modes alternate."""
    target = tiny()
    return tuple(
        tuple(target.render(held_out_samples(domain, mode, each, seed=11)[i].prompt, thinking=mode == "think"))
        for i in range(each)
        for domain in DOMAINS
        for mode in MODES
    )


def drafter(kind: str, depth: int, dtype: torch.dtype = torch.float32) -> Drafter:
    """ "lookup", "sampled" or "greedy" (the draft model's two proposals)."""
    target = tiny(dtype)
    if kind == "lookup":
        made = load_drafter("lookup", target, max_depth=depth)
    else:
        made = load_drafter("draft", target, max_depth=depth, proposal="greedy" if kind == "greedy" else "sampled")
    assert made is not None
    return made


@cache
def plain(each: int, new_tokens: int) -> list[GenerationResult]:
    """Greedy plain decoding, one prompt at a time: what every other greedy run must give."""
    return [generate(tiny(), None, list(ids), temperature=0.0, max_new_tokens=new_tokens) for ids in prompts(each)]
