"""A small causal language model as an ordinary autoregressive drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from companion.engine.cache import Cache
from companion.engine.sampling import distribution, greedy
from companion.engine.target import Qwen3Target, ragged
from companion.protocols import Context, Draft


@dataclass(slots=True)
class _State:
    slot: int
    read: list[int] = field(default_factory=list)  # tokens in the draft model's cache


class ModelDrafter:
    """Drafts token by token with its own cache, rolled back to the committed text at each proposal.

    ``proposal`` "sampled" draws each token from the model's distribution after the request's own temperature and
    filters and hands that tensor on as q; "greedy" proposes the argmax with a one-hot q.
    """

    taps: Sequence[int] = ()

    def __init__(
        self, model: Qwen3Target, *, max_depth: int = 5, proposal: Literal["sampled", "greedy"] = "sampled"
    ) -> None:
        if proposal not in ("sampled", "greedy"):
            raise ValueError(f"proposal must be 'sampled' or 'greedy', got {proposal!r}")
        self.model, self.name, self.max_depth = model, model.name, max_depth
        self.vocab_size, self.max_context = model.vocab_size, model.max_context
        self.deterministic = proposal == "greedy"
        self._cache: Cache | None = None
        self._states: dict[int, _State] = {}
        self._free: list[int] = []

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        drafts = [Draft([]) for _ in contexts]
        probs: list[list[Tensor]] = [[] for _ in contexts]
        states = [self._rolled_back(context) for context in contexts]
        for step in range(max(depths, default=0)):
            active = [i for i, depth in enumerate(depths) if depth > step]
            chosen = self._step([contexts[i] for i in active], [states[i] for i in active], [drafts[i] for i in active])
            for i, (token, q) in zip(active, chosen, strict=True):
                drafts[i].tokens.append(token)
                if q is not None:
                    probs[i].append(q)
        for draft, rows in zip(drafts, probs, strict=True):
            draft.probs = torch.stack(rows) if rows else None
        return drafts

    def _step(
        self, contexts: list[Context], states: list[_State], drafts: list[Draft]
    ) -> list[tuple[int, Tensor | None]]:
        """One draft token for each request, in one ragged forward."""
        assert self._cache is not None
        unread = [[*c.tokens, *d.tokens][len(s.read) :] for c, s, d in zip(contexts, states, drafts, strict=True)]
        batch = ragged([(s.slot, len(s.read), new) for s, new in zip(states, unread, strict=True)], self.model.device)
        batch.logit_rows = torch.tensor(batch.starts[1:], device=self.model.device) - 1
        logits = self.model.forward(batch, self._cache).logits  # [R, V]
        best = greedy(logits).tolist()
        chosen: list[tuple[int, Tensor | None]] = []
        for row, (context, state, draft, new) in enumerate(zip(contexts, states, drafts, unread, strict=True)):
            state.read.extend(new)
            if self.deterministic or context.sampling.greedy:
                chosen.append((best[row], None))
                continue
            q = distribution(logits[row : row + 1], context.sampling)[0]
            position = len(context.tokens) + len(draft.tokens)
            chosen.append((context.draws.token(q, f"draft/{context.round}", position), q))
        return chosen

    def _rolled_back(self, context: Context) -> _State:
        """The request's state, its cache holding a prefix of the committed text and at least one token still unread."""
        state = self._states.get(context.request)
        if state is None:
            if not self._free:
                used = self._cache.slots if self._cache else 0
                self._free = list(range(used, max(2 * used, 1)))[::-1]
            state = self._states[context.request] = _State(self._free.pop())
        slots = max(s.slot for s in self._states.values()) + 1
        needed = len(context.tokens) + self.max_depth
        if self._cache is None:
            self._cache = self.model.new_cache(slots, min(self.model.max_context, 2 * needed))
        elif needed > self._cache.capacity or slots > self._cache.slots:
            self._cache = self._cache.grown(slots, min(self.model.max_context, max(2 * needed, self._cache.capacity)))
        keep = 0
        limit = min(len(state.read), len(context.tokens) - 1)
        while keep < limit and state.read[keep] == context.tokens[keep]:
            keep += 1
        del state.read[keep:]
        self._cache.rollback(state.slot, keep)
        return state

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        """Nothing to do: the next proposal reads the committed text from the context."""

    def reset(self, request: int) -> None:
        state = self._states.pop(request, None)
        if state is not None and self._cache is not None:
            self._cache.rollback(state.slot, 0)
            self._free.append(state.slot)
