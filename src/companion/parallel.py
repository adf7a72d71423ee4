"""A map over worker processes that keeps the order of its items, or over this process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def ordered_map(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """``function`` of every item, in order, as results become available; stops its processes when abandoned.

    ``function`` and the items must be picklable. Raises ValueError when ``workers`` is below 1, and what ``function``
    raises.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if workers == 1 or len(items) < 2:
        yield from map(function, items)
        return
    with multiprocessing.get_context("spawn").Pool(min(workers, len(items)), _start_worker) as pool:
        yield from pool.imap(function, items)


def _start_worker() -> None:
    """One thread each, and an interrupt is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
