"""The accept/reject rule and three ways to get it wrong, each by its exact law and by real sampling.

The wrong rules are ones that people really write: the residual forgotten, an argmax proposal judged by a sampler's
ratio, and an admission that looks at the token it judges (paper, Appendix A).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy import stats

import companion
from companion.acceptance import accept_probability, overlap, residual, total_variation
from companion.drafters.model import ModelDrafter
from companion.experiments.responses import response_rows, sample_responses

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """A draft/accept/resample step. The defaults are the right one; each switch is one mistake."""

    name: str
    forget_residual: bool = False  # resample a rejected token from p_t
    argmax_proposal: bool = False  # propose the argmax of p_d, keep p_d in the ratio
    hindsight: bool = False  # verify only drafts with p_t(x) >= p_d(x), and emit a fresh token otherwise

    def _parts(self, p_t: F64, p_d: F64) -> tuple[F64, F64, F64]:
        """What is drawn from, what replaces a rejected token, and which drafts are verified at all, each [..., V]."""
        drawn = p_d
        if self.argmax_proposal:
            drawn = np.zeros_like(p_d)
            np.put_along_axis(drawn, p_d.argmax(-1, keepdims=True), 1.0, -1)
        replacement = p_t if self.forget_residual else residual(p_t, p_d)
        admitted = p_t >= p_d if self.hindsight else np.ones_like(p_t)
        return drawn, replacement, admitted.astype(float)

    def law(self, p_t: F64, p_d: F64) -> F64:  # [..., V] -> [..., V]
        """The exact law of the emitted token."""
        drawn, replacement, admitted = self._parts(p_t, p_d)
        kept = drawn * admitted * accept_probability(p_t, p_d)
        unverified = (drawn * (1 - admitted)).sum(-1, keepdims=True)
        rejected = 1 - kept.sum(-1, keepdims=True) - unverified
        return np.asarray(kept + rejected * replacement + unverified * p_t)

    def sample(self, p_t: F64, p_d: F64, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:  # [V] -> [V]
        """Counts of ``draws`` tokens emitted by really drawing, accepting and resampling."""
        drawn, replacement, admitted = self._parts(p_t, p_d)
        x = _draw(drawn, draws, rng)
        keep = (rng.random(draws) < accept_probability(p_t, p_d)[x]) & (admitted[x] > 0)
        instead = np.where(admitted[x] > 0, _draw(replacement, draws, rng), _draw(p_t, draws, rng))
        return np.bincount(np.where(keep, x, instead), minlength=len(p_t))


RULES = (
    Rule("the rule"),
    Rule("residual forgotten", forget_residual=True),
    Rule("argmax proposal, soft ratio", argmax_proposal=True),
    Rule("admission sees its token", hindsight=True),
)


def _draw(p: F64, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``draws`` token ids from ``p`` by inversion; ids of mass zero are never returned."""
    support = np.flatnonzero(p)
    edges = p[support].cumsum()
    return support[np.minimum(edges.searchsorted(rng.random(draws) * edges[-1], side="right"), len(support) - 1)]


def power(law: F64, p_t: F64, draws: int, level: float = 1e-6) -> float:
    """Chance that a chi-square test at ``level`` rejects ``p_t`` when ``draws`` tokens follow ``law``."""
    freedom = np.count_nonzero(p_t) - 1
    distance = ((law - p_t)[p_t > 0] ** 2 / p_t[p_t > 0]).sum()
    return float(stats.ncx2.sf(stats.chi2.isf(level, freedom), freedom, max(draws * distance, 1e-12)))


def sampling_test(p_t: F64, p_d: F64, *, draws: int, seed: int, level: float = 1e-6) -> pd.DataFrame:
    """Each rule sampled ``draws`` times and tested against ``p_t``: distance of its exact law, verdict, and power."""
    records = []
    for number, rule in enumerate(RULES):
        counts = rule.sample(p_t, p_d, draws, np.random.default_rng([seed, number]))
        law = rule.law(p_t, p_d)
        p_value = stats.chisquare(counts[p_t > 0], draws * p_t[p_t > 0] / p_t.sum()).pvalue
        records.append(
            {
                "rule": rule.name,
                "distance": float(total_variation(p_t, law)),
                "power": power(law, p_t, draws, level),
                "rejected": bool(p_value < level),
            }
        )
    return pd.DataFrame(records).set_index("rule")


class Config(BaseModel):
    target: str = "tiny-qwen3"
    drafter: str = "draft"
    device: str = "cpu"
    prompts: int = 2  # per domain and mode
    seed: int = 0


def run(config: Config) -> pd.DataFrame:
    """Rows of real target and draft-model distributions: how far each rule's exact law is from p_t (total variation).

    One line per token of the sampled responses: its domain, mode and phase, the overlap c*, and a column for each rule.
    """
    target = companion.load_target(config.target, device=config.device)
    drafter = companion.load_drafter(config.drafter, target)
    if not isinstance(drafter, ModelDrafter):
        raise ValueError(f"this experiment compares two distributions, and drafter {config.drafter!r} has none")
    frames = []
    for response in sample_responses(target, prompts=config.prompts, seed=config.seed):
        p_t = response_rows(target, response).numpy()
        p_d = response_rows(drafter.model, response).numpy()
        columns = {rule.name: total_variation(p_t, rule.law(p_t, p_d)) for rule in RULES}
        frames.append(
            pd.DataFrame(
                {
                    "domain": response.domain,
                    "mode": response.mode,
                    "phase": response.result.phases,
                    "overlap": overlap(p_t, p_d),
                    **columns,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
