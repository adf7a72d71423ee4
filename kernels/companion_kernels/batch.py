"""batch: a round's drafts, flattened for `verify`, and what is refused of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from companion.kernels.launch import FLOATS, WHOLE, require, values_known
from companion.kernels.rows import temperatures


class Batch(NamedTuple):
    """The R requests of a round, which bring N rows: of each its drafts' rows and one more, in the drafts' order."""

    drafted: Tensor  # [N] int64: the token that a row judges; -1, or anything, in the last row of each request
    starts: Tensor  # [R + 1] int64: request r has rows starts[r] to starts[r + 1] - 1; none is allowed
    positions: Tensor  # [R] int64: absolute position of the first drafted token
    keys: Tensor  # [R, 2] int64: two words of each request's key
    temperature: Tensor  # [R] fp32, 0 is greedy


class Drafts(NamedTuple):
    """What the drafted tokens were drawn from, of those that were not one-hot."""

    laws: Tensor  # [D, V] fp32 probabilities; or logits in fp32, bf16 or fp16, with ``temperature``
    rows: Tensor  # [N] int64 or int32: the row of ``laws`` for each row of the target, -1 where q is one-hot
    temperature: Tensor | None = None  # [D] fp32; None: ``laws`` are probabilities


def check(logits: Tensor, batch: Batch, drafts: Drafts | None, depth: int) -> None:  # [N, V]
    """ValueError unless everything fits; values are read on CPU tensors only."""
    require("logits", logits, dtypes=FLOATS, shape=(None, None))
    (rows, width), device, whole = logits.shape, logits.device, (torch.int64,)
    require("starts", batch.starts, dtypes=whole, shape=(None,), device=device)
    requests = len(batch.starts) - 1
    if width == 0 or requests < 0 or depth < 0:
        raise ValueError(f"{width} columns, {len(batch.starts)} starts, depth {depth}: expected at least 1, 1 and 0")
    require("drafted", batch.drafted, dtypes=whole, shape=(rows,), device=device)
    require("positions", batch.positions, dtypes=whole, shape=(requests,), device=device)
    require("keys", batch.keys, dtypes=whole, shape=(requests, 2), device=device, contiguous=True)
    temperatures(batch.temperature, requests, device)
    if drafts is not None:
        kinds = (torch.float32,) if drafts.temperature is None else FLOATS
        require("drafts.laws", drafts.laws, dtypes=kinds, shape=(None, width), device=device)
        require("drafts.rows", drafts.rows, dtypes=WHOLE, shape=(rows,), device=device)
        if drafts.temperature is not None:
            temperatures(drafts.temperature, len(drafts.laws), device)
    if values_known(logits):
        _check_values(batch, drafts, depth, rows, width)


def _check_values(batch: Batch, drafts: Drafts | None, depth: int, rows: int, width: int) -> None:
    starts, drafted = batch.starts, batch.drafted
    lengths = starts.diff()
    if int(starts[0]) != 0 or int(starts[-1]) > rows or bool((lengths < 0).any()):
        raise ValueError(f"starts must rise from 0 to at most {rows} rows, got {starts.tolist()}")
    if len(lengths) and int(lengths.max()) > depth + 1:
        raise ValueError(f"a request brings {int(lengths.max()) - 1} drafts, the kernel was given depth {depth}")
    if len(lengths) and int(batch.positions.min()) < 0:
        raise ValueError(f"positions must be 0 or more, got {int(batch.positions.min())}")
    judged = torch.ones(rows, dtype=torch.bool)
    judged[starts[1:][lengths > 0] - 1] = False
    judged[int(starts[-1]) :] = False
    if bool((judged & ((drafted < 0) | (drafted >= width))).any()):
        raise ValueError(f"drafted tokens are {drafted[judged].tolist()}; they run from 0 to {width - 1}")
    if drafts is not None and bool((judged & ((drafts.rows < -1) | (drafts.rows >= len(drafts.laws)))).any()):
        raise ValueError(f"drafts.rows are {drafts.rows[judged].tolist()}; they run from -1 to {len(drafts.laws) - 1}")
