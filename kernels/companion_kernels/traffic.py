"""traffic: the bytes that a computation moves, counted while it runs and not timed.

A kernel under the interpreter: each element that it loads or stores, where its mask lets it, as often as it does; a
cache may spare some of that. Plain PyTorch: each operation reads the tensors that it is given and writes those that it
gives back. Views move nothing, look-ups read what they take, and what an operation does inside is not seen, so that its
count is a lower bound. The latter needs no values: on tensors on the device ``meta`` it counts Qwen3's sizes anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from companion.kernels.launch import interpreting

LOOK_UPS = {"gather", "index", "index_select", "searchsorted", "select_scatter"}
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view"}
OVERWRITES = {"copy_", "fill_", "zero_"}  # their first tensor is written and not read


@dataclass
class Traffic:
    """Bytes so far."""

    read: int = 0
    written: int = 0

    @property
    def bytes(self) -> int:
        return self.read + self.written


@contextmanager
def kernel_traffic() -> Iterator[Traffic]:
    """What kernels load and store inside. ValueError without the interpreter, whose loads and stores are counted."""
    if not interpreting():
        raise ValueError("kernels are counted under the interpreter only; set TRITON_INTERPRET=1 and start again")
    from triton.runtime import interpreter

    builder, count = interpreter.interpreter_builder, Traffic()
    load, store = builder.create_masked_load, builder.create_masked_store

    def size(pointers: Any, mask: Any) -> int:
        return int(mask.data.sum()) * pointers.get_element_ty().primitive_bitwidth // 8

    def counted_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        count.read += size(pointers, mask)
        return load(pointers, mask, *rest)

    def counted_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        count.written += size(pointers, mask)
        return store(pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = counted_load, counted_store
    try:
        yield count
    finally:
        del builder.create_masked_load, builder.create_masked_store  # the class has its own


@contextmanager
def tensor_traffic() -> Iterator[Traffic]:
    """What operations on tensors read and write inside."""
    count = Traffic()
    with _Watch(count):
        yield count


class _Watch(TorchDispatchMode):
    def __init__(self, count: Traffic) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name in ALLOCATIONS:
            return out
        given, made = _tensors((args, kwargs)), _tensors(out)
        if name in LOOK_UPS:  # the source is read where it is looked up
            self.count.read += sum(map(_bytes, given[1:])) + sum(made_.numel() for made_ in made) * given[0].itemsize
        else:
            self.count.read += sum(map(_bytes, given[name in OVERWRITES :]))
        self.count.written += sum(map(_bytes, made))
        return out


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Of its distinct elements: one that is spread over an axis is there once."""
    spread = (n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step != 0)
    return int(torch.Size(spread).numel()) * tensor.itemsize
