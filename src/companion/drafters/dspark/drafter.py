"""DSpark behind the `Drafter` protocol; DFlash is rank 0."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from companion.drafters.dspark import captured
from companion.drafters.dspark.fused import FusedBackbone, Rows, product_form
from companion.drafters.dspark.model import DSparkModel
from companion.drafters.dspark.sequential import draft_blocks
from companion.drafters.neural import DrafterOptions, NeuralDrafter, Unread
from companion.drafters.slots import Slots
from companion.protocols import Context, Draft


class DSparkDrafter(NeuralDrafter):
    """Drafts a block in one parallel forward and a short sequential loop.

    Its cache holds, for every position before the anchor, keys and values made from the target's features of that
    position; it is kept across rounds and grows by what the target took in for good. ``max_depth`` None is the length
    it was trained for; fewer tokens may be asked for, and the block is still computed whole. Trained weights are
    copied, so the model may go on training; the frozen embedding and head are shared. Set ``graphs`` to run the
    parallel part as a CUDA graph; no GPU has run it yet.
    """

    graphs: bool = False

    def __init__(self, model: DSparkModel, **options: Unpack[DrafterOptions]) -> None:
        config = model.config
        super().__init__("dspark", config.shape, config.target_layer_ids, config.proposal_length, **options)
        device, dtype = self.device, self.dtype
        self.config = config
        self._backbone = FusedBackbone(model, config, model.embed_tokens.weight, device=device, dtype=dtype)
        self._head = product_form(model.lm_head.weight.detach().to(device, dtype))  # [d, V]
        self._markov = copy.deepcopy(model.markov_head)
        self._confidence = copy.deepcopy(model.confidence_head)
        for head in filter(None, (self._markov, self._confidence)):
            head.requires_grad_(False).to(device, dtype)
        if self._markov is not None:
            self._markov.markov_w2.weight.data = product_form(self._markov.markov_w2.weight.data).t()
        self._wide = torch.promote_types(dtype, torch.float32)
        self._slots = Slots(config.shape, self.max_context + config.block_size, device, dtype)
        self._unread = Unread()

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        drafts = [Draft([]) for _ in contexts]
        drafting = [i for i, depth in enumerate(depths) if depth]
        if not drafting:
            return drafts
        chosen, wanted = [contexts[i] for i in drafting], [depths[i] for i in drafting]
        self.check_depths(wanted)
        hidden, logits = self.parallel(chosen, max(wanted))
        for i, block in zip(drafting, self.sequential(hidden, logits, chosen, wanted), strict=True):
            drafts[i] = block
        return drafts

    def parallel(self, contexts: Sequence[Context], depth: int) -> tuple[Tensor, Tensor]:
        """h_k [R, depth, d] and U_k [R, depth, V] of the block that each request's anchor begins: all slots at once."""
        slots = self._read_features(contexts)
        anchors, cache = [c.tokens[-1] for c in contexts], self._slots.cache
        if self.graphs:
            hidden, logits = captured.parallel(self._backbone, self._logits, anchors, slots, cache)
            return hidden[:, :depth], logits[:, :depth]
        hidden = self._backbone.hidden(anchors, slots, cache)
        if depth < hidden.shape[1]:
            hidden = hidden[:, :depth]
        return hidden, self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:  # [R, k, d] -> [R, k, V]
        return self.mask_unusable((hidden @ self._head).to(self._wide))

    def sequential(
        self,
        hidden: Tensor,  # [R, k, d]
        logits: Tensor,  # [R, k, V]
        contexts: Sequence[Context],
        depths: Sequence[int],
    ) -> list[Draft]:
        """What the heads make of them, slot after slot."""
        return draft_blocks(
            hidden,
            logits,
            contexts,
            depths,
            markov=self._markov,
            confidence=self._confidence,
            deterministic=self.deterministic,
        )

    def _read_features(self, contexts: Sequence[Context]) -> list[int]:
        """Bring the cache of each request up to its anchor, all in one stream; returns their slots."""
        slots = [self._slots.slot(context.request) for context in contexts]
        longest = max(len(context.tokens) for context in contexts) - 1
        cache = self._slots.reserve(longest + self.config.block_size + 1)  # the last one to spare, for replays
        starts = [cache.lengths[slot] for slot in slots]
        counts = [self._unread.count(context.request) for context in contexts]
        for context, start, count in zip(contexts, starts, counts, strict=True):
            self.check_seen(context, start + count)
        new = [i for i, count in enumerate(counts) if count]
        if new:
            unread = [rows for i in new for rows in self._unread.pop(contexts[i].request)]
            features = torch.cat(unread).to(self._backbone.device, self._backbone.dtype)
            rows = Rows([(slots[i], starts[i], counts[i]) for i in new], features.device)
            self._backbone.inject(features, rows, cache)
        return slots

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        """Keep the features [n, taps, d]; they are read at the next proposal, as a part of its cost."""
        self._unread.add(contexts, features)

    def reset(self, request: int) -> None:
        self._unread.pop(request)
        self._slots.release(request)
