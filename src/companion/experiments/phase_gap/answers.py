"""How sure the answer is: the entropy behind an appended `</think>` (arXiv:2509.26522), at every anchor of a span.

When a round is planned its anchor has not been read. So the end of the span is put in the anchor's place, behind what
was read before it: in a decoding loop this is one row more in the forward that verified, taken back by its length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget
from companion.engine.target import ragged
from companion.kernels.probe import moments


def answer_entropies(
    target: TextTarget, responses: Sequence[GenerationResult], cue: str = ""
) -> list[dict[int, float]]:
    """Of each response, round number -> entropy in nats of the token behind `</think>` and ``cue``.

    For rounds that begin inside a span. A response is read once, and its anchors are taken from the last to the first,
    so that what a probe overwrites is not needed any more. ValueError for a target without a `</think>` token.
    """
    if target.tags.close is None:
        raise ValueError(f"{target.name} has no token that ends a think span, so there is no answer to ask for early")
    tail = [target.tags.close, *(target.encode(cue) if cue else ())]
    texts = [[*r.prompt_tokens, *r.tokens] for r in responses]
    inside = [[row for row in r.rounds if row.phases[0] == "think"] for r in responses]
    found: list[dict[int, float]] = [{} for _ in responses]
    if not any(inside):
        return found
    cache = target.new_cache(len(texts), max(map(len, texts)) + len(tail))
    with torch.inference_mode():
        target.forward(ragged([(slot, 0, text) for slot, text in enumerate(texts)], target.device), cache)
        while any(inside):
            probed = [(slot, rows.pop()) for slot, rows in enumerate(inside) if rows]
            for slot, row in probed:
                cache.rollback(slot, row.position - 1)
            batch = ragged([(slot, row.position - 1, tail) for slot, row in probed], target.device)
            batch.logit_rows = torch.tensor(batch.starts[1:], device=target.device) - 1
            entropy = moments(target.forward(batch, cache).logits).entropy.tolist()
            for (slot, row), value in zip(probed, entropy, strict=True):
                found[slot][row.round] = value
    return found
