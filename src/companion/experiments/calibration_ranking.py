"""Ranking by confidence: why AUC moves with the position, and whose order a temperature changes.

The AUC of prefix survival is taken over all blocks, so that no block is selected. Still it may move with k, and three
things could be behind it; each is computed by itself:

    survivors - own   what selection does: the same head and the same slot, c_k against the slot's own bit, over the
                      blocks that lived to slot k and over all blocks (here every slot has a bit, reached or not)
    own               whether c_k by itself gets better or worse along the block
    if right          what compounding does: the AUC that the very same products would have if each were the true chance
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel
from scipy.special import expit

from companion.calibration import F64, Temperatures
from companion.experiments.calibration_blocks import Judged
from companion.experiments.calibration_cells import Evaluation, Numbers, ends

PAIRS = 200_000


class Ranking(BaseModel):
    """Rank AUC by position with intervals over prompts; ``rise`` has the last position minus the first of `prefix`,
    `if_right`, `own` and `survivors`."""

    sampling: str
    phase: str
    prefix: Numbers
    prefix_low: Numbers
    prefix_high: Numbers
    whole: Numbers  # `prefix` over the blocks that are judged at every position
    whole_low: Numbers
    whole_high: Numbers
    if_right: Numbers
    if_right_low: Numbers
    if_right_high: Numbers
    own: Numbers
    own_low: Numbers
    own_high: Numbers
    survivors: Numbers
    survivors_low: Numbers
    survivors_high: Numbers
    selection: Numbers  # survivors - own
    selection_low: Numbers
    selection_high: Numbers
    rise: Numbers
    rise_low: Numbers
    rise_high: Numbers


class Swaps(BaseModel):
    """Pairs whose order by cumulative product is another one behind the temperatures, as shares of all pairs."""

    method: str
    by_position: list[float]  # of two blocks at the same position
    pooled: float  # of any two slots: what a scheduler ranks
    confidence: float  # of two confidences at one position, which cannot


def ranking(blocks: Judged, sampling: str, phase: str, shares: F64, resamples: int, seed: int) -> Ranking:
    """Of uncalibrated confidences."""
    e = Evaluation(blocks, shares, True, resamples, seed)
    c, judged = expit(blocks.logits), blocks.judged.astype(np.float64)
    forecast, lived = c.cumprod(1), blocks.lived
    before = np.concatenate([np.ones((len(c), 1)), lived[:, :-1]], 1)
    tables = {"prefix": (forecast, lived, judged), "whole": (forecast, lived, judged * judged[:, -1:])}
    tables |= {"if_right": (forecast, forecast, judged), "own": (c, blocks.accepted, judged)}
    tables |= {"survivors": (c, blocks.accepted, judged * before)}
    found: dict[str, tuple[F64, F64]] = {}
    for name, (score, outcome, rows) in tables.items():
        parts = [e.auc(score[:, k], outcome[:, k], rows[:, k]) for k in range(c.shape[1])]
        found[name] = np.array([value for value, _ in parts]), np.stack([draws for _, draws in parts], 1)
    found["selection"] = tuple(s - o for s, o in zip(found["survivors"], found["own"], strict=True))  # type: ignore[assignment]
    wanted = [found[name] for name in ("prefix", "if_right", "own", "survivors")]
    found["rise"] = (
        np.array([value[-1] - value[0] for value, _ in wanted]),
        np.stack([draws[:, -1] - draws[:, 0] for _, draws in wanted], 1),
    )
    lists = {key: values for name, pair in found.items() for key, values in ends(name, *pair).items()}
    return Ranking(sampling=sampling, phase=phase, **lists)


def swaps(blocks: Judged, t: Temperatures, seed: int) -> Swaps:
    """Over random pairs of judged slots."""
    generator = np.random.default_rng(seed)
    before, after = expit(blocks.logits), t.of_logits(blocks.logits)

    def share(one: F64, two: F64) -> float:  # [n], [n]
        i, j = generator.integers(len(one), size=(2, PAIRS))
        return float(np.mean(np.sign(one[i] - one[j]) * np.sign(two[i] - two[j]) < 0))

    seen = blocks.judged
    columns = [seen[:, k] for k in range(seen.shape[1])]
    products = before.cumprod(1), after.cumprod(1)
    return Swaps(
        method=t.method,
        by_position=[round(share(*(p[rows, k] for p in products)), 5) for k, rows in enumerate(columns)],
        pooled=round(share(*(p[seen] for p in products)), 5),
        confidence=max(share(before[rows, k], after[rows, k]) for k, rows in enumerate(columns)),
    )
