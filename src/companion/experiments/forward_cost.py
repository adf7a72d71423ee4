"""What one target forward costs on this machine as a function of the tokens in it (T_verify of paper Eq. 1)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel

import companion
from companion.drafters.model import ModelDrafter
from companion.engine.target import Qwen3Target, single
from companion.planning import CostModel

WIDTHS = (1, 2, 4, 8, 16, 32)


class Config(BaseModel):
    target: str = "tiny-qwen3"
    drafter: str = "draft"
    device: str = "cpu"
    context: int = 96  # tokens already in the cache
    repeats: int = 40
    threads: int = 1


class Result(BaseModel, arbitrary_types_allowed=True):
    forwards: pd.DataFrame  # by tokens: median, low, high (quartiles), microseconds
    draft_token_us: float  # one token of the draft model
    cost: CostModel  # the line F + c g through the medians of the widths up to 8, and the draft model's token


def run(config: Config) -> Result:
    """Time forwards of 1 to 32 tokens of the target and of one token of the draft model, warm, one request."""
    if config.repeats < 3:
        raise ValueError(f"repeats must be at least 3 for a median with quartiles, got {config.repeats}")
    torch.set_num_threads(config.threads)
    target = companion.load_target(config.target, device=config.device)
    drafter = companion.load_drafter(config.drafter, target)
    if not isinstance(drafter, ModelDrafter):
        raise ValueError(f"this experiment times a draft model's forward, and drafter {config.drafter!r} has none")
    forwards = forward_times(target, WIDTHS, context=config.context, repeats=config.repeats)
    draft = forward_times(drafter.model, (1,), context=config.context, repeats=config.repeats)
    draft_token_us = float(draft["median"].iloc[0])
    return Result(forwards=forwards, draft_token_us=draft_token_us, cost=fit_cost(forwards, draft_token_us))


def forward_times(model: Qwen3Target, widths: Sequence[int], *, context: int, repeats: int) -> pd.DataFrame:
    """Median and quartiles of the time of one forward, in microseconds, behind a cache of ``context`` tokens.

    The widths take turns, so that a slow spell of the machine hits them all alike.
    """
    cache = model.new_cache(1, context + max(widths))
    tokens = torch.arange(context + max(widths)).remainder(model.usable_vocab).tolist()
    model.forward(single(tokens[:context], slot=0, cached=0, device=model.device), cache)
    batches = {width: single(tokens[:width], slot=0, cached=context, device=model.device) for width in widths}
    times: dict[int, list[float]] = {width: [] for width in widths}
    for repeat in range(repeats + 2):
        for width, batch in batches.items():
            _wait(model)
            started = time.perf_counter()
            model.forward(batch, cache)
            _wait(model)
            if repeat >= 2:  # the first two passes warm up
                times[width].append((time.perf_counter() - started) * 1e6)
            cache.rollback(0, context)
    rows = {width: np.quantile(values, [0.5, 0.25, 0.75]) for width, values in times.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["median", "low", "high"]).rename_axis("tokens")


def fit_cost(forwards: pd.DataFrame, draft_token_us: float, up_to: int = 8) -> CostModel:
    """The line F + c g through the medians, g = tokens - 1 drafted ones: F one plain step, c one more token."""
    few = forwards[forwards.index <= up_to]
    slope, intercept = np.polyfit(few.index.to_numpy() - 1.0, few["median"].to_numpy(), 1)
    return CostModel(draft_token_us, float(intercept), max(float(slope), 0.0))


def _wait(model: Qwen3Target) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
