"""Many blocks over one text in one forward: what the target would say after each draft, at every anchor at once.

The mask is block-diagonal: a block sees the text before its own anchor and, causally, itself, at its absolute
positions, and no other block. Each row is the one that the engine computes when it verifies that block alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.engine.cache import Cache
from companion.engine.target import Qwen3Target


class BlockPlan:
    """Attention of A blocks of n tokens, laid side by side, over the text in a slot of the cache.

    The text's keys are shared, the blocks' own live for one layer: nothing is written to the cache.
    """

    def __init__(self, anchors: Tensor, size: int, cache: Cache, slot: int) -> None:  # [A] positions in the text
        blocks, device = len(anchors), cache.keys.device
        end = int(anchors.max())  # text that at least one block sees
        text = (torch.arange(end, device=device) < anchors[:, None, None]).expand(-1, size, -1)
        own = torch.ones(size, size, dtype=torch.bool, device=device).tril().expand(blocks, -1, -1)
        hidden = ~torch.cat([text, own], -1)[:, None]  # [A, 1, n, end + n]
        self.mask = torch.zeros(hidden.shape, device=device, dtype=cache.keys.dtype)
        self.mask.masked_fill_(hidden, float("-inf"))
        self.size, self.text = size, (cache.keys[:, slot, :, :end], cache.values[:, slot, :, :end])
        self.own: tuple[Tensor, Tensor]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:  # [A n, kv_heads, d] twice
        self.own = (self._blocks(keys), self._blocks(values))

    def attend(self, layer: int, q: Tensor) -> Tensor:  # [A n, heads, d] -> [A n, heads * d]
        k, v = (
            torch.cat([text[layer].expand(len(own), -1, -1, -1), own], 2)
            for text, own in zip(self.text, self.own, strict=True)
        )
        out = F.scaled_dot_product_attention(self._blocks(q), k, v, attn_mask=self.mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(len(q), -1)

    def _blocks(self, rows: Tensor) -> Tensor:  # [A n, h, d] -> [A, h, n, d]
        return rows.unflatten(0, (-1, self.size)).transpose(1, 2)


@torch.inference_mode()
def block_logits(
    target: Qwen3Target,
    cache: Cache,
    slot: int,
    anchors: Sequence[int],  # [A] positions
    blocks: Tensor,  # [A, n] the anchor's token, then the draft
) -> Tensor:
    """The target's logits [A, n, V]: row k of a block is what it says after the block's tokens 0 to k.

    ``cache`` holds in ``slot`` the text before the last anchor, and stays as it is. ValueError when it holds less, or
    where a block would run past the target's context.
    """
    if not len(anchors):
        raise ValueError("there are no anchors; give the position of at least one")
    size, last = blocks.shape[1], max(anchors)
    if not 0 <= min(anchors) <= last <= cache.lengths[slot]:
        raise ValueError(
            f"anchors lie at positions {min(anchors)} to {last}, and slot {slot} holds {cache.lengths[slot]} tokens of "
            "text: read the text before the last anchor first"
        )
    if last + size > target.max_context:
        raise ValueError(
            f"a block of {size} tokens at position {last} runs past the context of {target.name}, which holds "
            f"{target.max_context}: leave the last anchors out"
        )
    at = torch.tensor(anchors, device=target.device)
    positions = at[:, None] + torch.arange(size, device=target.device)
    plan = BlockPlan(at, size, cache, slot)
    return target.stream(blocks.flatten(), positions.flatten(), plan).logits.unflatten(0, blocks.shape)
