"""Phases from token ids: a state machine over `<think>` and `</think>`.

The two tags belong to the span: `<think>` is its first token and `</think>` its last. A second `<think>` inside the
span changes nothing, an orphan `</think>` outside it is output. The state before the first new token comes from the
tail of the rendered prompt (after its last turn marker), never from a flag: the template may have opened or closed the
span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from companion.protocols import Phase


@dataclass(frozen=True, slots=True)
class ThinkTokens:
    """The ids that delimit a think span, and the id that opens a turn (None where the format has none)."""

    open: int | None
    close: int | None
    turn: int | None = None

    @classmethod
    def of(
        cls, tokenizer: object, open: str = "<think>", close: str = "</think>", turn: str = "<|im_start|>"
    ) -> ThinkTokens:
        """Resolve the tags through a tokenizer's vocabulary; a tag that is not one token gives None."""
        vocab: dict[str, int] = tokenizer.get_vocab()  # type: ignore[attr-defined]
        return cls(vocab.get(open), vocab.get(close), vocab.get(turn))


class PhaseTracker:
    """Labels each token of one response, streaming; `phase` is that of the next ordinary token."""

    def __init__(self, tags: ThinkTokens, prompt: Sequence[int] = ()) -> None:
        self.tags = tags
        self.phase: Phase = "output"
        self.spans_closed = 0
        self.orphan_closes = 0
        for token in _last_turn(prompt, tags.turn):
            self.push(token)
        self.spans_closed = self.orphan_closes = 0

    def push(self, token: int) -> Phase:
        """Advance by one token and return its phase."""
        if self.tags.open is not None and token == self.tags.open:
            self.phase = "think"
            return "think"
        if self.tags.close is not None and token == self.tags.close:
            if self.phase == "think":
                self.phase = "output"
                self.spans_closed += 1
                return "think"
            self.orphan_closes += 1
        return self.phase

    def label(self, tokens: Iterable[int]) -> list[Phase]:
        """Phases of several tokens, in order."""
        return [self.push(token) for token in tokens]


def _last_turn(prompt: Sequence[int], turn: int | None) -> Sequence[int]:
    """The prompt from its last turn marker on: earlier turns may quote think text without being in a span."""
    for index in range(len(prompt) - 1, -1, -1):
        if prompt[index] == turn:
            return prompt[index:]
    return prompt


def straddles(phases: Sequence[Phase]) -> bool:
    """Whether one round's committed tokens lie in both phases."""
    return "think" in phases and "output" in phases
