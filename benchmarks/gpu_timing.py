"""Times on a GPU without what is not the kernel's: launches in one graph, inputs that do not fit its cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

REPLAYS = 21


def copy_bandwidth(device: torch.device, dry: bool) -> float:
    """Bytes read and written per second by a large copy on the device: what a kernel's share is taken of."""
    size = 1 << (20 if dry else 31)
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    source.random_()
    seconds, _, _ = median_seconds([lambda: target.copy_(source)], device)
    return 2 * size / seconds


def median_seconds(calls: Sequence[Callable[[], Any]], device: torch.device) -> tuple[float, float, str]:
    """Median seconds of one call, the range over the median, and how it was timed.

    ``calls`` do the same on different inputs, which together are larger than the cache; they run in turn, captured as
    one CUDA graph where that is possible.
    """
    if device.type != "cuda":
        return (*_summed([_wall(calls)], len(calls)), "wall clock")
    for call in calls:
        call()
    torch.cuda.synchronize()
    try:
        graph, note = torch.cuda.CUDAGraph(), "graph"
        with torch.cuda.graph(graph):
            kept = [call() for call in calls]
        run: Callable[[], Any] = graph.replay
        del kept
    except Exception as failure:  # it waits for the device somewhere: timed as it is, launches included
        torch.cuda.synchronize()
        note = f"no graph ({type(failure).__name__})"

        def run() -> None:
            for call in calls:
                call()

    for _ in range(3):
        run()
    taken = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return (*_summed(taken, len(calls)), note)


def _wall(calls: Sequence[Callable[[], Any]]) -> float:
    begun = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - begun


def _summed(taken: list[float], calls: int) -> tuple[float, float]:
    middle = statistics.median(taken)
    return middle / calls, (max(taken) - min(taken)) / middle
