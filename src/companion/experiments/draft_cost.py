"""T_draft against the proposal length, for every family of drafters, with what it must cost at least.

The weights are new ones of the book's shapes: time does not depend on them. Each drafter reads the same growing text,
three committed tokens a round, and all take turns. Floor: the weights that one proposal reads, W_2 of the Markov head
and everything that an autoregressive drafter has once for each token, at this machine's own copy speed; a processor
whose cache holds some of them can beat it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

import companion
from companion.drafters.dspark.drafter import DSparkDrafter
from companion.drafters.dspark.model import DSparkModel
from companion.drafters.eagle3.drafter import Eagle3Drafter
from companion.drafters.eagle3.model import Eagle3
from companion.drafters.model import ModelDrafter
from companion.engine.draws import KeyedDraws
from companion.engine.load import TextTarget
from companion.engine.target import Qwen3Target
from companion.experiments.round_stages import clocked
from companion.experiments.timing import copy_speed
from companion.protocols import Context, Drafter, Sampling
from companion.roofline import Work
from companion.training.drafter_task import new_drafter
from companion.training.recipe import DrafterConfig, dflash_config

COMMITTED = 3  # tokens a round that the drafter reads anew
WARM_UP = 3  # rounds that are not counted
FAMILIES = ("dspark", "dspark-gated", "dspark-rnn", "dflash", "eagle3", "draft model")


class DraftTime(BaseModel):
    """One proposal of ``gamma`` tokens, batch 1."""

    family: str
    gamma: int
    temperature: float
    milliseconds: float  # median
    low: float  # quartiles
    high: float
    sequential: float | None  # of these the loop over slots; None: all of it is one
    mib: float  # weights read
    mflop: float
    floor: float  # milliseconds to read them


@dataclass
class _Made:
    drafter: Drafter
    work: Work


def draft_times(
    target: TextTarget,
    *,
    draft: str = "tiny-qwen3-draft",
    gammas: Sequence[int] = (3, 7, 11, 15),
    temperatures: Sequence[float] = (0.0, 1.0),
    context: int = 96,
    repeats: int = 30,
) -> list[DraftTime]:
    """Time ``repeats`` proposals of every family, length and temperature. ValueError on numbers out of range."""
    if min(gammas, default=0) < 1 or repeats < 1 or context < 2:
        raise ValueError(f"expected gammas and repeats >= 1 and a context >= 2, got {gammas}, {repeats} and {context}")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = {(f, gamma): _make(f, gamma, target, draft) for f in FAMILIES for gamma in gammas}
    speed = copy_speed(target.parameters * target.embedding.element_size(), target.device)
    found = []
    for number, temperature in enumerate(temperatures):
        times = _proposals(target, made, number, temperature, context, repeats)
        for (family, gamma), (whole, loop) in times.items():
            work = made[family, gamma].work
            low, median, high = 1e3 * np.quantile(whole, [0.25, 0.5, 0.75])
            row = DraftTime(
                family=family,
                gamma=gamma,
                temperature=temperature,
                milliseconds=median,
                low=low,
                high=high,
                sequential=1e3 * float(np.median(loop)) if loop else None,
                mib=work.bytes / 2**20,
                mflop=work.flops / 1e6,
                floor=1e3 * work.bytes / speed,
            )
            found.append(row)
    return found


def _proposals(
    target: TextTarget,
    made: dict[tuple[str, int], _Made],
    request: int,
    temperature: float,
    context: int,
    repeats: int,
) -> dict[tuple[str, int], tuple[list[float], list[float]]]:
    """Seconds of every proposal, and of its loop where it can be told apart."""
    generator = torch.Generator().manual_seed(request)
    rounds = repeats + WARM_UP
    length = context + COMMITTED * rounds
    text = torch.randint(0, target.usable_vocab, (length,), generator=generator).tolist()
    states = torch.randn(length, target.shape.layers, target.shape.hidden, generator=generator)
    states = states.to(target.device, target.dtype)
    contexts = {
        key: Context(request, text[:context], Sampling(temperature), KeyedDraws(0, b"draft cost")) for key in made
    }
    times: dict[tuple[str, int], tuple[list[float], list[float]]] = {key: ([], []) for key in made}
    start = 0
    for turn in range(rounds):
        end = context + COMMITTED * turn
        for key, one in made.items():
            own, drafter = contexts[key], one.drafter
            own.tokens[:] = text[:end]
            own.round = turn
            drafter.observe([own], [states[start : end - 1, : len(drafter.taps)] if drafter.taps else None])
            whole, loop = times[key]
            with ExitStack() as clocks:
                if isinstance(drafter, DSparkDrafter):
                    clocks.enter_context(clocked(drafter, "sequential", loop))
                began = time.perf_counter()
                drafter.propose([own], [key[1]])
                whole.append(time.perf_counter() - began)
        start = end - 1
    for one in made.values():
        one.drafter.reset(request)
    return {key: (whole[WARM_UP:], loop[WARM_UP:]) for key, (whole, loop) in times.items()}


def _make(family: str, gamma: int, target: TextTarget, draft: str) -> _Made:
    size = target.embedding.element_size()
    if family == "draft model":
        loaded = companion.load_drafter(draft, target, max_depth=gamma)
        if not isinstance(loaded, ModelDrafter):
            raise ValueError(f"{draft!r} is no draft model: give a causal language model that drafts token by token")
        return _Made(loaded, _draft_model_work(loaded.model, gamma, size))
    recipes: dict[str, Callable[..., DrafterConfig]] = {
        "dspark": DrafterConfig,
        "dspark-gated": lambda **own: DrafterConfig(head="gated", **own),
        "dspark-rnn": lambda **own: DrafterConfig(head="rnn", **own),
        "dflash": dflash_config,
        "eagle3": lambda **own: DrafterConfig(kind="eagle3", layers=1, **own),
    }
    last = target.shape.layers - 2  # the last layer's output is not offered
    recipe = recipes[family](block_size=gamma)
    recipe = replace(recipe, target_layers=tuple(i for i in recipe.target_layers if i <= last))
    model = new_drafter(recipe, target).to(target.device, target.dtype)
    options = {"name": family, "device": target.device, "dtype": target.dtype, "usable_vocab": target.usable_vocab}
    if isinstance(model, Eagle3):
        return _Made(Eagle3Drafter(model, **options), _eagle3_work(model, gamma, size))  # type: ignore[arg-type]
    assert isinstance(model, DSparkModel)
    return _Made(DSparkDrafter(model, **options), _dspark_work(model, gamma, size))  # type: ignore[arg-type]


def _matrices(module: nn.Module | None) -> int:
    """Weights of a module's matrices; norms and biases are a few thousand, left out."""
    return 0 if module is None else sum(p.numel() for p in module.parameters() if p.ndim == 2)


def _keys_values(layers: nn.Module) -> int:
    return sum(p.numel() for name, p in layers.named_parameters() if "k_proj" in name or "v_proj" in name)


def _dspark_work(model: DSparkModel, gamma: int, size: int) -> Work:
    """The backbone and the shared head once; W_2 and the gate or state matrix once for each slot."""
    layers, head, fc = _matrices(model.layers), _matrices(model.lm_head), _matrices(model.fc)
    slot = 0 if model.markov_head is None else _matrices(model.markov_head) - model.markov_head.markov_w1.weight.numel()
    flops = COMMITTED * (fc + _keys_values(model.layers)) + model.config.block_size * layers + gamma * (head + slot)
    return Work(flops=2 * flops, bytes=(fc + layers + head + gamma * slot) * size)


def _eagle3_work(model: Eagle3, gamma: int, size: int) -> Work:
    layers, head, fc = _matrices(model.layers), _matrices(model.lm_head), _matrices(model.fc)
    caught_up = COMMITTED * fc + (COMMITTED - 1) * _keys_values(model.layers)
    return Work(flops=2 * (caught_up + gamma * (layers + head)), bytes=(fc + gamma * (layers + head)) * size)


def _draft_model_work(model: Qwen3Target, gamma: int, size: int) -> Work:
    layers = sum(w.numel() for layer in model.layers for w in (layer.qkv, layer.out, layer.gate_up, layer.down))
    head = model.head.numel()
    flops = 2 * ((COMMITTED + gamma - 1) * layers + gamma * head)
    return Work(flops=flops, bytes=gamma * (layers + head) * size)
