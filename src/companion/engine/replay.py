"""Replay: a fixed sequence of operations on fixed buffers, as one launch where a GPU can do that.

A step of decoding is hundreds of small kernels, and a host can need longer to launch them than a GPU to run them. A
CUDA graph records them once, with the addresses that they read and write, and launches them together from then on. Its
price is that nothing may change but what lies at those addresses: sizes are those of a bucket, inputs are copied into
the same buffers, and outputs are overwritten by the next run.

On other devices the CPU twin keeps these habits and calls the function: the same buffers, the same padding, the same
outputs that change under whoever kept them. Tests of all that run here; that a graph can be captured and replayed on a
GPU was not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from companion.engine.transfer import upload

ROWS = (*range(1, 17), 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # sizes of a stream; up to 16 rows without padding


class Replay:
    """What ``function`` computes from fixed buffers. Its outputs are the same tensors at every call.

    ``function`` runs at once, to warm up and to be recorded, so its buffers must hold valid inputs by then; it neither
    waits for the device nor decides by what it computes.
    """

    def __init__(self, function: Callable[[], tuple[Tensor, ...]], device: torch.device) -> None:
        self._function, self._graph = function, None
        if device.type != "cuda":
            self.outputs = function()
            return
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # compiles kernels and takes workspaces, which a capture may not
            function()
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=_pool(device)):
            self.outputs = function()

    def __call__(self) -> tuple[Tensor, ...]:
        if self._graph is not None:
            self._graph.replay()
            return self.outputs
        for kept, new in zip(self.outputs, self._function(), strict=True):
            kept.copy_(new)
        return self.outputs


class Staged:
    """Named vectors of whole numbers at fixed addresses of a device, filled together by one copy."""

    def __init__(self, sizes: Mapping[str, int], device: torch.device) -> None:
        self._packed = torch.zeros(sum(sizes.values()), dtype=torch.int64, device=device)
        self._sizes = dict(sizes)
        self._views = dict(zip(sizes, self._packed.split(list(sizes.values())), strict=True))

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def fill(self, **vectors: Sequence[int]) -> None:
        """Each vector in full, under its own name."""
        for name, size in self._sizes.items():
            assert len(vectors[name]) == size, f"{name} has {len(vectors[name])} entries, its buffer {size}"
        packed = [number for name in self._sizes for number in vectors[name]]
        self._packed.copy_(upload(packed, self._packed.device), non_blocking=True)


class Recorded:
    """A function of staged numbers, recorded at its first call, when its buffers are full."""

    def __init__(
        self, function: Callable[[Staged], tuple[Tensor, ...]], sizes: Mapping[str, int], device: torch.device
    ) -> None:
        self.staged, self._function, self._device = Staged(sizes, device), function, device
        self._replay: Replay | None = None

    def __call__(self) -> tuple[Tensor, ...]:
        if self._replay is None:
            self._replay = Replay(partial(self._function, self.staged), self._device)
        return self._replay()


def bucket(count: int, sizes: Sequence[int] = ROWS) -> int | None:
    """The smallest size that holds ``count``; None when there is none."""
    return next((size for size in sizes if size >= count), None)


_pools: dict[torch.device, Any] = {}


def _pool(device: torch.device) -> Any:
    """Memory that all graphs of a device share: no two of them run at the same time."""
    if device not in _pools:
        _pools[device] = torch.cuda.graph_pool_handle()
    return _pools[device]
