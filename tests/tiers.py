"""Grids in two tiers: a fixed sample on every run, all of it with --full."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], keep: int, seed: int = 0) -> list[Any]:
    """``cases`` for ``pytest.mark.parametrize``, all but ``keep`` of them marked ``full``.

    The first and the last case are always kept, the others are drawn with ``seed``: a sample that only ever holds the
    small corner of a grid tests the small corner. A tuple stands for several arguments, as in parametrize.
    """
    listed = list(cases)
    inner = list(range(1, len(listed) - 1))
    chosen = {0, len(listed) - 1, *random.Random(seed).sample(inner, max(0, min(keep - 2, len(inner))))}
    return [
        case if index in chosen else pytest.param(*_arguments(case), marks=pytest.mark.full)
        for index, case in enumerate(listed)
    ]


def _arguments(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
