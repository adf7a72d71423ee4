"""Prompt lookup: propose what followed the last occurrence of the current n-gram."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from companion.protocols import Context, Draft


class LookupDrafter:
    """Deterministic n-gram drafter without weights: q is one-hot, so the entropy ceiling binds it.

    The longest suffix of ``max_ngram`` down to ``min_ngram`` tokens that occurred earlier in the request's own text is
    continued from its most recent occurrence. No match, no draft.
    """

    name = "lookup"
    deterministic = True
    max_context: int | None = None
    taps: Sequence[int] = ()

    def __init__(self, vocab_size: int, *, max_depth: int = 8, max_ngram: int = 3, min_ngram: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}")
        self.vocab_size, self.max_depth = vocab_size, max_depth
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        # per request: its text, n-gram -> start of what follows its last occurrence, and how many tokens are indexed
        self._index: dict[int, tuple[list[int], dict[tuple[int, ...], int], int]] = {}

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        return [Draft(self._continuation(c, depth)) for c, depth in zip(contexts, depths, strict=True)]

    def _continuation(self, context: Context, depth: int) -> list[int]:
        tokens = context.tokens
        text, follows, indexed = self._index.get(context.request, (tokens, {}, 0))
        if text is not tokens:  # two runs that share this drafter number their requests alike
            follows, indexed = {}, 0
        for end in range(max(indexed, 1), len(tokens)):  # n-grams ending before the last token have a continuation
            for n in self.sizes:
                if end >= n:
                    follows[tuple(tokens[end - n : end])] = end
        self._index[context.request] = tokens, follows, len(tokens)
        for n in self.sizes:
            start = follows.get(tuple(tokens[-n:])) if len(tokens) > n else None
            if start is not None:
                return tokens[start : start + depth]
        return []

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        """Nothing to learn: the committed text is in the context."""

    def reset(self, request: int) -> None:
        self._index.pop(request, None)
