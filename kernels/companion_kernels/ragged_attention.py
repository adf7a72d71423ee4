r"""ragged_attention: the tokens of many requests in one flat stream, each against its own part of a paged cache.

Row i of the stream belongs to request r(i) and sees the first n(i) keys of it. With q_i of head h and k_j, v_j of the
key/value head that h shares with its group (grouped-query attention),

    out_i = sum_{j < n(i)} w_ij v_j,      w_ij = exp(s q_i . k_j) / sum_{j' < n(i)} exp(s q_i . k_j').

The pair (r, n) is the whole difference between the two uses, and `Stream` holds it:

    verification     n(i) = position of row i + 1                causal inside the new tokens (paper, section 2.1)
    a draft block    n(i) = where the block of r(i) ends         block-diagonal, both directions: what is injected
                                                                 (paper Eq. 3) lies in the cache, the block behind it

Key j of request r lies in page table[r, j div page] at row j mod page; a cache with one block per request is a table of
one column. Keys and values of the new tokens are in the cache already. What lies behind n(i), of a rolled-back draft or
another request, is never loaded, so it may be anything.

Bytes: a program takes all rows and all heads of one request that share a key/value head, so a round reads each
request's keys and values once, sum_r n_r kv_heads d 2 elements, whatever it verifies. Long contexts are cut into
``splits`` pieces, since a small batch would leave most of the device idle; a second kernel joins them.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from companion.kernels.launch import FLOATS, WHOLE, Kernel, interpreting, power_of_two, require, runs_here, values_known

if TYPE_CHECKING:
    import triton.language as tl

MAX_HEAD_DIM = 256
FILLED = 264  # programs that keep a large device busy: two for each of an H200's 132 multiprocessors
MAX_SPLITS = 32


class Stream(NamedTuple):
    """Which request each row belongs to, and how many of its keys it sees. Made once a forward, used by every layer."""

    starts: Tensor  # [R + 1] int32: rows starts[r] to starts[r + 1] - 1 are those of request r
    visible: Tensor  # [N] int32; 0 for a row of no request, whose output is zero
    most: int  # rows that a request is expected to have at most: decides how work is cut, never what comes out

    @classmethod
    def causal(cls, requests: Tensor, positions: Tensor, count: int, most: int) -> Stream:  # [N], [N]
        """Rows see what lies up to their own position. ``requests`` never falls; ``count`` and more fill a batch up."""
        _require_requests(requests)
        require("positions", positions, dtypes=WHOLE, shape=(len(requests),), device=requests.device)
        if values_known(positions) and len(positions) and int(positions.min()) < 0:
            raise ValueError(f"positions must be 0 or more, got {int(positions.min())}")
        return cls(*_placed(requests, positions + 1, count), most)

    @classmethod
    def blocks(cls, requests: Tensor, ends: Tensor, most: int) -> Stream:  # [N], [R]
        """Rows see all of their request, which has ``ends[r]`` keys: their own block and what lies before it."""
        _require_requests(requests)
        require("ends", ends, dtypes=WHOLE, shape=(None,), device=requests.device)
        if not len(ends):
            return cls(*_placed(requests, requests, 0), most)
        return cls(*_placed(requests, ends[requests.clamp(0, len(ends) - 1)], len(ends)), most)


def _require_requests(requests: Tensor) -> None:
    require("requests", requests, dtypes=WHOLE, shape=(None,))
    if values_known(requests) and len(requests) and (int(requests[0]) < 0 or bool((requests.diff() < 0).any())):
        raise ValueError("requests must be 0 or more and never fall: lay the rows of a request side by side, in order")


def _placed(requests: Tensor, visible: Tensor, count: int) -> tuple[Tensor, Tensor]:
    bounds = torch.arange(count + 1, device=requests.device, dtype=requests.dtype)
    starts = torch.searchsorted(requests, bounds, out_int32=True)
    return starts, torch.where(requests < count, visible, 0).int()


def ragged_attention_reference(
    q: Tensor,  # [N, heads, d]
    keys: Tensor,  # [pages, kv_heads, page, d]
    values: Tensor,  # [pages, kv_heads, page, d]
    table: Tensor,  # [R, pages of a request]
    stream: Stream,
    scale: float | None = None,
) -> Tensor:  # [N, heads, d]
    """The same in PyTorch, one request after another, summed in fp32 at least. Waits for the device."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.zeros_like(q)
    starts = stream.starts.tolist()
    for r, (first, last) in enumerate(pairwise(starts)):
        visible = stream.visible[first:last]
        end = int(visible.max()) if first < last else 0
        if not end:
            continue
        pages = table[r, : math.ceil(end / keys.shape[2])].long()
        k, v = (t[pages].transpose(0, 1).flatten(1, 2)[:, :end].to(wide) for t in (keys, values))  # [kv_heads, end, d]
        own = q[first:last].to(wide).unflatten(1, (keys.shape[1], -1))  # [n, kv_heads, group, d]
        scores = torch.einsum("nhgd,hjd->nhgj", own, k) * scale
        hidden = torch.arange(end, device=q.device) >= visible[:, None]  # [n, end]
        weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(-1).nan_to_num()
        out[first:last] = torch.einsum("nhgj,hjd->nhgd", weights, v).flatten(1, 2).to(q.dtype)
    return out


@Kernel
def _attend(  # type: ignore[no-untyped-def]
    q,  # [N, heads, d]
    keys,
    values,
    table,
    starts,
    visible,
    out,  # [N, heads, d]; with splits fp32 [SPLITS, N, heads, d]
    lse,  # [SPLITS, N, heads] fp32, with splits
    scale,
    page_size,
    rows,  # N
    q_row,
    q_head,
    cache_page,
    cache_head,
    cache_row,
    table_row,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows times the heads of a group
    BLOCK_N: tl.constexpr,  # keys
    TILES: tl.constexpr,  # programs that share the rows of a request
    SPLITS: tl.constexpr,
):
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    request, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    kv_head, split = tl.program_id(1), tl.program_id(2)
    first, last = tl.load(starts + request), tl.load(starts + request + 1)
    m, n, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + m % GROUP
    for begin in range(first + tile * TOKENS, last, TILES * TOKENS):
        row = begin + m // GROUP
        held = (m < TOKENS * GROUP) & (row < last)
        row_d = held[:, None] & (d < HEAD_DIM)[None, :]
        ends = tl.load(visible + row, held, 0)
        end = tl.max(ends, 0)
        span = tl.cdiv(tl.cdiv(end, SPLITS), BLOCK_N) * BLOCK_N
        low = split * span
        high = tl.minimum(low + span, end)
        wide_row = row.to(tl.int64)
        query = tl.load(q + (wide_row * q_row + head * q_head)[:, None] + d[None, :], row_d, 0)
        peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        for key in range(low, high, BLOCK_N):
            position = key + n
            there = position < high
            page = tl.load(table + request * table_row + position // page_size, there, 0).to(tl.int64)
            place = page * cache_page + kv_head * cache_head + (position % page_size) * cache_row
            key_d = there[:, None] & (d < HEAD_DIM)[None, :]
            k = tl.load(keys + place[:, None] + d[None, :], key_d, 0)
            v = tl.load(values + place[:, None] + d[None, :], key_d, 0)
            scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            seen = there[None, :] & (position[None, :] < ends[:, None])
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(peak, tl.max(scores, 1))
            shift = tl.where(higher == float("-inf"), 0.0, higher)  # a row that sees none of these keys yet
            weights = tl.exp(scores - shift[:, None])
            kept = tl.exp(peak - shift)
            total = total * kept + tl.sum(weights, 1)
            acc = acc * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            peak = higher
        total = tl.where(total > 0, total, 1.0)
        acc = acc / total[:, None]
        place = (split * rows + wide_row) * HEADS + head
        tl.store(out + place[:, None] * HEAD_DIM + d[None, :], acc.to(out.dtype.element_ty), row_d)
        if SPLITS > 1:
            tl.store(lse + place, peak + tl.log(total), held)


@Kernel
def _join(  # type: ignore[no-untyped-def]
    parts,  # [SPLITS, N, heads, d] fp32
    lse,  # [SPLITS, N, heads] fp32
    visible,
    out,  # [N, heads, d]
    rows,  # N
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, d = tl.arange(0, SPLITS), tl.arange(0, BLOCK_D)
    seen = tl.load(visible + row) > 0
    place = (s * rows + row) * HEADS + head
    own = tl.load(lse + place, (s < SPLITS) & seen, float("-inf"))
    peak = tl.max(own, 0)
    weights = tl.exp(own - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weights, 0)
    part = tl.load(parts + place[:, None] * HEAD_DIM + d[None, :], (weights > 0)[:, None] & (d < HEAD_DIM)[None, :], 0)
    joined = tl.sum(part * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + (row * HEADS + head) * HEAD_DIM + d, joined.to(out.dtype.element_ty), d < HEAD_DIM)


def ragged_attention(
    q: Tensor,  # [N, heads, d]
    keys: Tensor,  # [pages, kv_heads, page, d]
    values: Tensor,  # [pages, kv_heads, page, d], strides of ``keys``
    table: Tensor,  # [R, pages of a request] int32 or int64
    stream: Stream,
    scale: float | None = None,  # None: 1 / sqrt(d)
    splits: int | None = None,  # a power of 2; None: as many as fill a large device
) -> Tensor:  # [N, heads, d]
    """Attention of every row over the keys that its request holds and it may see.

    ValueError for dtypes, shapes, strides or devices that the kernel does not take, and on a CPU for page numbers
    outside the cache and rows that see more than the table holds; on a GPU those are not read first, so the table must
    be right. Rows with equal keys, rows and ``splits`` come out bit by bit the same in every batch.
    """
    _check(q, keys, values, table, stream)
    count, heads, d = q.shape
    requests, kv_heads, page = len(table), keys.shape[1], keys.shape[2]
    if splits is not None and (not 1 <= splits <= MAX_SPLITS or splits != power_of_two(splits)):
        raise ValueError(f"splits must be a power of 2 from 1 to {MAX_SPLITS}, got {splits}")
    if not runs_here(q):
        return ragged_attention_reference(q, keys, values, table, stream, scale)
    group = heads // kv_heads
    block_m = max(16, min(64, power_of_two(max(1, stream.most) * group)), power_of_two(group))
    tiles = max(1, math.ceil(stream.most / (block_m // group)))
    if splits is None:
        splits = _enough_splits(requests * tiles * kv_heads, table.shape[1] * page)
    block_n = 128 if interpreting() else 64 if d <= 128 else 32
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    parts, lse = out, out
    if splits > 1:
        parts = q.new_empty((splits, count, heads, d), dtype=torch.float32)
        lse = q.new_empty((splits, count, heads), dtype=torch.float32)
    sizes = {"HEADS": heads, "HEAD_DIM": d, "BLOCK_D": max(16, power_of_two(d)), "SPLITS": splits}
    scale = d**-0.5 if scale is None else scale
    strides = (q.stride(0), q.stride(1), *keys.stride()[:3], table.stride(0))
    operands = (q, keys, values, table, stream.starts, stream.visible, parts, lse, scale, page, count, *strides)
    cut = {"GROUP": group, "BLOCK_M": block_m, "BLOCK_N": block_n, "TILES": tiles}
    _attend[requests * tiles, kv_heads, splits](*operands, **sizes, **cut, num_warps=8, num_stages=2)
    if splits > 1:
        _join[count, heads](parts, lse, stream.visible, out, count, **sizes, num_warps=2)
    return out


def _enough_splits(programs: int, keys: int) -> int:
    """So many that the programs fill a device, but not so many that a piece of the longest context has few keys."""
    if interpreting():
        return 1
    least = power_of_two(math.ceil(FILLED / max(1, programs)))
    return max(1, min(MAX_SPLITS, least, power_of_two(math.ceil(keys / 128))))


def _check(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, stream: Stream) -> None:
    require("q", q, dtypes=FLOATS, shape=(None, None, None))
    count, heads, d = q.shape
    require("keys", keys, dtypes=(q.dtype,), shape=(None, None, None, d), device=q.device)
    require("values", values, dtypes=(q.dtype,), shape=tuple(keys.shape), device=q.device)
    require("table", table, dtypes=WHOLE, shape=(None, None), device=q.device)
    require("stream.starts", stream.starts, dtypes=WHOLE, shape=(len(table) + 1,), device=q.device)
    require("stream.visible", stream.visible, dtypes=WHOLE, shape=(count,), device=q.device)
    if values.stride() != keys.stride():
        raise ValueError(f"keys have strides {keys.stride()} and values {values.stride()}; lay both out alike")
    if not keys.shape[1] or heads % keys.shape[1]:
        raise ValueError(f"{heads} query heads cannot share {keys.shape[1]} key/value heads evenly")
    if not 1 <= d <= MAX_HEAD_DIM or heads // keys.shape[1] > 64:
        raise ValueError(f"the kernel holds heads of 1 to {MAX_HEAD_DIM} numbers in groups of at most 64, got {d}")
    if values_known(table) and table.numel() and not 0 <= int(table.min()) <= int(table.max()) < len(keys):
        raise ValueError(f"table names pages {int(table.min())} to {int(table.max())} of a cache of {len(keys)}")
    most = int(stream.visible.max()) if values_known(stream.visible) and count else 0
    if most > table.shape[1] * keys.shape[2]:
        raise ValueError(f"a row sees {most} keys and the table has pages for {table.shape[1] * keys.shape[2]}")


def _example(dtype: torch.dtype, requests: int, pages: int) -> Tensor:
    """Qwen3-4B's attention on 8 new rows of each request, with a page for 4,096 tokens."""
    markers = torch.empty(8 * requests, dtype=torch.int32, device="meta")
    q = torch.empty(8 * requests, 32, 128, dtype=dtype, device="meta")
    cache = torch.empty(requests * pages, 8, 4096, 128, dtype=dtype, device="meta")
    table = torch.empty(requests, pages, dtype=torch.int32, device="meta")
    return ragged_attention(q, cache, cache, table, Stream.causal(markers, markers, requests, 8))


EXAMPLES = {
    "ragged_attention": lambda: _example(torch.bfloat16, 64, 1),
    "ragged_attention fp32": lambda: _example(torch.float32, 64, 1),
    "ragged_attention, small batch": lambda: _example(torch.bfloat16, 1, 4),
}
