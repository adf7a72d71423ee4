"""What a drafter proposed, kept: a round remembers how many drafts stood, and not what the refused ones were."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from companion.protocols import Context, Draft, Drafter


class Recorder:
    """A drafter that remembers the blocks it proposed, by request."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name, self.max_depth, self.vocab_size = drafter.name, drafter.max_depth, drafter.vocab_size
        self.max_context, self.deterministic, self.taps = drafter.max_context, drafter.deterministic, drafter.taps
        self.blocks: dict[int, list[list[int]]] = {}

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        drafts = self._drafter.propose(contexts, depths)
        for context, draft in zip(contexts, drafts, strict=True):
            self.blocks.setdefault(context.request, []).append(list(draft.tokens))
        return drafts

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        self._drafter.observe(contexts, features)

    def reset(self, request: int) -> None:
        self._drafter.reset(request)
