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
    enough: bool = True,
) -> Bar:
    """The bar with its verdict: ``inconclusive`` without a value, without trials, or where they are not ``enough``."""
    judged: Verdict = "inconclusive"
    if value is not None and trials and enough:
        judged = "holds" if value >= threshold else "fails"
    return Bar(name=name, threshold=threshold, value=value, low=low, high=high, trials=trials, verdict=judged)


def judge_interval(
    name: str,
    threshold: float,
    value: float | None,
    low: float | None,
    high: float | None,
    trials: int,
    enough: bool = True,
) -> Bar:
    """As `judge`, of a bar that the whole interval must clear: it holds where ``low`` is above ``threshold``."""
    bar = judge(name, threshold, value, low, high, trials, enough and low is not None)
    if bar.verdict == "holds" and low is not None and low <= threshold:
        return bar.model_copy(update={"verdict": "fails"})
    return bar


def verdict(found: Sequence[Bar]) -> Verdict:
    """``fails`` if any bar fails, else ``inconclusive`` if any is or there is none, else ``holds``."""
    kinds = {b.verdict for b in found}
    return "fails" if "fails" in kinds else "inconclusive" if "inconclusive" in kinds or not kinds else "holds"
