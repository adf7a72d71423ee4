"""Does it fit? Asked before anything is loaded, so that too little memory is a sentence and not a crash."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from companion.engine.shape import SIZES, Qwen3Shape, cache_bytes, qwen3_config, weight_count

REQUEST = 4096  # tokens of the one request for which a model that fits must have room, too


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device: of the GPU, or of this process's machine or container; None: not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = []
    lines = _read("/proc/meminfo").splitlines()
    found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():  # a container's own; files that are kept in memory are given up when it is needed
        kept = [line.split() for line in _read("/sys/fs/cgroup/memory.stat").splitlines()]
        found.append(max(0, int(limit) - sum(int(size) for name, size in kept if name in ("anon", "shmem"))))
    return min(found, default=None)


def check_weights(name: str, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> None:
    """ValueError when the weights of ``config`` and the cache of one request are larger than what is free."""
    free, needed, tokens = free_bytes(device), needed_bytes(config, dtype), _tokens(config)
    if free is None or needed <= free:
        return
    raise ValueError(
        f"{name} needs {_gb(needed)} for its weights in {_dtype(dtype)} and the cache of one request of {tokens:,} "
        f"tokens, and {_gb(free)} are free on {device}: {what_fits(free, dtype)}"
    )


def check_cache(shape: Qwen3Shape, slots: int, capacity: int, device: torch.device, dtype: torch.dtype) -> None:
    """ValueError when a GPU lacks the room for a cache. A CPU's memory is taken as it is written, and not checked."""
    free = free_bytes(device) if device.type == "cuda" else None
    one = cache_bytes(shape, capacity, dtype.itemsize)
    if free is None or slots * one <= free:
        return
    hint = f"decode at most {free // one} at once (max_batch), or" if free >= one else "free memory, or"
    raise ValueError(
        f"the cache of {slots} requests of {capacity:,} tokens needs {_gb(slots * one)}, and {_gb(free)} are free on "
        f"{device}: {hint} ask for fewer tokens (max_new_tokens)"
    )


def needed_bytes(config: Mapping[str, Any], dtype: torch.dtype) -> int:
    """Weights, and keys and values of one request."""
    cache = cache_bytes(Qwen3Shape.from_config(config), _tokens(config), dtype.itemsize)
    return weight_count(config) * dtype.itemsize + cache


def _tokens(config: Mapping[str, Any]) -> int:
    return min(REQUEST, int(config["max_position_embeddings"]))


def what_fits(free: int, dtype: torch.dtype) -> str:
    """The largest Qwen3 that ``free`` bytes hold in ``dtype``."""
    sizes = {name: needed_bytes(qwen3_config(name), dtype) for name in SIZES}
    fitting = [name for name, needed in sizes.items() if needed <= free]
    if not fitting:
        smallest = min(sizes, key=sizes.__getitem__)
        return f"no Qwen3 fits, the smallest being {smallest} ({_gb(sizes[smallest])}); the embedded tiny-qwen3 does"
    largest = max(fitting, key=sizes.__getitem__)
    return f"{largest} fits ({_gb(sizes[largest])})"


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
