"""One vocabulary for NumPy arrays and torch tensors, so that a formula is written once and runs on both."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = TypeVar("Array", NDArray[Any], Tensor)


def namespace(*arrays: object) -> Any:
    """The module (``numpy`` or ``torch``) whose functions work on all of ``arrays``.

    Raises ValueError for lists and scalars, and for a mixture of the two kinds: a conversion made here in silence would
    hide a copy, or a move between devices.
    """
    if all(isinstance(a, Tensor) for a in arrays):
        return torch
    if all(isinstance(a, np.ndarray | np.generic) for a in arrays):
        return np
    kinds = ", ".join(type(a).__name__ for a in arrays)
    raise ValueError(f"expected NumPy arrays only or torch tensors only, got {kinds}; convert them to one kind first")


def is_floating(x: NDArray[Any] | Tensor) -> bool:
    return x.dtype.is_floating_point if isinstance(x, Tensor) else bool(np.issubdtype(x.dtype, np.floating))


def to_numpy(x: object) -> NDArray[np.float64]:
    """fp64 NumPy copy of a number, an array or a tensor (bf16 included)."""
    if isinstance(x, Tensor):
        return np.asarray(x.detach().to("cpu", torch.float64).numpy())
    return np.asarray(x, dtype=np.float64)


def like(x: NDArray[np.float64], *references: object) -> Any:
    """``x`` in the form of the first reference that is a tensor or an array: its kind, its device, its float dtype.

    With plain numbers as references a 0-d ``x`` comes back as a Python float.
    """
    for reference in references:
        if isinstance(reference, Tensor):
            dtype = reference.dtype if reference.dtype.is_floating_point else torch.float64
            return torch.as_tensor(np.asarray(x), dtype=dtype, device=reference.device)
    for reference in references:
        if isinstance(reference, np.ndarray | np.generic):
            kept = x.astype(reference.dtype) if np.issubdtype(reference.dtype, np.floating) else x
            return np.asarray(kept)[()]  # [()]: a 0-d array becomes a scalar, as NumPy's own functions do
    return float(x) if np.ndim(x) == 0 else x
