"""What drafters that read the target's features have in common: options, limits, and the features they are owed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor

from companion.engine.target import Qwen3Shape
from companion.protocols import Context


class DrafterOptions(TypedDict, total=False):
    """``max_depth`` None is the depth of training. ``proposal`` "sampled" draws each token from q after the request's
    own temperature and filters, "greedy" takes the argmax. ``usable_vocab`` as in `Qwen3Target`: ids beyond are never
    drafted."""

    name: str
    max_depth: int | None
    proposal: Literal["sampled", "greedy"]
    device: torch.device | str
    dtype: torch.dtype
    usable_vocab: int | None


class NeuralDrafter:
    """The identity that the `Drafter` protocol asks for. ValueError on an unknown proposal or a depth out of range."""

    def __init__(
        self,
        kind: str,
        shape: Qwen3Shape,
        taps: Sequence[int],
        trained_depth: int,
        *,
        deeper: bool = False,  # it may be asked for more than it was trained for
        **options: Unpack[DrafterOptions],
    ) -> None:
        self.name, self.taps = options.get("name", kind), taps
        proposal, max_depth = options.get("proposal", "sampled"), options.get("max_depth")
        if proposal not in ("sampled", "greedy"):
            raise ValueError(f"proposal must be 'sampled' or 'greedy', got {proposal!r}")
        if max_depth is not None and (max_depth < 1 or (max_depth > trained_depth and not deeper)):
            raise ValueError(
                f"drafter {self.name} proposes at most {trained_depth} tokens, and max_depth is {max_depth}: ask for "
                f"1 to {trained_depth}"
            )
        self.max_depth = max_depth or trained_depth
        self.deterministic = proposal == "greedy"
        self.vocab_size, self.max_context = shape.vocab_size, shape.max_context
        self.usable_vocab = options.get("usable_vocab") or shape.vocab_size
        self.device, self.dtype = torch.device(options.get("device", "cpu")), options.get("dtype", torch.float32)

    def check_depths(self, depths: Sequence[int]) -> None:
        """ValueError where more is asked for than one round can give."""
        deepest = max(depths, default=0)
        if deepest > self.max_depth:
            raise ValueError(f"drafter {self.name} proposes at most {self.max_depth} tokens, {deepest} were asked for")

    def check_seen(self, context: Context, known: int) -> None:
        """ValueError unless the features of all tokens before the anchor are there."""
        if known != len(context.tokens) - 1:
            raise ValueError(
                f"drafter {self.name} has the target's features of {known} tokens of request {context.request}, whose "
                f"text has {len(context.tokens) - 1} before its last: call observe after each round"
            )

    def mask_unusable(self, logits: Tensor) -> Tensor:  # [..., V], in place
        if self.usable_vocab < self.vocab_size:
            logits[..., self.usable_vocab :] = float("-inf")
        return logits


class Unread:
    """Features [n, taps, d] of committed tokens that wait for their request's next draft, and count as its cost."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Tensor]] = {}

    def __len__(self) -> int:
        """Requests that have some."""
        return len(self._rows)

    def add(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        for context, rows in zip(contexts, features, strict=True):
            if rows is not None and len(rows):
                self._rows.setdefault(context.request, []).append(rows)

    def count(self, request: int) -> int:
        return sum(map(len, self._rows.get(request, ())))

    def pop(self, request: int) -> list[Tensor]:
        return self._rows.pop(request, [])
