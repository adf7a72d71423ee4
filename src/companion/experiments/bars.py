"""A demand on a measured value, and when it holds: too little data is inconclusive, never a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

Verdict = Literal["holds", "fails", "inconclusive"]


class Bar(BaseModel):
    """``value`` must reach ``threshold``; ``low`` and ``high`` are its 95 % interval, ``trials`` what it rests on."""

    name: str
    threshold: float
    value: float | None
    low: float | None
    high: float | None
    trials: int
    verdict: Verdict

    @property
    def outcome(self) -> str:
        """The verdict, which judges the value alone; and of one that holds, whether the whole interval does."""
        clear = self.verdict == "holds" and self.low is not None and self.low >= self.threshold
        return "holds clearly" if clear else self.verdict


def judge(
    name: str,
    threshold: float,
    value: float | None,
    low: float | None,
    high: float | None,
    trials: int,
    *,
    enough: bool = True,
    whole_interval: bool = False,
) -> Bar:
    """The bar with its verdict: ``inconclusive`` without a value, without trials, or where they are not ``enough``.

    With ``whole_interval`` the interval must lie above the threshold, and not the value reach it.
    """
    judged: Verdict = "inconclusive"
    if value is not None and trials and enough and (low is not None or not whole_interval):
        holds = low > threshold if whole_interval and low is not None else value >= threshold
        judged = "holds" if holds else "fails"
    return Bar(name=name, threshold=threshold, value=value, low=low, high=high, trials=trials, verdict=judged)


def verdict(found: Sequence[Bar]) -> Verdict:
    """``fails`` if any bar fails, else ``inconclusive`` if any is or there is none, else ``holds``."""
    kinds = {b.verdict for b in found}
    return "fails" if "fails" in kinds else "inconclusive" if "inconclusive" in kinds or not kinds else "holds"
