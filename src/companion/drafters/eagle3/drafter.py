"""Eagle3 behind the Drafter protocol: one small forward for each drafted token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from companion.drafters.choose import choose
from companion.drafters.eagle3.fused import FusedEagle3
from companion.drafters.eagle3.model import Eagle3
from companion.drafters.neural import DrafterOptions, NeuralDrafter, Unread
from companion.drafters.slots import Slots
from companion.engine.paged import attention_plan
from companion.engine.target import ragged
from companion.protocols import Context, Draft


class Eagle3Drafter(NeuralDrafter):
    """Drafts token by token with a one-layer cache of its own; batched and ragged over requests.

    With committed text x_0 .. x_{L-1}, the last one being the anchor, the target has shown g_0 .. g_{L-2}: L-1
    committed pairs (g_i, x_{i+1}). Since there is one layer, a pair only has to leave its key and value in the cache;
    the newest one is run in full and gives the first draft token. Pairs of drafted tokens carry the drafter's own
    output for want of a g. They are rolled back when the round ends, and what was committed comes back with the
    target's features.

    ``max_depth`` may exceed the number of steps that the model was trained for, which is its default. The weights are
    copied; the model may go on training.
    """

    def __init__(self, model: Eagle3, **options: Unpack[DrafterOptions]) -> None:
        config, shape = model.config, model.config.shape
        super().__init__("eagle3", shape, config.target_layer_ids, config.ttt_length, deeper=True, **options)
        self.config = config
        self._fused = FusedEagle3(model, device=self.device, dtype=self.dtype)
        self._slots = Slots(shape, shape.max_context, self.device, self.dtype)
        self._unread = Unread()
        self._newest: dict[int, Tensor] = {}  # g [1, d] of the newest pair that was read

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        drafts = [Draft([]) for _ in contexts]
        probs: list[list[Tensor]] = [[] for _ in contexts]
        active = [i for i, depth in enumerate(depths) if depth > 0]
        hidden = self._catch_up([contexts[i] for i in active])  # [R, d]
        for step in range(max(depths, default=0)):
            still = [row for row, i in enumerate(active) if depths[i] > step]
            active = [active[row] for row in still]
            asking = [contexts[i] for i in active]
            newest = [[contexts[i].tokens[-1], *drafts[i].tokens][-1] for i in active]
            hidden = self._step([self._slots.slot(c.request) for c in asking], newest, hidden[still])
            logits = self.mask_unusable(self._fused.logits(hidden))  # [R, V]
            for i, (token, q) in zip(active, choose(logits, asking, step, greedily=self.deterministic), strict=True):
                drafts[i].tokens.append(token)
                if q is not None:
                    probs[i].append(q)
        for context, draft, drawn in zip(contexts, drafts, probs, strict=True):
            if draft.tokens:
                self._slots.cache.rollback(self._slots.slot(context.request), len(context.tokens) - 1)
                draft.probs = torch.stack(drawn) if drawn else None
        return drafts

    def _catch_up(self, contexts: list[Context]) -> Tensor:
        """Cache the committed pairs but the newest, and return the g of that one, [R, d]."""
        slots = [self._slots.slot(c.request) for c in contexts]
        cache = self._slots.reserve(max((len(c.tokens) for c in contexts), default=0) + self.max_depth)
        rows, fused = [], []
        for context, slot in zip(contexts, slots, strict=True):
            last, g = len(context.tokens) - 2, self._read(context)
            cached, cache.lengths[slot] = cache.lengths[slot], last
            rows.append((slot, cached, context.tokens[cached + 1 : last + 1]))
            fused.append(g[cached - last - 1 : -1])
        batch = ragged(rows, cache.keys.device)
        if len(batch.tokens):
            keys, values = self._fused.keys_values(batch.tokens, torch.cat(fused), batch.positions)
            owners = torch.tensor([slot for slot, _, new in rows for _ in new], device=cache.keys.device)
            cache.keys[0][owners, :, batch.positions] = keys
            cache.values[0][owners, :, batch.positions] = values
        return torch.cat([self._newest[c.request] for c in contexts]) if contexts else cache.keys.new_empty(0)

    def _read(self, context: Context) -> Tensor:
        """g of the n pairs that came since the last proposal, behind the one that was the newest then: [n + 1, d]."""
        known = self._slots.cache.lengths[self._slots.slot(context.request)] + self._unread.count(context.request)
        self.check_seen(context, known)
        unread = self._unread.pop(context.request)
        fused = [self._newest[context.request]] if context.request in self._newest else []
        g = torch.cat([*fused, *map(self._fused.fuse, unread)])
        self._newest[context.request] = g[-1:]
        return g

    def _step(self, slots: list[int], tokens: list[int], hidden: Tensor) -> Tensor:  # [R], [R], [R, d] -> [R, d]
        """Run one pair of each request and append it to the cache."""
        cache = self._slots.cache
        batch = ragged([(s, cache.lengths[s], [t]) for s, t in zip(slots, tokens, strict=True)], hidden.device)
        hidden = self._fused.step(batch.tokens, hidden, batch.positions, attention_plan(batch, cache))
        for slot in slots:
            cache.lengths[slot] += 1
        return hidden

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        """Keep the features [n, taps, d]; they are read at the next proposal, as a part of its cost."""
        self._unread.add(contexts, features)

    def reset(self, request: int) -> None:
        self._unread.pop(request)
        self._newest.pop(request, None)
        self._slots.release(request)
