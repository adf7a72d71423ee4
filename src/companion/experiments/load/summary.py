"""What the runs under load say: sums of each cell, and ratios of throughputs with intervals over paired repeats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from companion.experiments.bars import Bar, judge
from companion.experiments.load.policies import JUDGED, PLAIN, static_depth
from companion.experiments.load.serve import Run
from companion.resampling import Interval, seed_weights

AT_LEAST = 0.97  # of the best static depth's throughput
Place = tuple[str, int, int]  # setting, threads, concurrency


class Cell(BaseModel):
    """One policy at one load, summed over repeats."""

    setting: str
    threads: int
    concurrency: int
    policy: str
    tokens_per_second: float
    by_repeat: list[float]
    per_user: float  # tokens per second of a request, mean over those that ended inside a window
    per_user_p10: float
    budget: float  # B / R: tokens verified a round, the anchor among them
    tau: float  # committed a round
    context: float  # mean, at the first slot
    drafted: int
    verified: int
    accepted: int
    wasted_share: float  # verified and not accepted, of verified; 0 where nothing was verified
    prompt_tokens: int
    tokens: int
    rounds: int
    steps: int
    seconds: float
    step_deviation: float  # of a step's seconds
    draft_share: float  # of the time: all but verifying
    policy_share: float
    busy: float  # lowest of the repeats
    yardstick: float | None = None  # seconds, mean over the time served

    @property
    def place(self) -> Place:
        return self.setting, self.threads, self.concurrency


class Ratio(BaseModel):
    """Throughput of a policy over that of another, with 95 % over repeats."""

    setting: str
    threads: int
    concurrency: int
    policy: str
    over: str  # plain, or the static depth that was fastest here
    value: float
    low: float
    high: float


def _places(runs: Sequence[Run]) -> dict[Place, dict[str, list[Run]]]:
    found: dict[Place, dict[str, list[Run]]] = {}
    for run in sorted(runs, key=lambda r: r.key.repeat):
        key = run.key
        found.setdefault((key.setting, key.threads, key.concurrency), {}).setdefault(key.policy, []).append(run)
    return found


def cells(runs: Sequence[Run]) -> list[Cell]:
    """Every policy at every load."""
    return [_cell(place, policy, own) for place, policies in _places(runs).items() for policy, own in policies.items()]


def _cell(place: Place, policy: str, runs: Sequence[Run]) -> Cell:
    def total(name: str) -> float:
        return sum(getattr(r, name) for r in runs)

    known = all(r.yardstick is not None for r in runs)
    seconds, steps, rounds, verified = total("seconds"), total("steps"), total("rounds"), total("verified")
    speeds = [s for r in runs for s in r.speeds]
    setting, threads, concurrency = place
    return Cell(
        setting=setting,
        threads=threads,
        concurrency=concurrency,
        policy=policy,
        tokens_per_second=total("tokens") / seconds,
        by_repeat=[r.tokens / r.seconds for r in runs],
        per_user=float(np.mean(speeds)) if speeds else 0.0,
        per_user_p10=float(np.quantile(speeds, 0.1)) if speeds else 0.0,
        budget=1 + verified / rounds,
        tau=total("in_rounds") / rounds,
        context=total("context") / rounds,
        drafted=int(total("drafted")),
        verified=int(verified),
        accepted=int(total("accepted")),
        wasted_share=1 - total("accepted") / verified if verified else 0.0,
        prompt_tokens=int(total("prompt_tokens")),
        tokens=int(total("tokens")),
        rounds=int(rounds),
        steps=int(steps),
        seconds=seconds,
        step_deviation=float(np.sqrt(max(total("step_squares") / steps - (seconds / steps) ** 2, 0.0))),
        draft_share=total("draft_seconds") / seconds,
        policy_share=total("policy_seconds") / seconds,
        busy=min(r.busy for r in runs),
        yardstick=sum((r.yardstick or 0.0) * r.seconds for r in runs) / seconds if known else None,
    )


def ratios(runs: Sequence[Run], resamples: int, seed: int) -> list[Ratio]:
    """Of every policy over plain decoding, and over the static depth of highest throughput, at every load.

    Of n repeats n - 1 are drawn, all policies together. The fastest depth is chosen on the same runs, which favours it.
    """
    found = []
    for place, policies in _places(runs).items():
        bases = [PLAIN] if PLAIN in policies else []
        static = [p for p in policies if static_depth(p)]
        if static:
            bases.append(
                max(static, key=lambda p: sum(r.tokens for r in policies[p]) / sum(r.seconds for r in policies[p]))
            )
        for policy, base in ((p, b) for p in policies for b in bases if p != b):
            interval = _ratio(policies[policy], policies[base], resamples, seed)
            setting, threads, concurrency = place
            found.append(
                Ratio(
                    setting=setting,
                    threads=threads,
                    concurrency=concurrency,
                    policy=policy,
                    over=base,
                    value=interval.value,
                    low=interval.low,
                    high=interval.high,
                )
            )
    return found


def _ratio(ours: Sequence[Run], theirs: Sequence[Run], resamples: int, seed: int) -> Interval:
    if [r.key.repeat for r in ours] != [r.key.repeat for r in theirs]:
        raise ValueError("two policies were not run on the same repeats; finish the measurement first")
    parts = np.array([[a.tokens, a.seconds, b.tokens, b.seconds] for a, b in zip(ours, theirs, strict=True)])  # [n, 4]
    draws = seed_weights(len(parts), resamples, np.random.default_rng(seed)) @ parts  # [B, 4]
    whole = parts.sum(0)
    return Interval.of(
        float(whole[0] / whole[1] / (whole[2] / whole[3])), draws[:, 0] / draws[:, 1] / (draws[:, 2] / draws[:, 3])
    )


def bars(found: Sequence[Ratio], runs: Sequence[Run]) -> list[Bar]:
    """Both deployed forms over the best static depth at every load; plain decoding is not among the depths."""
    rounds = {(*place, p): sum(r.rounds for r in own) for place, ps in _places(runs).items() for p, own in ps.items()}
    return [
        judge(
            f"{r.setting}, {r.threads} thread(s), {r.concurrency} at once: {r.policy} over {r.over}",
            AT_LEAST,
            r.value,
            r.low,
            r.high,
            rounds[r.setting, r.threads, r.concurrency, r.policy],
        )
        for r in found
        if r.policy in JUDGED and static_depth(r.over)
    ]


def identical(runs: Sequence[Run]) -> dict[str, tuple[int, int]]:
    """Policy -> answers equal to plain decoding's, and answers compared: greedy runs of the same prompts."""
    found: dict[str, tuple[int, int]] = {}
    for policies in _places(runs).values():
        for policy, own in policies.items():
            for ours, plain in zip(own, policies.get(PLAIN, ()), strict=False):
                if policy != PLAIN:
                    both = ours.outputs.keys() & plain.outputs.keys()
                    same = sum(ours.outputs[n] == plain.outputs[n] for n in both)
                    hits, total = found.get(policy, (0, 0))
                    found[policy] = hits + same, total + len(both)
    return found
