"""Where the time of a greedy round goes, and the same round in transformers' modules beside it.

Medians over rounds in which the whole block was drafted. Plain decoding, our round and theirs take turns prompt by
prompt. `Yardstick` also says whether the two rounds computed the same: outputs, drafted tokens, confidences.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

import companion
from companion.costs import breakeven_tau
from companion.drafters.dspark.drafter import DSparkDrafter
from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget
from companion.experiments.timing import Prompts
from companion.experiments.transformers_round import TransformersDSpark, TransformersRound, decode
from companion.metrics import committed_per_round
from companion.protocols import Draft, Drafter
from companion.resampling import F64, Interval, pooled, pooled_draws, prompt_weights
from companion.rounds import Round


class Stages(BaseModel):
    """Milliseconds of one round, medians; a stage's share is of its own, so they need not add up to the last digit."""

    drafter: str
    threads: int
    rounds: int
    parallel: float | None  # features in, h_k and U_k out; None: the drafter has no such part
    sequential: float | None  # the loop over slots, with the confidence head
    draft: float  # all of drafting, the policy included
    forward: float  # of the target over anchor and draft
    accept: float  # acceptance, statistics of the rows, rollback
    plain: float  # one whole step of plain decoding, the same engine
    breakeven: float  # tau at which speculation costs what plain decoding does
    tau: float  # measured, on these prompts


class Yardstick(BaseModel):
    """Our round against the same round in transformers' modules, milliseconds, medians over rounds."""

    drafter: str
    threads: int
    rounds: int
    draft: float
    verify: float  # forward and acceptance
    their_draft: float
    their_verify: float
    ratio: float  # their round over ours: of each prompt the median over passes and rounds, summed over prompts
    low: float  # 95 %, over prompts
    high: float
    outputs: tuple[int, int]  # equal ones, of all
    drafts: tuple[int, int]  # rounds that drafted and accepted the same, of all in equal outputs
    confidence_gap: float | None  # largest difference of a confidence where the drafts are equal; None: none compared


@dataclass
class _Seen:
    """What one drafter's passes gave, seconds of each full round."""

    plain: list[float] = field(default_factory=list)
    ours: list[list[list[dict[str, float]]]] = field(default_factory=list)  # [pass][prompt][round]: stage -> seconds
    theirs: list[list[list[TransformersRound]]] = field(default_factory=list)
    rows: list[Round] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)
    drafts: list[bool] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


def measure(
    target: TextTarget,
    drafters: dict[str, Drafter],
    models: dict[str, TransformersDSpark],  # of those that the yardstick is wanted for
    reference: Any,  # the target in transformers' modules
    prompts: Prompts,
    *,
    repeats: int,
    max_new_tokens: int,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[list[Stages], list[Yardstick]]:
    """Stages of every drafter, and the yardstick of those in ``models``; one warm-up pass is not counted."""
    threads = torch.get_num_threads()
    seen = {name: _Seen() for name in drafters}
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
    for timed in [False] + [True] * repeats:
        for name, drafter in drafters.items():
            fresh = seen[name] if timed else _Seen()
            fresh.ours.append([])
            fresh.theirs.append([])
            for ids in [ids for rows in prompts.values() for ids in (rows if timed else rows[:1])]:
                plain = companion.generate(target, None, ids, **options)
                fresh.plain.extend(row.draft_seconds + row.verify_seconds for row in plain.rounds)
                result, stages, drafts = _staged(target, drafter, ids, options)
                fresh.rows.extend(result.rounds)
                fresh.ours[-1].append(stages)
                if name in models:
                    new, rounds = decode(
                        reference,
                        models[name],
                        tuple(drafter.taps),
                        ids,
                        max_new_tokens=max_new_tokens,
                        eos=target.eos_token_ids,
                        usable_vocab=target.usable_vocab,
                    )
                    fresh.theirs[-1].append([r for r in rounds if len(r.tokens) == drafter.max_depth])
                    _compare(fresh, result, drafts, new, rounds)
    stages_of = [_stages(name, threads, s) for name, s in seen.items()]
    strata = np.repeat(np.arange(len(prompts)), [len(rows) for rows in prompts.values()])
    weights = prompt_weights(strata, resamples, np.random.default_rng(seed))
    return stages_of, [_yardstick(name, threads, seen[name], weights) for name in models]


def _staged(
    target: TextTarget, drafter: Drafter, ids: list[int], options: dict[str, Any]
) -> tuple[GenerationResult, list[dict[str, float]], list[list[int]]]:
    """Decode once with a clock on every stage; seconds of each round of full depth, and the drafts of all rounds."""
    drafts: list[list[Draft]] = []
    log: dict[str, list[float]] = {"forward": [], "parallel": [], "sequential": []}
    with ExitStack() as clocks:
        clocks.enter_context(clocked(target, "forward", log["forward"]))
        for part in ("parallel", "sequential") if isinstance(drafter, DSparkDrafter) else ():
            clocks.enter_context(clocked(drafter, part, log[part], drafts if part == "sequential" else None))
        result = companion.generate(target, drafter, ids, **options)
    found, drafted = [], 0
    for row, forward in zip(result.rounds, log["forward"][1:], strict=True):  # the first one is the prefill
        if row.drafted == drafter.max_depth:
            parts = {part: log[part][drafted] for part in ("parallel", "sequential") if log[part]}
            found.append(parts | {"draft": row.draft_seconds, "verify": row.verify_seconds, "forward": forward})
        drafted += row.drafted > 0
    return result, found, [draft.tokens for (draft,) in drafts]


@contextmanager
def clocked(owner: Any, name: str, log: list[float], results: list[Any] | None = None) -> Iterator[None]:
    """While it is open, the seconds of every call of that method of that object go to ``log``."""
    method = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        result = method(*arguments, **named)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        log.append(time.perf_counter() - started)
        if results is not None:
            results.append(result)
        return result

    setattr(owner, name, timed)
    try:
        yield
    finally:
        delattr(owner, name)


def _compare(
    seen: _Seen, ours: GenerationResult, drafts: list[list[int]], new: list[int], rounds: list[TransformersRound]
) -> None:
    """Round by round where the two texts are equal; a round that ended its text may have been cut in ours."""
    seen.outputs.append(ours.tokens == new)
    if not seen.outputs[-1]:
        return
    drafted = [row for row in ours.rounds if row.drafted]
    for row, draft, other in zip(drafted, drafts, rounds, strict=False):
        same = draft == other.tokens
        seen.drafts.append(same and (row.ended is not None or row.accepted == other.accepted))
        if same:
            seen.gaps.extend(abs(a - b) for a, b in zip(row.confidence or (), other.confidence, strict=True))


def _stages(name: str, threads: int, seen: _Seen) -> Stages:
    rounds = [stages for one in seen.ours for prompt in one for stages in prompt]
    if not rounds:
        raise ValueError(f"{name} never drafted its whole block: give more prompts, or more new tokens")

    def median(part: str) -> float:
        return 1e3 * float(np.median([r[part] for r in rounds]))

    draft, plain = median("draft"), 1e3 * float(np.median(seen.plain))
    return Stages(
        drafter=name,
        threads=threads,
        rounds=len(rounds),
        parallel=median("parallel") if "parallel" in rounds[0] else None,
        sequential=median("sequential") if "sequential" in rounds[0] else None,
        draft=draft,
        forward=median("forward"),
        accept=1e3 * float(np.median([r["verify"] - r["forward"] for r in rounds])),
        plain=plain,
        breakeven=breakeven_tau(plain, draft, median("verify")),
        tau=committed_per_round(seen.rows),
    )


def _yardstick(name: str, threads: int, seen: _Seen, weights: F64) -> Yardstick:  # [B, P]
    ours = [[[(r["draft"], r["verify"]) for r in rounds] for rounds in one] for one in seen.ours]
    theirs = [[[(r.draft_seconds, r.verify_seconds) for r in rounds] for rounds in one] for one in seen.theirs]
    mine, other = _by_prompt(ours), _by_prompt(theirs)
    both = [bool(a and b) for a, b in zip(mine, other, strict=True)]
    medians = [
        [float(np.median(np.sum(rounds, 1))) if there else 0.0 for rounds, there in zip(one, both, strict=True)]
        for one in (other, mine)
    ]
    parts = np.array(medians).T[None]  # [1, P, 2]
    interval = Interval.of(pooled(parts), pooled_draws(parts, weights, np.ones((len(weights), 1))))
    draft, verify = 1e3 * np.median([r for rounds in mine for r in rounds], axis=0)
    their_draft, their_verify = 1e3 * np.median([r for rounds in other for r in rounds], axis=0)
    return Yardstick(
        drafter=name,
        threads=threads,
        rounds=sum(map(len, mine)),
        draft=draft,
        verify=verify,
        their_draft=their_draft,
        their_verify=their_verify,
        ratio=interval.value,
        low=interval.low,
        high=interval.high,
        outputs=(sum(seen.outputs), len(seen.outputs)),
        drafts=(sum(seen.drafts), len(seen.drafts)),
        confidence_gap=max(seen.gaps, default=None),
    )


def _by_prompt(passes: list[list[list[tuple[float, float]]]]) -> list[list[tuple[float, float]]]:
    """[pass][prompt][round] -> [prompt][round of any pass]."""
    return [[r for rounds in prompt for r in rounds] for prompt in zip(*passes, strict=True)]
