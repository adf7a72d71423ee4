"""Which positions of a training text a drafter learns from, and how their blocks are packed into one forward.

A block begins at an anchor a and is asked for the tokens a + 1, a + 2, ...; it sees the target's features of positions
0 to a - 1, since the anchor's own are not known when it is drafted from, and its own tokens. Many anchors of a text go
through the drafter together: their blocks lie side by side, and the mask bounds each to the text before its own anchor
and to itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class BlockLayout(Protocol):
    """What packing asks of a drafter's configuration."""

    @property
    def block_size(self) -> int:
        """Tokens fed per block, the anchor first."""
        ...

    @property
    def proposal_length(self) -> int:
        """gamma: predictions per block, made by the last so many of the tokens fed."""
        ...

    @property
    def mask_token_id(self) -> int:
        """What is fed behind the anchor."""
        ...


def sample_anchors(
    loss_mask: Tensor,  # [B, T] nonzero where the text is to be learnt
    count: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """``count`` anchors of each text, in order, without repetition: positions [B, A] and which are real [B, A] bool.

    An anchor needs the mask at its own and at the next position. A text with fewer of them is filled up with position
    0, marked as not real.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1 anchor per text, got {count}")
    learnt = loss_mask.bool()
    eligible = learnt[:, :-1] & learnt[:, 1:]
    if eligible.shape[1] < count:
        eligible = torch.nn.functional.pad(eligible, (0, count - eligible.shape[1]))
    scores = torch.rand(eligible.shape, generator=generator, device="cpu").to(eligible.device)
    best = scores.masked_fill(~eligible, -1.0).topk(count, dim=1)
    real = best.values >= 0.0
    last = eligible.shape[1]
    order = best.indices.masked_fill(~real, last).sort(dim=1).values  # the real ones first
    return order.masked_fill(order == last, 0), order < last


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """The blocks of a batch as one sequence per text, and what each prediction is compared with.

    N = A * block_size tokens are fed, A * gamma predictions come out.
    """

    tokens: Tensor  # [B, N] anchors and masks
    positions: Tensor  # [B, N] absolute
    visible: Tensor  # [B, 1, N, T + N] bool
    previous: Tensor  # [B, A, gamma] the true token before each predicted one: the heads are teacher-forced
    labels: Tensor  # [B, A, gamma]
    source: Tensor  # [B, A, gamma] position whose target state predicts the label
    supervised: Tensor  # [B, A, gamma] bool: the label and all before it in the block are inside text and loss mask


def pack_blocks(
    input_ids: Tensor,  # [B, T]
    loss_mask: Tensor,  # [B, T]
    anchors: Tensor,  # [B, A]
    real: Tensor,  # [B, A] bool
    config: BlockLayout,
) -> PackedBlocks:
    """Lay the blocks of all anchors side by side."""
    batch, length = input_ids.shape
    size, gamma, device = config.block_size, config.proposal_length, input_ids.device
    positions = (anchors[..., None] + torch.arange(size, device=device)).flatten(1)  # [B, N]
    tokens = torch.full((*anchors.shape, size), config.mask_token_id, device=device)
    tokens[..., 0] = input_ids.gather(1, anchors)

    source = anchors[..., None] + torch.arange(gamma, device=device)  # [B, A, gamma]
    inside = source + 1 < length
    rows = torch.arange(batch, device=device)[:, None, None]
    label_at = (source + 1).clamp(max=length - 1)
    learnt = inside & loss_mask.bool()[rows, label_at] & real[..., None]
    source = source.clamp(max=length - 1)

    block = torch.arange(anchors.shape[1], device=device).repeat_interleave(size)  # [N] which block a row is of
    before = torch.arange(length, device=device) < anchors[:, block, None]  # [B, N, T]
    same = (block[:, None] == block).expand(batch, -1, -1)  # [B, N, N]
    return PackedBlocks(
        tokens=tokens.flatten(1),
        positions=positions,
        visible=torch.cat([before, same], -1)[:, None],
        previous=input_ids[rows, source],
        labels=input_ids[rows, label_at],
        source=source,
        supervised=learnt.long().cumprod(-1).bool(),
    )
