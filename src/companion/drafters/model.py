"""A small causal language model as an ordinary autoregressive drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from companion.drafters.choose import choose
from companion.drafters.slots import Slots
from companion.engine.target import Qwen3Target, ragged
from companion.protocols import Context, Draft


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
        self._slots = Slots(model.shape, model.max_context, model.device, model.dtype)
        self._read: dict[int, list[int]] = {}  # of each request, the tokens in the cache

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        drafts = [Draft([]) for _ in contexts]
        probs: list[list[Tensor]] = [[] for _ in contexts]
        for context in contexts:
            self._roll_back(context)
        for step in range(max(depths, default=0)):
            active = [i for i, depth in enumerate(depths) if depth > step]
            asking = [contexts[i] for i in active]
            logits = self._step(asking, [drafts[i] for i in active])
            for i, (token, q) in zip(active, choose(logits, asking, step, greedily=self.deterministic), strict=True):
                drafts[i].tokens.append(token)
                if q is not None:
                    probs[i].append(q)
        for draft, rows in zip(drafts, probs, strict=True):
            draft.probs = torch.stack(rows) if rows else None
        return drafts

    def _step(self, contexts: list[Context], drafts: list[Draft]) -> Tensor:  # [R, V]
        """Logits after the text and draft of each request, in one ragged forward over what is unread of them."""
        rows = []
        for context, draft in zip(contexts, drafts, strict=True):
            read = self._read[context.request]
            rows.append((self._slots.slot(context.request), len(read), [*context.tokens, *draft.tokens][len(read) :]))
        batch = ragged(rows, self.model.device)
        batch.logit_rows = torch.tensor(batch.starts[1:], device=self.model.device) - 1
        logits = self.model.forward(batch, self._slots.cache).logits
        for context, (_, _, new) in zip(contexts, rows, strict=True):
            self._read[context.request].extend(new)
        return logits

    def _roll_back(self, context: Context) -> None:
        """Keep in the cache a prefix of the committed text that leaves at least one token unread."""
        read, slot = self._read.setdefault(context.request, []), self._slots.slot(context.request)
        keep, limit = 0, min(len(read), len(context.tokens) - 1)
        while keep < limit and read[keep] == context.tokens[keep]:
            keep += 1
        del read[keep:]
        self._slots.reserve(len(context.tokens) + self.max_depth).rollback(slot, keep)

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        """Nothing to do: the next proposal reads the committed text from the context."""

    def reset(self, request: int) -> None:
        self._read.pop(request, None)
        self._slots.release(request)
