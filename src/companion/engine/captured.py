"""The target's forward as replays: the plain step and verification, one for each bucket of rows and requests.

A stream of n rows is padded to its bucket with rows of no request. Attention gives them nothing to see and zeros to go
on with; their keys and values go to one place behind the newest token of a request with room, where a rejected draft
would lie as well and nobody reads. Requests are filled up to a power of 2 with such as have no rows.

What is too long for a bucket, a prompt as a rule, goes the ordinary way, and so does a round in which no request has a
place to spare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from companion.engine.cache import Cache
from companion.engine.paged import Paged
from companion.engine.replay import Recorded, Staged, bucket
from companion.kernels.launch import power_of_two
from companion.kernels.ragged_attention import Stream
from companion.protocols import RaggedBatch, TargetOutput

LONGEST = 16  # rows of a request in one step: beyond it, this is a prompt

Run = Callable[[Tensor, Tensor, "StagedPlan", tuple[int, ...]], TargetOutput]  # tokens, positions, plan, taps


class Bucket(NamedTuple):
    """What a replay was recorded for."""

    rows: int
    requests: int
    most: int  # rows of one request
    taps: tuple[int, ...]

    @classmethod
    def of(cls, batch: RaggedBatch, taps: Sequence[int]) -> Bucket | None:
        """The smallest that holds ``batch``; None when it is too long for any."""
        most = max(stop - start for start, stop in zip(batch.starts, batch.starts[1:], strict=False))
        rows = bucket(batch.starts[-1])
        if rows is None or most > LONGEST:
            return None
        return cls(rows, power_of_two(len(batch.slots)), power_of_two(most), tuple(taps))


class StagedPlan(Paged):
    """A `Plan` whose numbers lie in fixed buffers; to be made inside what is recorded, for it makes tensors of them."""

    def __init__(self, staged: Staged, most: int, cached: tuple[Tensor, ...]) -> None:
        self.layers, self.cached = len(cached) // 2, cached  # keys of each layer, then values
        self.table, self.places = staged["table"].view(-1, 1), (staged["slots"], staged["positions"])
        self.stream = Stream(staged["starts"].int(), staged["visible"].int(), most)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:  # [N, kv_heads, d] twice
        slots, positions = self.places
        for new, cached in ((keys, self.cached[layer]), (values, self.cached[layer + self.layers])):
            cached[slots, :, positions] = new


def _recorded(run: Run, found: Bucket, cache: Cache) -> Recorded:
    memory = cache.both.unbind()  # and not the cache, which owns what is recorded

    def function(staged: Staged) -> tuple[Tensor, ...]:
        plan = StagedPlan(staged, found.most, memory)
        output = run(staged["tokens"], staged["positions"], plan, found.taps)
        return (output.logits,) if output.features is None else (output.logits, output.features)

    rows = dict.fromkeys(("tokens", "slots", "positions", "visible"), found.rows)
    sizes = rows | {"table": found.requests, "starts": found.requests + 1}
    return Recorded(function, sizes, cache.both.device)


def forward(run: Run, batch: RaggedBatch, cache: Cache, taps: Sequence[int]) -> TargetOutput | None:
    """What the ordinary forward gives, or None where no bucket holds the batch.

    ``logits`` are a view of the bucket's output and good until the next forward; features, which drafters keep for
    longer, are a copy. Replays belong to the cache whose memory they address, and go with it.
    """
    found = Bucket.of(batch, taps)
    spare = _spare(batch, cache)
    if found is None or (spare is None and found.rows > batch.starts[-1]):
        return None
    rows, requests = batch.starts[-1], len(batch.slots)
    idle = found.rows - rows
    slots: list[int] = []
    positions: list[int] = []
    for slot, start, stop, length in zip(batch.slots, batch.starts, batch.starts[1:], batch.lengths, strict=False):
        slots += [slot] * (stop - start)
        positions += range(length, length + stop - start)
    slot, place = spare or (0, 0)
    if found not in cache.recorded:
        cache.recorded[found] = _recorded(run, found, cache)
    recorded = cache.recorded[found]
    recorded.staged.fill(
        tokens=[0] * found.rows,
        table=batch.slots + [batch.slots[0]] * (found.requests - requests),
        starts=batch.starts + [rows] * (found.requests - requests),
        slots=slots + [slot] * idle,
        positions=positions + [place] * idle,
        visible=[position + 1 for position in positions] + [0] * idle,
    )
    recorded.staged["tokens"][:rows].copy_(batch.tokens)
    logits, *features = recorded()
    logits = logits[:rows] if batch.logit_rows is None else logits[batch.logit_rows]
    return TargetOutput(logits, features[0][:rows].clone() if features else None)


def _spare(batch: RaggedBatch, cache: Cache) -> tuple[int, int] | None:
    """A slot of the batch and a place in it that nobody reads: behind what this forward appends."""
    for slot, start, stop, length in zip(batch.slots, batch.starts, batch.starts[1:], batch.lengths, strict=False):
        if length + stop - start < cache.capacity:
            return slot, length + stop - start
    return None
