"""How much a second drafted token loses when it cannot see the first, on a real target's own distributions.

At a token of a response (the anchor) the target's joint law of the next two tokens is enumerated: one forward for the
anchor's row and one for each first token. From it follow, with no drafter trained or run, the acceptance of the second
token for a parallel drafter that knows both marginals, for the best parallel drafter there can be, and the mutual
information of the two tokens. A drafter that sees its first token can reach 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, Field

import companion
from companion.acceptance import overlap
from companion.collision import F64, best_parallel_second, mutual_information
from companion.engine.cache import Cache
from companion.engine.sampling import distribution
from companion.engine.target import Qwen3Target, ragged, single
from companion.experiments.responses import sample_responses
from companion.protocols import Sampling
from companion.training.corpus import DOMAINS, Domain


class Config(BaseModel):
    target: str = "tiny-qwen3"
    device: str = "cpu"
    prompts: int = Field(4, ge=1)  # responses for each domain, thinking off
    anchors: int = Field(40, ge=1)  # of each response, drawn without replacement; all when it has fewer
    temperature: float = Field(1.0, gt=0)
    neglected: float = Field(1e-3, gt=0, lt=1)  # of the first token's mass at most; half of what both rates may be off
    seed: int = 0


def run(config: Config) -> pd.DataFrame:
    """One row for each anchor: domain, response, position, marginals, best, information (nats), firsts (tokens)."""
    target = companion.load_target(config.target, device=config.device)
    sampled = sample_responses(
        target, prompts=config.prompts, seed=config.seed, temperature=config.temperature, modes=("no_think",)
    )
    rng, rows = np.random.default_rng(config.seed), []
    for number, response in enumerate(sampled):
        first, last = (
            len(response.result.prompt_tokens),
            len(response.tokens) - 2,
        )  # two real tokens follow the last one
        places = np.arange(first, last)
        chosen = np.sort(rng.choice(places, min(config.anchors, len(places)), replace=False))[::-1]
        cache = target.new_cache(1, len(response.tokens))
        target.forward(single(response.tokens, slot=0, cached=0, device=target.device), cache)
        for place in chosen.tolist():  # from the back, so that what is cached before it still is the response
            tokens, *laws = next_two(target, cache, response.tokens[: place + 1], config.temperature, config.neglected)
            rows.append((response.domain, number, place - first, *rates(*laws), len(tokens)))
    if not rows:
        raise ValueError("no response was long enough to hold an anchor and two tokens; sample more prompts")
    return pd.DataFrame(rows, columns=["domain", "response", "position", "marginals", "best", "information", "firsts"])


def rates(first: F64, second: F64) -> tuple[float, float, float]:  # [K], [K, V]
    """Acceptance of the second token by the marginals and by the best parallel drafter, and the mutual information."""
    options = (first @ second, best_parallel_second(first, second))
    marginals, best = (float(first @ overlap(second, q)) for q in options)
    return marginals, best, mutual_information(first, second)


def next_two(
    target: Qwen3Target, cache: Cache, context: Sequence[int], temperature: float = 1.0, neglected: float = 1e-3
) -> tuple[list[int], F64, F64]:  # K tokens, [K], [K, V]
    """The target's law of the next token over its K likeliest values, renormalised, and of the token after each.

    Slot 0 of ``cache`` holds ``context``, all but its last token at least; what it holds behind that is dropped. Left
    out are the least likely first tokens, ``neglected`` of the mass at most: a rate over the pair is off by twice that
    at most.
    """
    sampling, before = Sampling(temperature=temperature), len(context) - 1
    cache.rollback(0, before)
    law = _laws(target, cache, [(0, before, context[-1:])], sampling)[0]
    likeliest = np.argsort(-law, kind="stable")
    kept = likeliest[: 1 + int(np.searchsorted(np.cumsum(law[likeliest]), 1.0 - neglected))]
    copies = target.new_cache(len(kept), len(context) + 1)  # one forward for all of them, each with its own context
    for of, to in ((cache.keys, copies.keys), (cache.values, copies.values)):
        to[:, :, :, : len(context)] = of[:, :1, :, : len(context)]
    copies.lengths = [len(context)] * len(kept)
    rows = [(slot, len(context), [int(token)]) for slot, token in enumerate(kept)]
    return kept.tolist(), law[kept] / law[kept].sum(), _laws(target, copies, rows, sampling)


def _laws(target: Qwen3Target, cache: Cache, rows: Sequence[tuple[int, int, Sequence[int]]], sampling: Sampling) -> F64:
    logits = target.forward(ragged(rows, target.device), cache).logits[:, : target.usable_vocab]
    return np.asarray(distribution(logits.to("cpu", torch.float64), sampling).numpy())


def by_domain(rows: pd.DataFrame) -> dict[Domain, pd.DataFrame]:
    """The rows of each domain, in the book's order."""
    return {domain: rows[rows["domain"] == domain] for domain in DOMAINS}
