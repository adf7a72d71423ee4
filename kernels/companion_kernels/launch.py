"""What all kernels share: whether they run here, when they become Triton, and what is checked before a launch.

A kernel runs where its tensors are on a GPU, or anywhere under the interpreter (TRITON_INTERPRET=1 in the environment
before the first launch); elsewhere a launcher computes its PyTorch reference. Triton is imported at the first launch
and not with this package, which therefore works on a machine without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32)


class Tile(NamedTuple):
    """One choice of block size, as plain data: a tuner would need a GPU's driver only to be asked."""

    block: int  # elements along the row that one program holds at a time, a power of 2
    warps: int = 4
    stages: int = 3


class Launch(NamedTuple):
    """A launch that was recorded instead of made: what the ahead-of-time check compiles."""

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: dict[str, Any]  # by the kernel's parameter names
    options: dict[str, Any]  # num_warps, num_stages


class Kernel:
    """A function in Triton's language, compiled from its first launch on; decorate kernels and their helpers alike.

    In the function's module ``tl`` is bound then, and so are the helpers that it calls, for Triton looks both up there.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self._compiled: Any = None

    @property
    def compiled(self) -> Any:
        """Triton's own function. ValueError on a machine without triton."""
        if self._compiled is None:
            if not triton_installed():
                raise ValueError("kernels need triton, which is not installed here; use CPU tensors without it")
            import triton
            import triton.language

            self._compiled = triton.jit(self.function)
            names = self.function.__globals__
            names["tl"] = triton.language
            for name in self.function.__code__.co_names:
                if isinstance(helper := names.get(name), Kernel):
                    names[name] = helper.compiled
        return self._compiled

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, num_warps: int = 4, num_stages: int = 3, **named: Any) -> None:
            options = {"num_warps": num_warps, "num_stages": num_stages}
            names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
            if _recorded is not None:
                bound = dict(zip(names, arguments, strict=False)) | named
                _recorded.append(Launch(self, grid, {name: bound[name] for name in names}, options))
            elif 0 not in grid:  # nothing to do, which a GPU refuses as a launch
                self.compiled[grid](*arguments, **named, **options)

        return launch


_recorded: list[Launch] | None = None


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Inside, launchers record what they would launch, and nothing runs; give them tensors on the device ``meta``.

    Those have no values, so a launcher that waits for the device to read one fails.
    """
    global _recorded
    outer, _recorded = _recorded, []
    try:
        yield _recorded
    finally:
        _recorded = outer


def triton_installed() -> bool:
    return find_spec("triton") is not None


def interpreting() -> bool:
    """Whether kernels run under Triton's interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def runs_here(tensor: Tensor) -> bool:
    """Whether a launcher given ``tensor`` launches its kernel; False: it computes the reference."""
    return tensor.device.type == "cuda" or _recorded is not None or interpreting()


def values_known(tensor: Tensor) -> bool:
    """Whether checks may read values: on a GPU that would wait for the device and break a graph's capture."""
    return tensor.device.type == "cpu"


def tile_for(tiles: Sequence[Tile], width: int) -> Tile:
    """The first tile, no wider than the row needs; under the interpreter one so wide that its loops are few."""
    first = tiles[0]
    needed = power_of_two(width)
    return first._replace(block=min(needed, 65536 if interpreting() else first.block))


def power_of_two(least: int) -> int:
    """The smallest power of 2 that is not below ``least``."""
    return 1 << max(0, least - 1).bit_length()


def require(
    name: str,
    tensor: Tensor,
    *,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],  # None: any size
    device: torch.device | None = None,
    contiguous: bool = False,
) -> None:
    """ValueError unless ``tensor`` has one of the dtypes, the shape, the device, and a last axis without gaps.

    ``contiguous`` asks for no gaps anywhere: rows may be apart without it.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype}; the kernel takes {', '.join(map(str, dtypes))}: convert it first")
    if tensor.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, tensor.shape, strict=True)):
        wanted = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {wanted}")
    if device is not None and tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device} and the other tensors on {device}; move it there")
    gaps = tensor.ndim > 0 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1
    if gaps or (contiguous and not tensor.is_contiguous()):
        raise ValueError(f"{name} has strides {list(tensor.stride())}, which leave gaps; call .contiguous() on it")


def require_ids(name: str, ids: Tensor, width: int, *, least: int = 0) -> None:
    """ValueError on a token id outside ``least`` to ``width`` - 1; only where reading does not wait for a device."""
    if values_known(ids) and ids.numel() and not least <= int(ids.min()) <= int(ids.max()) < width:
        raise ValueError(
            f"{name} holds ids from {int(ids.min())} to {int(ids.max())}; they run from {least} to {width - 1}"
        )
