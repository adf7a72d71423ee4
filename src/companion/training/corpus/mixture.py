"""The training mixture and the held-out sets: sample i is a function of (seed, i) alone."""

from __future__ import annotations

import random
from dataclasses import replace

from .chat import chat_sample
from .code import code_sample
from .math import math_sample
from .sample import DOMAINS, SOFT_SWITCH, Domain, Kind, Mode, Sample

SHARES: dict[Domain, float] = {"math": 0.42, "code": 0.41, "chat": 0.17}
OVERLAP = 0.25
SYSTEM = ("You are a helpful assistant.", "Answer briefly.", "You are a friendly tutor.")
SYSTEM_SHARE = 0.08
HISTORY_SHARE = 0.05
SOFT_SWITCH_SHARE = 0.02
MAKERS = {"math": math_sample, "code": code_sample, "chat": chat_sample}


def training_sample(
    seed: int, index: int, think_share: float = 0.5, overlap: float = OVERLAP, shares: dict[Domain, float] = SHARES
) -> Sample:
    """Training sample ``index``, never held out: domain by ``shares``, thinking with probability ``think_share``.

    A few carry a system message, an earlier turn, or Qwen3's soft switch ``/no_think`` (which the model answers with an
    empty span of its own).
    """
    rng = random.Random(f"train/{seed}/{index}")
    domain = rng.choices(DOMAINS, [shares[d] for d in DOMAINS])[0]
    mode: Mode = "think" if rng.random() < think_share else "no_think"
    sample = MAKERS[domain](rng, mode, False, "standard", overlap)
    if rng.random() < SYSTEM_SHARE:
        sample = replace(sample, system=rng.choice(SYSTEM))
    if rng.random() < HISTORY_SHARE:
        earlier = MAKERS[domain](rng, "no_think", False, "standard", 0.0)
        sample = replace(sample, history=((earlier.prompt, earlier.answer),))
    if mode == "no_think" and rng.random() < 2 * SOFT_SWITCH_SHARE:
        sample = replace(sample, prompt=sample.prompt + SOFT_SWITCH)
    return sample


def held_out_samples(
    domain: Domain, mode: Mode, count: int, seed: int = 0, kind: Kind = "standard", overlap: float = OVERLAP
) -> list[Sample]:
    """``count`` held-out samples with distinct prompts; chat has no ``longer`` kind.

    Raises ValueError when the grammar runs out of distinct held-out prompts.
    """
    if domain == "chat" and kind == "longer":
        raise ValueError("chat prompts hold no numbers, so there is no kind 'longer'; use 'standard' or 'wording'")
    rng = random.Random(f"held-out/{seed}/{domain}/{mode}/{kind}")
    samples: dict[str, Sample] = {}
    for _ in range(200 * count + 2000):
        if len(samples) == count:
            return list(samples.values())
        sample = MAKERS[domain](rng, mode, True, kind, overlap)
        samples.setdefault(sample.prompt, sample)
    raise ValueError(
        f"{count} distinct held-out {domain} prompts ({kind}) were asked for, and only {len(samples)} were found"
    )
