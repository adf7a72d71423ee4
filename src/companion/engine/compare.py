"""Greedy outputs against plain decoding: token identity, and what to make of a first divergence.

At temperature 0 every drafter, depth and batch must give plain decoding's tokens. Rounding sets a limit: a forward over
another number of rows adds in another order, so where two logits tie to within rounding either one may win. The first
divergence is therefore reported with its margin, the gap between the two logits, and passes only below a stated one;
what follows it is another text and says nothing. A comparison in which nothing was drafted is inconclusive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from companion.engine.generate import GenerationResult
from companion.engine.target import Qwen3Target

TIE = 1e-4  # fp32 logits of size 10 carry errors of a few 1e-6 through a few layers; half precision needs about 0.1


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two greedy texts part, and how close the target's choice was there."""

    prompt: int  # index of the prompt
    position: int  # index of the new token
    expected: int | None  # plain decoding's token; None: it ended here
    got: int | None
    margin: float  # logit of the expected token minus that of the other one; inf where one text just ended


@dataclass(frozen=True, slots=True)
class GreedyComparison:
    """What was compared, and every first divergence."""

    texts: int
    tokens: int  # compared, up to each divergence
    drafted: int
    divergences: list[Divergence]

    def verdict(self, tie: float = TIE) -> Literal["holds", "fails", "inconclusive"]:
        """``holds`` if no text diverges by more than a tie; ``inconclusive`` if nothing was compared or drafted."""
        if any(abs(d.margin) > tie for d in self.divergences):
            return "fails"
        return "holds" if self.tokens and self.drafted else "inconclusive"


def compare_greedy(
    target: Qwen3Target, plain: Sequence[GenerationResult], other: Sequence[GenerationResult]
) -> GreedyComparison:
    """Compare two greedy runs of ``target`` over the same prompts, ``plain`` without a drafter.

    Raises ValueError when the runs do not belong to the same prompts.
    """
    if [r.prompt_tokens for r in plain] != [r.prompt_tokens for r in other]:
        raise ValueError("the two runs have different prompts; compare results of the same prompts in the same order")
    divergences = [
        divergence
        for i, (one, two) in enumerate(zip(plain, other, strict=True))
        if (divergence := first_divergence(target, one.prompt_tokens, one.tokens, two.tokens, prompt=i)) is not None
    ]
    cut = {d.prompt: d.position for d in divergences}
    return GreedyComparison(
        texts=len(plain),
        tokens=sum(cut.get(i, len(result.tokens)) for i, result in enumerate(plain)),
        drafted=sum(_drafted(result) for result in other),
        divergences=divergences,
    )


def first_divergence(
    target: Qwen3Target, prompt_tokens: Sequence[int], expected: Sequence[int], got: Sequence[int], *, prompt: int = 0
) -> Divergence | None:
    """Where two continuations of one prompt part; None when they are equal."""
    position = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if position is None:
        if len(expected) == len(got):
            return None
        position = min(len(expected), len(got))
    one = expected[position] if position < len(expected) else None
    two = got[position] if position < len(got) else None
    margin = float("inf")
    if one is not None and two is not None:
        row = target.logits([*prompt_tokens, *expected[:position]])[-1]
        margin = float(row[one] - row[two])
    return Divergence(prompt, position, one, two, margin)


def _drafted(result: GenerationResult) -> int:
    rounds: Iterable[int] = (row.drafted for row in result.rounds)
    return sum(rounds)
