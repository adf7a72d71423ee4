"""One procedural conversation turn, the split it belongs to, and the rule that says whether an answer is right."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Domain = Literal["math", "code", "chat"]
Mode = Literal["think", "no_think"]
Kind = Literal["standard", "longer", "wording"]

DOMAINS: tuple[Domain, ...] = ("math", "code", "chat")
MODES: tuple[Mode, ...] = ("think", "no_think")
KINDS: tuple[Kind, ...] = ("standard", "longer", "wording")

HELD_OUT_ONE_IN = 8
SOFT_SWITCH = " /no_think"
_RESULT = re.compile(r"\[[^\[\]\n]*\]|\d+")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt with one reference response.

    ``final`` is the checkable result (an integer or a list of integers, as text), None for chat. ``kind`` says what a
    held-out sample tests: ``standard`` (new operands or a new chat prompt), ``longer`` (one digit or one item more
    than any training sample has) or ``wording`` (a phrasing that no training sample uses).
    """

    domain: Domain
    mode: Mode
    family: str
    prompt: str
    thinking: str  # "" with thinking off
    answer: str
    final: str | None
    held_out: bool
    kind: Kind = "standard"
    system: str | None = None
    history: tuple[tuple[str, str], ...] = ()  # earlier turns: (user, assistant)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation up to and including the last user turn, as chat templates want it."""
        turns = [{"role": "system", "content": self.system}] if self.system else []
        for user, assistant in self.history:
            turns += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        return [*turns, {"role": "user", "content": self.prompt}]

    @property
    def response(self) -> str:
        """What the assistant writes: from ``<think>`` on, or with thinking off what follows the empty span."""
        if self.mode == "think":
            return f"<think>\n{self.thinking}\n</think>\n\n{self.answer}"
        return self.answer


def is_held_out(key: str) -> bool:
    """True for one key in eight, by a hash: equal operands fall on the same side in every run and on every machine."""
    digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_ONE_IN == 0


def extract_final(response: str) -> str | None:
    """The last integer or list of integers after the think span, spaces removed; None if there is none.

    A response that opened a span and never closed it has no answer.
    """
    if "<think>" in response and "</think>" not in response:
        return None
    found = _RESULT.findall(response.rsplit("</think>", 1)[-1])
    return found[-1].replace(" ", "") if found else None


def is_right(final: str, response: str) -> bool:
    """Whether ``response`` ends with the result ``final`` (the last number or list of its answer part)."""
    return extract_final(response) == final.replace(" ", "")


def zipf(rng: random.Random, options: Sequence[_T], exponent: float = 0.8) -> _T:
    """One of ``options``, the k-th (from 1) with probability proportional to k ** -exponent."""
    weights = [(k + 1) ** -exponent for k in range(len(options))]
    return rng.choices(options, weights)[0]
