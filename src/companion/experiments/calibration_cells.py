"""Scores of calibrated forecasts on held-out prompts: by position, with intervals over prompts.

Every list of a `Cell` has K + 1 entries: all positions together first, then one a position. The pooled domains are
weighted to the mix that the drafter was trained on. Intervals resample prompts inside their domain, and hold the
temperatures fixed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import BaseModel

from companion.calibration import (
    BINS,
    F64,
    Temperatures,
    brier,
    each_position,
    ece,
    group_counts,
    rank_auc,
    reliability,
)
from companion.experiments.calibration_blocks import Judged
from companion.resampling import Interval, prompt_weights

Numbers = list[float | None]
FLOOR_DRAWS = 40
SHOWN = (1, 3, 5, 7)  # positions of the paper's Figure 6


class Cell(BaseModel):
    """ECE and Brier score against sampled survival, ECE against its chance (``analytic``), and rank AUC; ``floor`` is
    the mean ECE of outcomes drawn from the forecasts themselves: what so few blocks show when nothing is wrong."""

    sampling: str
    fitted_on: str
    method: str
    phase: str
    domain: str
    blocks: int
    prompts: int
    forecast: Numbers
    outcome: Numbers
    ece: Numbers
    ece_low: Numbers
    ece_high: Numbers
    analytic: Numbers
    analytic_low: Numbers
    analytic_high: Numbers
    floor: Numbers
    brier: Numbers
    brier_low: Numbers
    brier_high: Numbers
    auc: Numbers
    auc_low: Numbers
    auc_high: Numbers


class Curve(BaseModel):
    """A reliability diagram: bins that hold a forecast, with 95 % intervals of the outcome over prompts."""

    sampling: str
    method: str
    phase: str
    domain: str
    position: int
    forecast: list[float]
    outcome: list[float]
    low: Numbers
    high: Numbers
    analytic: list[float]
    count: list[int]


class Evaluation:
    """One set of held-out blocks and its resamples, on which any temperatures can be scored."""

    def __init__(self, blocks: Judged, shares: F64, pooled: bool, resamples: int, seed: int) -> None:
        if not len(blocks.logits):
            raise ValueError("there are no held-out blocks here, so that nothing can be scored; record more prompts")
        self.blocks = blocks
        prompts, first, self.prompt = np.unique(blocks.prompt, return_index=True, return_inverse=True)
        self.prompts, domain = len(prompts), blocks.domain[first]
        self.mix = shares[domain] * len(shares) if pooled else np.ones(len(prompts))  # domains have as many prompts
        self.draws = prompt_weights(domain, resamples, np.random.default_rng(seed)) * self.mix  # [B, P]
        self.seed = seed

    def forecasts(self, t: Temperatures) -> F64:  # -> [n, K]
        return t.of_logits(self.blocks.logits).cumprod(1)

    def counts(self, forecast: F64, outcome: F64) -> F64:  # [n, K], [n, K] -> [P, K, BINS, 4]
        return group_counts(forecast, outcome, self.blocks.judged, self.prompt, self.prompts)

    def resampled(self, counts: F64) -> tuple[F64, F64]:  # -> [K, BINS, 4], [B, K, BINS, 4]
        flat = counts.reshape(self.prompts, -1)
        return (self.mix @ flat).reshape(counts.shape[1:]), (self.draws @ flat).reshape(-1, *counts.shape[1:])

    def score(self, metric: Callable[[F64], F64], counts: F64) -> tuple[F64, F64]:  # -> [K + 1], [B, K + 1]
        """A score of all positions and of each, and the same in every resample."""
        whole, draws = self.resampled(counts)
        return tuple(  # type: ignore[return-value]
            np.concatenate([metric(c)[..., None], metric(each_position(c))], -1) for c in (whole, draws)
        )

    def auc(self, forecast: F64, outcome: F64, rows: F64) -> tuple[F64, F64]:  # [n] each -> [], [B]
        """Rank AUC over rows of these weights, and in every resample."""
        both = np.concatenate([self.mix[None], self.draws])[:, self.prompt] * rows
        used = rows > 0
        values = rank_auc(forecast[used], outcome[used], both[:, used])
        return values[0], values[1:]

    def cell(self, t: Temperatures, sampling: str, fitted_on: str, phase: str, domain: str) -> Cell:
        """All scores of these temperatures."""
        blocks, forecast = self.blocks, self.forecasts(t)
        sampled, expected = self.counts(forecast, blocks.lived), self.counts(forecast, blocks.expected)
        whole = self.resampled(sampled)[0].sum(1)  # [K, 4]
        means = [np.concatenate([[c.sum() / n.sum()], c / n]) for n, c in ((whole[:, 0], whole[:, i]) for i in (1, 2))]
        aucs = [
            self.auc(forecast[:, k], blocks.lived[:, k], blocks.judged[:, k].astype(np.float64))
            for k in range(t.positions)
        ]
        nothing = np.full((len(self.draws), 1), np.nan)
        auc = np.array([np.nan, *(a for a, _ in aucs)]), np.concatenate([nothing, *(d[:, None] for _, d in aucs)], 1)
        return Cell(
            sampling=sampling,
            fitted_on=fitted_on,
            method=t.method,
            phase=phase,
            domain=domain,
            blocks=len(forecast),
            prompts=self.prompts,
            forecast=numbers(means[0]),
            outcome=numbers(means[1]),
            floor=numbers(self.floor(forecast)),
            **ends("ece", *self.score(ece, sampled)),
            **ends("analytic", *self.score(ece, expected)),
            **ends("brier", *self.score(brier, sampled)),
            **ends("auc", *auc),
        )

    def error(self, t: Temperatures) -> tuple[F64, F64]:  # -> [K + 1], [B, K + 1]
        """ECE against sampled survival."""
        return self.score(ece, self.counts(self.forecasts(t), self.blocks.lived))

    def floor(self, forecast: F64) -> F64:  # -> [K + 1]
        """Mean ECE of outcomes that are drawn from the forecasts, each slot on its own."""
        generator = np.random.default_rng([self.seed, len(forecast)])
        found = []
        for _ in range(FLOOR_DRAWS):
            counts = self.resampled(
                self.counts(forecast, (generator.random(forecast.shape) < forecast).astype(np.float64))
            )[0]
            found.append(np.append(ece(counts), ece(each_position(counts))))
        return np.mean(found, axis=0)

    def curves(self, t: Temperatures, sampling: str, phase: str, domain: str) -> list[Curve]:
        """Reliability diagrams at the positions that the paper shows."""
        forecast, found = self.forecasts(t), []
        sampled, expected = (self.counts(forecast, y) for y in (self.blocks.lived, self.blocks.expected))
        (whole, draws), analytic = self.resampled(sampled), self.resampled(expected)[0]
        raw = sampled.sum(0)[..., 0]  # blocks, not their weights
        for k in (k - 1 for k in SHOWN if k <= t.positions):
            (x, y, _), resampled = reliability(whole[k]), reliability(draws[:, k])[1]
            there = [b for b in range(BINS) if raw[k, b]]
            bounds = [Interval.of(float(y[b]), resampled[:, b]) for b in there]
            curve = Curve(
                sampling=sampling,
                method=t.method,
                phase=phase,
                domain=domain,
                position=k + 1,
                forecast=[round(float(x[b]), 5) for b in there],
                outcome=[round(float(y[b]), 5) for b in there],
                low=numbers(np.array([b.low for b in bounds])),
                high=numbers(np.array([b.high for b in bounds])),
                analytic=[round(float(reliability(analytic[k])[1][b]), 5) for b in there],
                count=[int(raw[k, b]) for b in there],
            )
            found.append(curve)
        return found


def numbers(values: F64) -> Numbers:
    """JSON has no nan."""
    return [round(float(v), 5) if np.isfinite(v) else None for v in values]


def ends(name: str, value: F64, draws: F64) -> dict[str, Numbers]:  # [m], [B, m]
    """Estimates and the ends of their intervals as three lists."""
    found = [Interval.of(float(v), draws[:, i]) for i, v in enumerate(value)]
    return {
        name: numbers(value),
        f"{name}_low": numbers(np.array([f.low for f in found])),
        f"{name}_high": numbers(np.array([f.high for f in found])),
    }
