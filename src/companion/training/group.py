"""The processes of one training run: this one alone, those that `fit` starts on a CPU, or those of torchrun.

    torchrun --nproc-per-node 8 -m companion train drafter --device cuda --out runs/dspark

torchrun tells each process who it is (RANK, WORLD_SIZE, LOCAL_RANK). Sums travel by gloo between CPUs and by NCCL
between GPUs. The first process prepares the data, writes and prints; the others wait for it. Several machines must
share the run's folders.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(days=7)  # the others wait while the first one regenerates traces and writes features


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys()


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return (dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))) == 0


@contextmanager
def joined(device: str = "cpu") -> Iterator[torch.device]:
    """Join the processes of torchrun, if it started this one, and leave them at the end; yields this process's device.

    On ``cuda`` every process of a machine takes the GPU of its local number. ValueError for a device that is not there.
    """
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"training runs on cpu or cuda, not on {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but PyTorch sees no GPU here; use device 'cpu'")
    if not under_torchrun() or dist.is_initialized():
        yield torch.device(device)
        return
    own = torch.device("cpu")
    if kind == "cuda":
        number, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= found:
            raise ValueError(f"torchrun started a process number {number + 1} on a machine with {found} GPUs")
        own = torch.device("cuda", number)
        torch.cuda.set_device(own)
    dist.init_process_group("gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl", timeout=PATIENCE)
    try:
        yield own
    finally:
        dist.destroy_process_group()


def first_alone(action: Callable[[], object]) -> None:
    """Let the first process do ``action`` while the others wait. What it raises there ends the others silently."""
    if not dist.is_initialized():
        action()
        return
    error: BaseException | None = None
    if is_first():
        try:
            action()
        except BaseException as raised:
            error = raised
    failed = torch.tensor(float(error is not None))
    dist.broadcast(failed, src=0)
    if error is not None:
        raise error
    if failed.item():
        raise SystemExit(1)
