"""The parallel part of drafting as replays: backbone and head over the blocks of a batch, one for each power of 2.

Requests that fill a batch up have a block of their own, which sees nothing and is thrown away; its keys and values go
to one place behind the first request's block, which nobody reads. Reading the target's features before it and drawing
the tokens behind it go the ordinary way: the first has another length every round, the second holds the random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from companion.drafters.dspark.fused import FusedBackbone
from companion.engine.cache import Cache
from companion.engine.captured import StagedPlan
from companion.engine.replay import Recorded, Staged
from companion.kernels.launch import power_of_two

Head = Callable[[Tensor], Tensor]  # h_k [R, k, d] -> U_k [R, k, V]


def parallel(
    backbone: FusedBackbone, head: Head, anchors: Sequence[int], slots: list[int], cache: Cache
) -> tuple[Tensor, ...]:
    """`FusedBackbone.hidden` and the head behind it: h_k [R, gamma, d] and U_k [R, gamma, V], good until the next call.

    ``cache`` must have a row to spare behind each block.
    """
    size, requests, lengths = backbone.config.block_size, power_of_two(len(slots)), [cache.lengths[s] for s in slots]
    if requests not in cache.recorded:
        cache.recorded[requests] = _recorded(backbone, head, requests, cache)
    recorded = cache.recorded[requests]
    rows, idle = len(slots) * size, (requests - len(slots)) * size
    recorded.staged.fill(
        tokens=backbone.blocks(anchors) + [0] * idle,
        table=slots + [slots[0]] * (requests - len(slots)),
        starts=[min(i * size, rows) for i in range(requests + 1)],
        slots=[slot for slot in slots for _ in range(size)] + [slots[0]] * idle,
        positions=[length + i for length in lengths for i in range(size)] + [lengths[0] + size] * idle,
        visible=[length + size for length in lengths for _ in range(size)] + [0] * idle,
    )
    return tuple(output[: len(slots)] for output in recorded())


def _recorded(backbone: FusedBackbone, head: Head, requests: int, cache: Cache) -> Recorded:
    memory = cache.both.unbind()  # and not the cache, which owns what is recorded

    def function(staged: Staged) -> tuple[Tensor, ...]:
        plan = StagedPlan(staged, backbone.config.block_size, memory)
        hidden = backbone.block(staged["tokens"], staged["positions"], plan)
        return hidden, head(hidden)

    rows = dict.fromkeys(("tokens", "slots", "positions", "visible"), requests * backbone.config.block_size)
    return Recorded(function, rows | {"table": requests, "starts": requests + 1}, cache.both.device)
