"""Names to drafters."""

from __future__ import annotations

from typing import Literal

from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.load import EMBEDDED, TextTarget, load_target
from companion.protocols import Drafter


def load_drafter(
    name: str | None,
    target: TextTarget,
    *,
    max_depth: int | None = None,
    proposal: Literal["sampled", "greedy"] = "sampled",
    revision: str | None = None,
) -> Drafter | None:
    """A drafter for ``target``: "none", "lookup", "draft" (the embedded draft model), a folder, or a hub id.

    ``max_depth`` None means the drafter's own default; ``proposal`` applies to draft models. Raises ValueError for an
    unknown name and for a model whose tokenizer is not the target's.
    """
    if name is None or name == "none":
        return None
    if max_depth is not None and (not hasattr(max_depth, "__index__") or max_depth < 1):
        raise ValueError(
            f"max_depth must be an integer of at least 1, got {max_depth}; use drafter 'none' for plain decoding"
        )
    if name == "lookup":
        return LookupDrafter(target.vocab_size, max_depth=max_depth or 8)
    name = "tiny-qwen3-draft" if name == "draft" else name
    try:
        model = load_target(name, device=target.device, dtype=target.dtype, revision=revision)
    except ValueError as error:
        raise ValueError(
            f"no drafter {name!r} ('lookup', 'draft', 'none', {', '.join(EMBEDDED)}, folder, hub id): {error}"
        ) from error
    if model.vocab_size != target.vocab_size or _vocabulary(model) != _vocabulary(target):
        raise ValueError(
            f"the draft model {name} and the target {target.name} have different vocabularies "
            f"({model.vocab_size} and {target.vocab_size} tokens): a draft model must share the target's tokenizer"
        )
    return ModelDrafter(model, max_depth=max_depth or 5, proposal=proposal)


def _vocabulary(model: TextTarget) -> dict[str, int] | None:
    return None if model.tokenizer is None else model.tokenizer.get_vocab()
