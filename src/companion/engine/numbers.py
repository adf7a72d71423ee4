"""Numbers out of a config.json: each one there and in range, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def whole(config: Mapping[str, Any], key: str, *, least: int | None = 1, default: int | None = None) -> int:
    """A whole number of at least ``least`` (None: any); ``default`` where it is missing or null. Else ValueError."""
    value = default if config.get(key) is None else config[key]
    if isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least):
        return value
    bound = "" if least is None else f" >= {least}"
    raise ValueError(f"the configuration has no number {key!r}: expected a whole number{bound}, found {value!r}")


def positive(config: Mapping[str, Any], key: str, default: float) -> float:
    """A finite number above 0; ``default`` where it is missing or null. Else ValueError."""
    value = default if config.get(key) is None else config[key]
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < float(value) < math.inf:
        return float(value)
    raise ValueError(f"{key} of the configuration must be a finite number above 0, found {value!r}")


def rope_theta(config: Mapping[str, Any]) -> float:
    """The base of the plain rotary embedding, as transformers 4 or 5 writes it; another kind is a ValueError."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"rope_parameters of the configuration must be an object with rope_theta, found {rope!r}")
    kind = rope.get("rope_type") or rope.get("type") or "default"  # "type" is the older name
    if kind != "default":
        raise ValueError(f"rope_type {kind!r} is not supported; only the default rotary embedding is")
    return positive(rope, "rope_theta", positive(config, "rope_theta", 1e4))  # transformers' default
