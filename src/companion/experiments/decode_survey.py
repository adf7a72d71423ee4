"""How many tokens a round commits: every drafter on the same held-out prompts, by domain, mode and phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import companion
from companion.engine.compare import GreedyComparison, compare_greedy
from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget
from companion.metrics import (
    bootstrap_interval,
    by_prompt,
    committed_per_round,
    conditional_by_position,
    ratio_interval,
)
from companion.protocols import Drafter, Phase, Policy
from companion.rounds import Round, Rounds
from companion.training.corpus import DOMAINS, MODES, held_out_samples


@dataclass(frozen=True, slots=True)
class AcceptedLength:
    """tau of one group of rounds, with its interval over responses."""

    domain: str
    group: str
    tau: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.tau:.2f} [{self.low:.2f}, {self.high:.2f}]" if self.rounds else "no round"


def survey(
    target: TextTarget,
    drafter: Drafter | None,
    *,
    prompts: int,
    temperature: float,
    max_new_tokens: int = 400,
    seed: int = 0,
    policy: Policy | None = None,
    max_batch: int = 8,
) -> list[GenerationResult]:
    """Decode ``prompts`` held-out prompts of each domain and mode; the rounds carry domain, mode and prompt id."""
    results = []
    for domain in DOMAINS:
        for mode in MODES:
            samples = held_out_samples(domain, mode, prompts, seed=seed)
            results += companion.generate(
                target,
                drafter,
                [sample.prompt for sample in samples],
                temperature=temperature,
                thinking=mode == "think",
                max_new_tokens=max_new_tokens,
                seed=seed,
                policy=policy,
                max_batch=max_batch,
                labels=[{"prompt_id": f"{domain}/{mode}/{i}", "domain": domain, "mode": mode} for i in range(prompts)],
            )
    return results


def all_rounds(results: Iterable[GenerationResult]) -> Rounds:
    return Rounds.concat(result.rounds for result in results)


def by_mode(rounds: Rounds) -> list[AcceptedLength]:
    """tau for each domain with thinking off and on."""
    groups: dict[tuple[str, str], Iterable[Round]] = {
        (d, m): rounds.where(domain=d, mode=m) for d in DOMAINS for m in MODES
    }
    return _summaries(groups)


def by_phase(rounds: Rounds) -> list[AcceptedLength]:
    """tau inside and outside the think span, for each domain with thinking on; rounds that straddle are left out."""
    thinking = rounds.where(mode="think")
    groups: dict[tuple[str, str], Iterable[Round]] = {}
    for domain in DOMAINS:
        rows = thinking.where(domain=domain)
        phases: tuple[Phase, ...] = ("think", "output")
        for phase in phases:
            groups[domain, phase] = [row for row in rows if set(row.phases) == {phase}]
    return _summaries(groups)


def _summaries(groups: Mapping[tuple[str, str], Iterable[Round]]) -> list[AcceptedLength]:
    found = []
    for (domain, group), rows in groups.items():
        table = Rounds(rows)
        low, high = bootstrap_interval(committed_per_round, table, resamples=500)
        found.append(AcceptedLength(domain, group, committed_per_round(table), low, high, len(table)))
    return found


@dataclass(frozen=True, slots=True)
class PositionRate:
    """Conditional acceptance at one draft position, with its interval over responses."""

    position: int
    rate: float
    low: float
    high: float
    judged: int


def position_curve(rounds: Rounds, at_least: int = 30) -> list[PositionRate]:
    """Conditional acceptance at every position that at least ``at_least`` rounds reach."""
    responses = [conditional_by_position(rows) for rows in by_prompt(rounds).values()]
    curve = []
    for k, (kept, judged) in enumerate(conditional_by_position(rounds), start=1):
        if judged >= max(1, at_least):
            low, high = ratio_interval([counts[k - 1] if k <= len(counts) else (0, 0) for counts in responses])
            curve.append(PositionRate(k, kept / judged, low, high, judged))
    return curve


def greedy_identity(
    target: TextTarget, drafter: Drafter, depths: Sequence[int], *, prompts: int, seed: int = 0
) -> GreedyComparison:
    """Decode greedily at every depth and compare token by token with plain decoding of the same prompts; the depths
    pooled, so that a prompt counts once for each."""
    plain = survey(target, None, prompts=prompts, temperature=0.0, seed=seed)
    found = [
        compare_greedy(
            target,
            plain,
            survey(target, drafter, prompts=prompts, temperature=0.0, seed=seed, policy=companion.FixedDepth(depth)),
        )
        for depth in depths
    ]
    return GreedyComparison(
        texts=sum(one.texts for one in found),
        tokens=sum(one.tokens for one in found),
        drafted=sum(one.drafted for one in found),
        divergences=[divergence for one in found for divergence in one.divergences],
    )
