"""Between host and device: what goes up does not make the host wait, and what comes down makes it wait once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def upload(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A tensor of host numbers on ``device``. To a GPU it goes from pinned memory, in the order of the stream."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def download(*tensors: Tensor) -> list[Any]:
    """Each tensor as nested lists, after one wait for the device they share.

    They travel as one vector of fp64, in which fp32 and whole numbers below 2^53 keep every bit.
    """
    packed = torch.cat([tensor.reshape(-1).to(torch.float64) for tensor in tensors]).cpu()
    parts = packed.split([tensor.numel() for tensor in tensors])
    return [part.view(t.shape).to(t.dtype).tolist() for part, t in zip(parts, tensors, strict=True)]
