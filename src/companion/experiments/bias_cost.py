"""What the Markov head's bias costs on this machine's processor, at the sizes of Qwen3, in fp32 with random weights.

The values of the weights do not matter for the time; their number does: at V = 151,936 and r = 256 the matrix W_2 has
156 MB and fits into no cache of an ordinary processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, Field

from companion.costs import markov_head_flops

ROWS = (1, 2, 4, 8, 16, 32)


class Config(BaseModel):
    vocab_size: int = Field(151_936, ge=1)
    rank: int = Field(256, ge=1)
    gamma: int = Field(7, ge=1)
    candidates: int = Field(1024, ge=1)
    table_rows: int = Field(256, ge=1)  # of the V x V table so many stand in for all, with W_2's bytes at the defaults
    repeats: int = Field(7, ge=3)
    seed: int = 0


class Result(BaseModel, arbitrary_types_allowed=True):
    products: pd.DataFrame  # by rows multiplied with W_2 at once: median, low, high (quartiles, ms), intensity, gflops
    ways: pd.DataFrame  # by name: median, low, high (ms) for the gamma tokens of one round
    gamma: int
    bandwidth: float  # bytes per second of reading W_2 alone: a sum over it


def run(config: Config) -> Result:
    """Time the ways in turn, so that a slow spell of the machine hits them all alike; medians and quartiles."""
    if config.candidates > config.vocab_size:
        raise ValueError(f"there are {config.vocab_size} tokens, so {config.candidates} candidates cannot be chosen")
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(config.seed)
    w2 = torch.randn(config.rank, config.vocab_size, generator=draw)  # [r, V], as the drafters of this project keep it
    by_token = w2.t().contiguous()  # [V, r]: a candidate is a row
    latent = torch.randn(max(ROWS), config.rank, generator=draw)  # rows of W_1
    table = torch.randn(config.table_rows, config.vocab_size, generator=draw)
    tokens = torch.randint(config.table_rows, (config.gamma,), generator=draw).tolist()
    chosen = torch.randint(config.vocab_size, (config.gamma, config.candidates), generator=draw)
    block = latent[: config.gamma]

    def each(step: Callable[[int], object]) -> Callable[[], object]:
        return lambda: [step(k) for k in range(config.gamma)]

    ways: dict[str, Callable[[], object]] = {
        "one row at a time": each(lambda k: block[k : k + 1] @ w2),
        "all rows at once": lambda: block @ w2,
        "candidates only": each(lambda k: block[k : k + 1] @ by_token[chosen[k]].t()),
        "row of a table": each(lambda k: table[tokens[k]].clone()),
    }
    steps: dict[Any, Callable[[], object]] = {**ways, "read": w2.sum}
    steps |= {rows: partial(torch.mm, latent[:rows], w2) for rows in ROWS}
    with torch.inference_mode():
        times = _times(steps, config.repeats)
    by_rows = _frame({rows: times[rows] for rows in ROWS}).rename_axis("rows")
    flops = np.array([markov_head_flops(1, config.rank, config.vocab_size) * rows for rows in ROWS])
    by_rows["intensity"] = flops / w2.nbytes
    by_rows["gflops"] = flops / by_rows["median"].to_numpy() / 1e6
    bandwidth = w2.nbytes / float(np.median(times["read"]))
    return Result(
        products=by_rows, ways=_frame({name: times[name] for name in ways}), gamma=config.gamma, bandwidth=bandwidth
    )


def _times(steps: Mapping[object, Callable[[], object]], repeats: int) -> dict[object, list[float]]:
    """Seconds of processor time of each step, ``repeats`` times after one pass that warms up.

    Processor time, so that the while in which another process has the core does not count.
    """
    times: dict[object, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            started = time.process_time()
            step()
            if repeat:
                times[name].append(time.process_time() - started)
    return times


def _frame(times: Mapping[Any, list[float]]) -> pd.DataFrame:
    rows = {name: 1000 * np.quantile(values, [0.5, 0.25, 0.75]) for name, values in times.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["median", "low", "high"])
