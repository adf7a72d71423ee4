"""Judged blocks of one drafter as arrays: confidence logits, bits and chances, by prompt, domain and phase.

From recordings of `anchor_survey`, in which nothing was trimmed and every slot was judged by itself. A slot behind a
*drafted* stop token is left out, accepted or not: a rule that looked at the outcome would keep the failures alone. The
phase of a block is that of the token its first slot stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from companion.calibration import F64
from companion.experiments.anchor_recording import Anchored, Recording
from companion.rounds import Rounds
from companion.training.corpus import DOMAINS, MODES

PHASES = ("off", "span", "after")  # thinking off; inside the span; behind it
ALL = "all"
ROUNDED = 0.0005
STRIDE = 100_000  # more than there are prompts of one domain and mode


@dataclass(frozen=True, slots=True)
class Judged:
    """n blocks of K slots; everything is aligned by rows."""

    logits: F64  # [n, K]
    accepted: F64  # [n, K] bits, each slot by itself
    expected: F64  # [n, K] chance that slot k lives, given the drafts before it: prod chance * overlap
    judged: NDArray[np.bool_]  # [n, K]
    prompt: NDArray[np.int64]  # [n] `prompt_index`
    domain: NDArray[np.int64]  # [n] index into DOMAINS
    phase: NDArray[np.int64]  # [n] index into PHASES

    def where(self, rows: NDArray[np.bool_]) -> Judged:  # [n]
        return Judged(*(getattr(self, column.name)[rows] for column in fields(self)))

    def of(self, phase: str, domain: str = ALL) -> Judged:
        """The blocks of one phase, of one domain or of all."""
        rows = self.phase == PHASES.index(phase)
        return self.where(rows if domain == ALL else rows & (self.domain == DOMAINS.index(domain)))

    @property
    def lived(self) -> F64:  # [n, K]
        """Sampled prefix survival."""
        return self.accepted.cumprod(1)


def sampling_key(provenance: dict[str, Any]) -> str:
    """0, 1, or 0.6/20 for a temperature with top-k."""
    sampling = provenance["sampling"]
    return f"{sampling['temperature']:g}" + (f"/{sampling['top_k']}" if sampling.get("top_k") else "")


def prompt_index(prompt_id: str) -> int:
    """A number of its own for every prompt, even where its number among its kind is."""
    domain, mode, number = prompt_id.split("/")
    return (DOMAINS.index(domain) * len(MODES) + MODES.index(mode)) * STRIDE + int(number)


def load(folder: Path) -> tuple[dict[str, Judged], list[dict[str, Any]]]:
    """Blocks by sampling, and the provenances of the files in ``folder`` and the folders in it.

    ValueError without recordings, for recordings of different drafters or targets, and without confidence.
    """
    recordings = [Recording.load(path) for path in sorted(folder.rglob("*.npz"))]
    if not recordings:
        raise ValueError(f"{folder} holds no recordings of a drafter; `companion experiment anchors` writes them")
    known = [r.provenance for r in recordings]
    for what in ("drafter", "target"):
        if any(p[what]["weights_sha256"] != known[0][what]["weights_sha256"] for p in known):
            raise ValueError(
                f"the recordings in {folder} are of different weights ({what}); calibrate one drafter alone"
            )
    found = {}
    for key in dict.fromkeys(map(sampling_key, known)):
        own = [r for r in recordings if sampling_key(r.provenance) == key]
        parts = [_blocks(response, r) for r in own for response in r.responses]
        found[key] = Judged(*(np.concatenate([getattr(p, c.name) for p in parts]) for c in fields(Judged)))
    return found, known


def _blocks(response: Anchored, recording: Recording) -> Judged:
    blocks = response.blocks
    if blocks.confidence is None:
        raise ValueError(
            f"drafter {recording.provenance['drafter']['name']} has no confidence head, so that there is nothing to "
            "calibrate; record one that has"
        )
    stop = np.logical_or.accumulate(np.isin(blocks.drafted, recording.stops), axis=1)
    first = np.zeros((len(stop), 1))
    reached = np.concatenate([first + 1, blocks.chance.cumprod(1)[:, :-1]], 1)
    anchors = np.arange(len(stop)) * recording.every
    inside = np.array([response.phases[a + 1] == "think" for a in anchors])
    phase = np.where(inside, 1, 2) if response.mode == "think" else np.zeros(len(stop), dtype=int)
    return Judged(
        logits=blocks.confidence,
        accepted=blocks.accepted.astype(float),
        expected=reached * blocks.overlap,
        judged=~np.concatenate([first.astype(bool), stop[:, :-1]], 1),
        prompt=np.full(len(stop), prompt_index(response.prompt_id)),
        domain=np.full(len(stop), DOMAINS.index(response.domain)),
        phase=phase,
    )


def of_rounds(table: Rounds, drafter: Mapping[str, Any], depth: int) -> Judged:
    """The same of a real loop, which visits other anchors: bits only, and those behind a rejection are taken as 0, for
    nothing lives there; `expected` is unknown. Stored confidences have three decimals, so that their logits end at
    those of half the last one. ValueError for rounds of another drafter or depth.
    """
    own = table.provenance or {}
    if (own.get("drafter") or {}).get("weights_sha256") != drafter["weights_sha256"] or own.get("depth") != depth:
        raise ValueError(f"these are rounds of another drafter than {drafter['name']}; give those of that one")
    rows = [r for r in table if r.confidence and r.phases]
    slot = np.arange(1, depth + 1)
    c = np.array([r.confidence[:depth] + [0.5] * (depth - r.drafted) for r in rows if r.confidence])  # not judged there
    accepted, verified, rejected = (
        np.array([[getattr(r, x)] for r in rows]) for x in ("accepted", "verified", "rejected")
    )
    thinks = np.array([(r.mode == "think") * (1 if r.phases[0] == "think" else 2) for r in rows])
    return Judged(
        logits=logit(c.clip(ROUNDED, 1 - ROUNDED)),
        accepted=(accepted >= slot).astype(float),
        expected=np.full(c.shape, np.nan),
        judged=(slot <= verified) & (rejected | (accepted >= slot)),
        prompt=np.array([prompt_index(str(r.prompt_id)) for r in rows]),
        domain=np.array([list[str](DOMAINS).index(str(r.domain)) for r in rows]),
        phase=thinks,
    )


def training_shares(known: Sequence[dict[str, Any]]) -> F64:  # [domains]
    """The domain mix of the traces that the drafter was trained on; even where its recipe does not say."""
    recipe = known[0]["settings"].get("recipe", {})
    shares = recipe.get("traces", {}).get("domain_shares") or [1 / len(DOMAINS)] * len(DOMAINS)
    return np.array(shares, dtype=np.float64)
