"""A `Draws` that walks every branch of every random choice, and the exact laws that come out of it."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion.engine.decode import Engine
from companion.engine.request import Request, StopRule
from companion.exact.tables import Law, Row, TableTarget
from companion.phase.tracker import PhaseTracker, ThinkTokens
from companion.protocols import Context, Drafter, Policy, Sampling
from companion.scheduling.retrospective import Retrospective

NO_TAGS = ThinkTokens(None, None)


def processed(row: Row, sampling: Sampling) -> NDArray[np.float64]:
    """Temperature, top-k, top-p and min-p as the papers describe them, token by token (no code of the package)."""
    p = np.asarray(row, dtype=np.float64)
    if sampling.temperature == 0.0:
        return np.eye(len(p))[int(np.argmax(p))]
    p = p ** (1 / sampling.temperature)
    ranked = sorted(range(len(p)), key=lambda v: (-p[v], v))
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    p = np.array([p[v] if v in ranked else 0.0 for v in range(len(p))])
    p /= p.sum()
    mass, nucleus = 0.0, []
    for v in ranked:
        if mass < sampling.top_p:
            nucleus.append(v)
        mass += p[v]
    p = np.array([p[v] if v in nucleus else 0.0 for v in range(len(p))])
    p /= p.sum()
    p[p < sampling.min_p * p.max()] = 0.0
    return p / p.sum()


Sequences = dict[Hashable, float]


def plain_law(
    law: Law,
    prompt: tuple[int, ...],
    sampling: Sampling,
    max_new_tokens: int,
    stops: frozenset[int] = frozenset(),
) -> Sequences:
    """The law of what token-by-token sampling emits, by recursion over texts."""
    out: Sequences = {}

    def walk(emitted: tuple[int, ...], weight: float) -> None:
        if len(emitted) == max_new_tokens or (emitted and emitted[-1] in stops):
            out[emitted] = weight
            return
        for token, mass in enumerate(processed(law(prompt + emitted), sampling)):
            if mass > 0.0:
                walk((*emitted, token), weight * float(mass))

    walk((), 1.0)
    return out


class Branch:
    """One path through the tree of all random choices: the given turns first, then the first option each time."""

    def __init__(self, turns: Sequence[int]) -> None:
        self.turns = list(turns)
        self.options: list[int] = []
        self.weight = 1.0

    def choose(self, weighted: Sequence[tuple[int, float]]) -> int:
        possible = [(value, weight) for value, weight in weighted if weight > 0.0]
        step = len(self.options)
        if step == len(self.turns):
            self.turns.append(0)
        self.options.append(len(possible))
        value, weight = possible[self.turns[step]]
        self.weight *= weight
        return value


class BranchDraws:
    """The `Draws` of one request on a branch; a purpose and position may be asked for once, as the keyed draws need."""

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.used: set[tuple[Hashable, ...]] = set()

    def _once(self, *key: Hashable) -> None:
        assert key not in self.used, f"the random number {key} is used twice"
        self.used.add(key)

    def token(self, probs: Tensor, purpose: str, position: int) -> int:
        self._once(purpose, position)
        mass = probs.to(torch.float64)
        return self.branch.choose(list(enumerate((mass / mass.sum()).tolist())))

    def accept(self, probability: float, position: int) -> bool:
        self._once("accept", position)
        return bool(self.branch.choose([(1, probability), (0, 1.0 - probability)]))


def exact_law(run: Callable[[Branch], Hashable]) -> tuple[Sequences, int]:
    """The law of ``run``'s result over all branches, depth first, and how many branches there are."""
    law: dict[Hashable, list[float]] = defaultdict(list)
    turns: list[int] = []
    branches = 0
    while True:
        branch = Branch(turns)
        result = run(branch)
        law[result].append(branch.weight)
        branches += 1
        turns = branch.turns
        while turns and turns[-1] + 1 == branch.options[len(turns) - 1]:
            turns.pop()
        if not turns:
            return {k: math.fsum(v) for k, v in law.items()}, branches
        turns[-1] += 1


def decode(
    branch: Branch,
    target: TableTarget,
    drafter: Drafter | None,
    policy: Policy | Retrospective | None,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    max_new_tokens: int | Sequence[int],  # of all, or of each
    stops: frozenset[int] = frozenset(),
    *,
    max_batch: int | None = None,
    allow_lossy: bool = False,
) -> list[Request]:
    """The real engine on one branch; requests come back in the order of their prompts."""
    caps = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    engine = Engine(target, drafter, policy, max_batch=max_batch or len(prompts), allow_lossy=allow_lossy)
    requests = [
        Request(
            context=Context(i, list(prompt), sampling, BranchDraws(branch)),
            prompt_length=len(prompt),
            stop=StopRule(caps[i], stops),
            tracker=PhaseTracker(NO_TAGS, prompt),
        )
        for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.submit(request)
    for _ in engine.run():
        pass
    return requests


def engine_law(
    target: TableTarget,
    drafter: Drafter | None,
    policy: Policy | Retrospective | None,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    max_new_tokens: int | Sequence[int],  # of all, or of each
    stops: frozenset[int] = frozenset(),
    **options: Any,
) -> Sequences:
    """Exact law of what `decode` emits, whose arguments it takes; of the tuple of all texts when there are several.

    Each branch gets a copy of ``policy`` as it is given, so that what one learns on a branch is unknown on the next.
    """

    def run(branch: Branch) -> Hashable:
        own = copy.deepcopy(policy)
        requests = decode(branch, target, drafter, own, prompts, sampling, max_new_tokens, stops, **options)
        outputs = [tuple(r.emitted) for r in requests]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return exact_law(run)[0]


def distance(one: Sequences, other: Sequences) -> float:
    """Largest difference in probability of any single result."""
    return max(abs(one.get(k, 0.0) - other.get(k, 0.0)) for k in one.keys() | other.keys())


def product(
    law: Law,
    prompts: Sequence[tuple[int, ...]],
    max_new_tokens: int | Sequence[int],  # of all, or of each
    stops: frozenset[int] = frozenset(),
) -> Sequences:
    """The joint law of independent requests, sampled plainly at temperature 1."""
    joint: dict[Any, float] = {(): 1.0}
    caps = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
    for prompt, cap in zip(prompts, caps, strict=True):
        alone = plain_law(law, prompt, Sampling(), cap, stops)
        joint = {(*texts, text): a * b for texts, a in joint.items() for text, b in alone.items()}
    return joint
