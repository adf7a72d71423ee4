"""DSpark behind the `Drafter` protocol; DFlash is rank 0."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from companion.drafters.dspark.fused import FusedBackbone, Rows, product_form
from companion.drafters.dspark.model import DSparkModel
from companion.drafters.dspark.sequential import draft_blocks
from companion.drafters.slots import Slots
from companion.protocols import Context, Draft


class DSparkDrafter:
    """Drafts a block in one parallel forward and a short sequential loop.

    Its cache holds, for every position before the anchor, keys and values made from the target's features of that
    position; it is kept across rounds and grows by what the target took in for good. ``max_depth`` None is the length
    it was trained for; fewer tokens may be asked for, and the block is still computed whole. ``proposal`` "sampled"
    draws each token from q after the request's own temperature and filters, "greedy" takes the argmax. ``usable_vocab``
    as in `Qwen3Target`: ids beyond are never drafted. Trained weights are copied, so the model may go on training; the
    frozen embedding and head are shared.
    """

    def __init__(
        self,
        model: DSparkModel,
        *,
        name: str = "dspark",
        max_depth: int | None = None,
        proposal: Literal["sampled", "greedy"] = "sampled",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        usable_vocab: int | None = None,
    ) -> None:
        if proposal not in ("sampled", "greedy"):
            raise ValueError(f"proposal must be 'sampled' or 'greedy', got {proposal!r}")
        config = model.config
        if max_depth is not None and not 1 <= max_depth <= config.proposal_length:
            raise ValueError(
                f"drafter {name} was trained to propose {config.proposal_length} tokens, and max_depth is {max_depth}: "
                f"ask for 1 to {config.proposal_length}"
            )
        self.name, self.config = name, config
        self.max_depth = max_depth or config.proposal_length
        self.vocab_size, self.max_context = config.shape.vocab_size, config.shape.max_context
        self.usable_vocab = usable_vocab or self.vocab_size
        self.deterministic = proposal == "greedy"
        self.taps: Sequence[int] = config.target_layer_ids
        device = torch.device(device)
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
        self._unread: dict[int, list[Tensor]] = {}  # features that wait for the request's next draft

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        drafts = [Draft([]) for _ in contexts]
        drafting = [i for i, depth in enumerate(depths) if depth]
        if not drafting:
            return drafts
        chosen, wanted = [contexts[i] for i in drafting], [depths[i] for i in drafting]
        deepest = max(wanted)
        if deepest > self.max_depth:
            raise ValueError(f"drafter {self.name} proposes at most {self.max_depth} tokens, {deepest} were asked for")
        slots = self._read_features(chosen)
        hidden = self._backbone.hidden([c.tokens[-1] for c in chosen], slots, self._slots.cache)[:, :deepest]
        logits = (hidden @ self._head).to(self._wide)  # U_k
        if self.usable_vocab < self.vocab_size:
            logits[..., self.usable_vocab :] = float("-inf")
        blocks = draft_blocks(
            hidden,
            logits,
            chosen,
            wanted,
            markov=self._markov,
            confidence=self._confidence,
            deterministic=self.deterministic,
        )
        for i, block in zip(drafting, blocks, strict=True):
            drafts[i] = block
        return drafts

    def _read_features(self, contexts: Sequence[Context]) -> list[int]:
        """Bring the cache of each request up to its anchor, all in one stream; returns their slots."""
        slots = [self._slots.slot(context.request) for context in contexts]
        cache = self._slots.reserve(max(len(context.tokens) for context in contexts) - 1 + self.config.block_size)
        starts = [cache.lengths[slot] for slot in slots]
        counts = [sum(map(len, self._unread.get(context.request, ()))) for context in contexts]
        for context, start, count in zip(contexts, starts, counts, strict=True):
            if start + count != len(context.tokens) - 1:
                raise ValueError(
                    f"drafter {self.name} has the target's features of {start + count} tokens of request "
                    f"{context.request}, whose text has {len(context.tokens) - 1} before its last: call observe after "
                    "each round"
                )
        new = [i for i, count in enumerate(counts) if count]
        if new:
            unread = [rows for i in new for rows in self._unread.pop(contexts[i].request)]
            features = torch.cat(unread).to(self._backbone.device, self._backbone.dtype)
            rows = Rows([(slots[i], starts[i], counts[i]) for i in new], features.device)
            self._backbone.inject(features, rows, cache)
        return slots

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        """Keep the features [n, taps, d]; they are read at the next proposal, as a part of its cost."""
        for context, rows in zip(contexts, features, strict=True):
            if rows is not None and len(rows):
                self._unread.setdefault(context.request, []).append(rows)

    def reset(self, request: int) -> None:
        self._unread.pop(request, None)
        self._slots.release(request)
