"""What each signal sees of acceptance, inside the span and outside, before a draft is made.

Of every round: was the first slot accepted. Known before it are the ceiling of the row that produced the anchor, the
mass of that row on `</think>` (the note's EAT), how sure the answer is behind an appended `</think>` (the other EAT:
exp(-entropy), bare and behind a cue), the drafter's own confidence, and the acceptance rate that its phase had on other
prompts. The last signal, the largest probability of the slot's own row, is known only afterwards. A signal
ranks well when its AUC is high *within* a phase, and it sees the drafter out of its phase when its mean falls there as
acceptance does.

The rate of a phase is fitted on prompts with even numbers; all signals are judged on those with odd numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from companion.calibration import F64, rank_auc
from companion.ceiling import entropy_ceiling
from companion.experiments.phase_gap.contrasts import ALL
from companion.experiments.phase_gap.gaps import Contrast, rounded
from companion.metrics import by_prompt
from companion.phase.tracker import straddles
from companion.resampling import Interval, prompt_weights
from companion.rounds import Round

Answers = Mapping[tuple[str | None, int], tuple[float, float]]  # (prompt, round) -> entropies, bare and cued
SIDES = ("think", "output", "off")
ON = "on"  # both phases of the responses with thinking on
BEFORE = ("ceiling", "not_closing", "answer", "answer_cued", "confidence", "phase_rate")
AFTER = "own_row"


class Signal(BaseModel):
    """One signal on one side: how it ranks the rounds' first slots (AUC), and its mean beside that of acceptance."""

    drafter: str
    sampling: str
    domain: str
    side: str
    signal: str
    rounds: int
    auc: Contrast
    forecast: float | None
    accepted: float | None
    brier: float | None


@dataclass(frozen=True, slots=True)
class Slots:
    """First slots of n rounds, aligned by rows."""

    prompt: NDArray[np.int64]  # [n] number within the domain
    domain: NDArray[np.int64]  # [n]
    side: NDArray[np.int64]  # [n] index into SIDES
    accepted: F64  # [n] 0 or 1
    ceiling: F64  # [n] of the row that produced the anchor
    not_closing: F64  # [n] 1 minus that row's mass on the end of the span
    answer: F64  # [n] exp(-entropy) of the answer behind an appended end of the span; nan outside spans
    answer_cued: F64  # [n] the same behind a cue
    confidence: F64  # [n] nan without a head
    own_row: F64  # [n] largest probability of the slot's own row

    def where(self, rows: NDArray[np.bool_]) -> Slots:  # [n]
        return Slots(*(getattr(self, f.name)[rows] for f in fields(self)))


def first_slots(
    rows: Iterable[Round], domains: Sequence[str], vocab_size: int, answers: Answers | None = None
) -> Slots:
    """Of every round but a response's first, whose anchor came from the prefill. ValueError without row statistics."""
    answers = answers or {}
    found: list[tuple[float, ...]] = []
    for own in by_prompt(rows).values():
        if not all(r.entropy and r.max_p and r.think_end_mass for r in own):
            raise ValueError("the rounds have no statistics of their rows, from which signals are computed")
        for before, row in pairwise(own):
            if straddles(row.phases) or not (row.accepted or row.rejected):
                continue
            known = before.committed - 1
            side = 2 if row.mode == "no_think" else SIDES.index(row.phases[0])
            number = int(str(row.prompt_id).rpartition("/")[2])
            c = row.confidence[0] if row.confidence else np.nan
            h, e = before.entropy[known], before.think_end_mass[known]
            sure = np.exp(-np.array(answers.get((row.prompt_id, row.round), (np.nan, np.nan))))
            place = number, domains.index(str(row.domain)), side
            found.append((*place, row.accepted > 0, h, 1 - e, *sure, c, row.max_p[0]))
    columns = np.array(found, dtype=np.float64).reshape(-1, 10).T
    ceiling = np.asarray(entropy_ceiling(columns[4], vocab_size))
    prompts, places, sides = columns[:3].astype(np.int64)
    return Slots(prompts, places, sides, columns[3], ceiling, *columns[5:])


def signals(
    slots: Slots, domains: Sequence[str], *, drafter: str, sampling: str, resamples: int, seed: int
) -> Iterator[Signal]:
    """Every signal on every side, in all domains together and in each."""
    even = slots.prompt % 2 == 0
    fit, judged = slots.where(even), slots.where(~even)
    for number, domain in [(None, ALL), *enumerate(domains)]:
        own, known = (s if number is None else s.where(s.domain == number) for s in (judged, fit))
        rates = np.array(
            [known.accepted[known.side == i].mean() if (known.side == i).any() else np.nan for i in range(3)]
        )
        for side in (*SIDES, ON):
            rows = own.side < 2 if side == ON else own.side == SIDES.index(side)
            here = own.where(rows)
            weights = _weights(here, resamples, seed)
            for name in (*BEFORE, AFTER):
                forecast = rates[here.side] if name == "phase_rate" else getattr(here, name)
                if not len(forecast) or np.isnan(forecast).any():
                    continue
                forecast = np.clip(forecast, 0.0, 1.0)
                auc = float(rank_auc(forecast, here.accepted))
                interval = Interval.of(auc, rank_auc(forecast, here.accepted, weights))
                yield Signal(
                    drafter=drafter,
                    sampling=sampling,
                    domain=domain,
                    side=side,
                    signal=name,
                    rounds=len(forecast),
                    auc=Contrast(value=_number(auc), low=_number(interval.low), high=_number(interval.high)),
                    forecast=rounded(forecast.mean()),
                    accepted=rounded(here.accepted.mean()),
                    brier=rounded(((forecast - here.accepted) ** 2).mean()),
                )


def _weights(slots: Slots, resamples: int, seed: int) -> F64:  # -> [B, n]
    """How often each row is drawn when prompts are resampled inside their domain."""
    names, first, place = np.unique(slots.domain * 10**6 + slots.prompt, return_index=True, return_inverse=True)
    if not len(names):
        return np.zeros((resamples, 0))
    return prompt_weights(slots.domain[first], resamples, np.random.default_rng(seed))[:, place]


def _number(value: float) -> float | None:
    return rounded(value) if np.isfinite(value) else None
