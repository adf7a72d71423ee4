"""The drafter of Corollary 2, run for real: it always proposes `</think>`, and the target judges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import torch
from pydantic import BaseModel
from torch import Tensor

import companion
from companion.ceiling import eat_mass, entropy
from companion.engine.load import TextTarget
from companion.engine.sampling import distribution
from companion.experiments.responses import Response, response_rows, sample_responses
from companion.protocols import Context, Draft, Sampling
from companion.rounds import Rounds
from companion.training.corpus import DOMAINS, held_out_samples


class ConstantDrafter:
    """Proposes one and the same token, one slot a round, whatever the text says."""

    name = "constant"
    max_depth = 1
    max_context: int | None = None
    deterministic = True
    taps: Sequence[int] = ()

    def __init__(self, token: int, vocab_size: int) -> None:
        self.token, self.vocab_size = token, vocab_size

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        return [Draft([self.token] * min(depth, 1)) for depth in depths]

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        """Nothing to learn."""

    def reset(self, request: int) -> None:
        """Nothing to forget."""


class Config(BaseModel):
    target: str = "tiny-qwen3"
    device: str = "cpu"
    prompts: int = 4  # per domain, thinking on
    max_new_tokens: int = 400
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Accepted proposals against what the masses e_k add up to.

    Given its past, round k accepts with probability e_k; so observed - expected is a sum of martingale differences
    with variance sum e_k (1 - e_k), whatever the text does.
    """

    rounds: int
    observed: int
    expected: float
    deviation: float  # standard deviation of observed - expected

    @property
    def chance(self) -> float:
        """At most how likely an honest engine is to deviate this much: 2 exp(-D^2 / (2 V + 2 |D| / 3)), Freedman's
        inequality for martingales with steps of at most 1. No normal law is assumed: with masses close to 0 and 1 the
        variance V is far below 1."""
        off = abs(self.observed - self.expected)
        return min(1.0, 2 * exp(-(off**2) / (2 * self.deviation**2 + 2 * off / 3))) if off > 0 else 1.0


def run(config: Config) -> tuple[Rounds, Agreement]:
    """Decode with the constant drafter at temperature 1 and compare its acceptances with the mass on `</think>`."""
    target = companion.load_target(config.target, device=config.device)
    drafter = ConstantDrafter(think_end_token(target), target.vocab_size)
    prompts = [s.prompt for d in DOMAINS for s in held_out_samples(d, "think", config.prompts, seed=config.seed)]
    results = companion.generate(
        target, drafter, prompts, max_new_tokens=config.max_new_tokens, temperature=1.0, seed=config.seed
    )
    rounds = Rounds.concat(result.rounds for result in results)
    return rounds, agreement(rounds)


def agreement(rounds: Rounds) -> Agreement:
    """Observed and expected acceptances of a drafter that proposes `</think>`; ValueError when nothing was proposed."""
    judged = [r for r in rounds if r.reached(1)]
    if not judged:
        raise ValueError("no round judged a proposal, so nothing can be compared; raise max_new_tokens or prompts")
    masses = [r.think_end_mass[0] for r in judged]
    return Agreement(
        len(judged), sum(r.accepted for r in judged), sum(masses), sqrt(sum(e * (1.0 - e) for e in masses))
    )


def think_end_token(target: TextTarget) -> int:
    """The id of `</think>`; ValueError for a target that has no such token."""
    if target.tags.close is None:
        raise ValueError(f"{target.name} has no token </think>, so its thinking has no end to speak of")
    return target.tags.close


def longest_thought(target: TextTarget, *, prompts: int, seed: int) -> Response:
    """Of the sampled responses with thinking on, the one with the longest finished think span; where the cap cut every
    span (a large model thinks for thousands of tokens), the longest one."""
    end = think_end_token(target)
    thinking = [r for r in sample_responses(target, prompts=prompts, seed=seed) if r.mode == "think"]
    finished = [response for response in thinking if end in response.result.tokens]
    if not finished:
        return max(thinking, key=lambda response: len(response.result.tokens))
    return max(finished, key=lambda response: response.result.tokens.index(end))


def both_eats(target: TextTarget, response: Response) -> tuple[Tensor, Tensor]:  # [T], [T]
    """Along one response: the note's e (mass on `</think>`), and the EAT of arXiv:2509.26522, the entropy (nats) of the
    token after a `</think>` appended to the text so far. Same letters, two quantities."""
    end = think_end_token(target)
    mass = eat_mass(response_rows(target, response), [end])
    start = len(response.result.prompt_tokens)
    after = [
        distribution(target.logits([*response.tokens[: start + k], end])[-1:].cpu().double(), Sampling())
        for k in range(len(response.result.tokens))
    ]
    return mass, entropy(torch.cat(after))
