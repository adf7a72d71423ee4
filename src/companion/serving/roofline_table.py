r"""A capacity table that nobody measured: the roofline of a target and a DSpark drafter on a device of two known peaks.

    verify(B)    max(2 B N / peak operations, N bytes / bandwidth)     N weights of the layers and the head, read once
    read(L)      L x bytes of one token's keys and values / bandwidth  of each request, once a step
    draft_d(R)   the same for the drafter's layers over the whole block, and the shared head and the Markov head over d
                 slots of it, one after the other

Matrix products and attention alternate, so their times add up. Attention is limited by memory at blocks as short as
these: its operations are left out, as are the drafter's own keys and values, activations, launches and all overheads.
A device reaches neither peak; shapes are what such a table is for.

With ``tile`` above 1 products are as slow as with B rounded up to a multiple of it, as on a device that multiplies in
tiles: that makes the curve jagged.
"""

from __future__ import annotations

from dataclasses import dataclass

from companion.costs import QWEN3_4B, TransformerShape
from companion.roofline import H200, Device, Work, round_work
from companion.scheduling.capacity import CapacityTable, Curve

SIZES = tuple(sorted({round(2 ** (i / 4)) for i in range(57)}))  # 1 to 16384
REQUESTS = tuple(sorted({round(2 ** (i / 4)) for i in range(41)}))  # 1 to 1024


@dataclass(frozen=True, slots=True)
class AnalyticTable(CapacityTable):
    """A `CapacityTable` of arithmetic on published numbers. It has a type of its own so that none of its times can be
    mistaken for measured ones; ``provenance`` says so too."""


def roofline_table(
    shape: TransformerShape = QWEN3_4B,
    device: Device = H200,
    *,
    model: str = "Qwen3-4B",
    gamma: int = 7,
    rank: int = 256,
    drafter_layers: int = 5,
    bytes_per_weight: int = 2,
    longest: int = 8192,
    tile: int = 1,
) -> AnalyticTable:
    """Of ``shape`` at contexts 0 to ``longest``, in bf16 by default. ValueError for a tile below 1, or less than
    nothing of the rest."""
    if tile < 1:
        raise ValueError(f"a tile has at least 1 row, got {tile}")
    if min(gamma, rank, drafter_layers) < 0 or bytes_per_weight < 1 or longest < 1:
        raise ValueError("gamma, rank and drafter_layers must be >= 0, bytes_per_weight and longest at least 1")
    weights = shape.num_hidden_layers * shape.layer_parameters + shape.head_parameters

    def product(tokens: int) -> float:
        return device.seconds(Work(2 * -(-tokens // tile) * tile * weights, weights * bytes_per_weight))

    ridge = device.ridge * bytes_per_weight / 2  # tokens from which on arithmetic decides
    edges = {1, int(ridge), int(ridge) + 1, *SIZES} if tile == 1 else {1}
    edges |= {size for edge in range(tile, 4097, tile) for size in (edge, edge + 1)} if tile > 1 else set()
    sizes = tuple(sorted(edges))
    curve = Curve(sizes, tuple(product(size) for size in sizes))
    keys_and_values = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * bytes_per_weight

    def drafting(requests: int, depth: int) -> float:
        whole, asked = (
            round_work(
                shape,
                gamma=slots,
                rank=rank,
                drafter_layers=drafter_layers,
                batch=requests,
                bytes_per_weight=bytes_per_weight,
            )
            for slots in (gamma, depth)
        )
        parts = whole["drafter's layers"], asked["shared head"], asked["Markov head"]
        return sum(device.seconds(part) for part in parts if part.bytes)

    turns = {int(ridge / slots) for slots in range(1, gamma + 1)} - {0}  # where arithmetic begins to decide a part
    requests = tuple(sorted({*REQUESTS, *turns, *(count + 1 for count in turns)}))
    drafts = tuple(
        Curve(requests, tuple(drafting(count, depth) for count in requests)) for depth in range(1, gamma + 1)
    )
    return AnalyticTable(
        contexts=(0, longest),
        curves=(curve, curve),
        drafts=(drafts, drafts),
        reads=(0.0, longest * keys_and_values / device.bytes_per_second),
        provenance={
            "kind": "analytic roofline, not measured",
            "model": model,
            "device": device.name,
            "flops_per_second": device.flops_per_second,
            "bytes_per_second": device.bytes_per_second,
            "bytes_per_weight": bytes_per_weight,
            "drafter": {"layers": drafter_layers, "markov_rank": rank, "gamma": gamma},
            "tile": tile,
        },
    )
