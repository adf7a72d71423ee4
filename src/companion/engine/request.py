"""One request inside the engine: its text so far, and when it must stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, RequestView
from companion.rounds import Round

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class StopRule:
    """Where a response ends: a stop token, a stop string, or the cap. The stop token or string stays in the output."""

    max_new_tokens: int
    token_ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.max_new_tokens, "__index__") or self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be an integer of at least 1, got {self.max_new_tokens}")
        if "" in self.strings:
            raise ValueError("a stop string is empty; it would match everywhere")
        if self.strings and self.decode is None:
            raise ValueError("stop_strings need a tokenizer to read text; this target has none, use stop_token_ids")

    def cut(self, emitted: Sequence[int], new: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of the ``new`` tokens are committed after ``emitted`` ones, and why the response ends there, if it
        does.

        Stop strings are looked for token by token in the newest text only, since one may begin in an earlier round.
        """
        for count, token in enumerate(new, start=1):
            if token in self.token_ids or self._completes_string(emitted, new[:count]):
                return count, "stop"
            if len(emitted) + count == self.max_new_tokens:
                return count, "length"
        return len(new), None

    def _completes_string(self, emitted: Sequence[int], new: Sequence[int]) -> bool:
        if not self.strings:
            return False
        assert self.decode is not None
        longest = max(len(string) for string in self.strings)
        # what a match can span: the newest token, the rest of the string before it, and a character cut into 4 bytes
        needed = len(self.decode(new[-1:])) + longest + 4
        window = needed  # in tokens: enough unless control tokens, which decode to nothing, sit in between
        while True:
            text = self.decode([*emitted[-window:], *new])
            if any(string in text for string in self.strings):
                return True
            if len(text) >= needed or window >= len(emitted):
                return False
            window *= 2


@dataclass(slots=True)
class Request:
    """State of one request: ``context.tokens`` is prompt plus committed text, ``slot`` its block in the cache."""

    context: Context
    prompt_length: int
    stop: StopRule
    tracker: PhaseTracker
    labels: dict[str, Any] = field(default_factory=dict)  # prompt_id, domain, mode for its rounds
    slot: int = -1
    cached: int = 0  # tokens of the context already in the target's cache
    rounds: list[Round] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    last_entropy: float | None = None
    last_served_entropy: float | None = None

    @property
    def emitted(self) -> list[int]:
        return self.context.tokens[self.prompt_length :]

    @property
    def pending(self) -> list[int]:
        """Committed tokens that the target has not read yet: the prompt at first, then the anchor."""
        return self.context.tokens[self.cached :]

    @property
    def room(self) -> int:
        return self.stop.max_new_tokens - (len(self.context.tokens) - self.prompt_length)

    def view(self) -> RequestView:
        return RequestView(
            request=self.context.request,
            position=len(self.context.tokens),
            phase=self.tracker.phase,
            room=self.room,
            last_entropy=self.last_entropy,
            sampling=self.context.sampling,
            last_served_entropy=self.last_served_entropy,
        )
