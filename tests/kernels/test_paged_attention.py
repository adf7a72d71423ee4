"""ragged_attention against a loop over rows in fp64: the two markers, pages, groups, splits, and what is refused."""

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from companion.kernels.launch import recording
from companion.kernels.ragged_attention import Stream, ragged_attention, ragged_attention_reference

TOLERANCE = 3e-6  # fp32 sums of up to 1,000 products, relative to values of size 1


class Case(NamedTuple):
    q: Tensor
    keys: Tensor
    values: Tensor
    table: Tensor
    requests: Tensor
    lengths: list[int]  # keys before the new rows
    new: list[int]

    @property
    def most(self) -> int:
        return max([1, *self.new])

    def causal(self) -> Stream:
        positions = [n + i for n, k in zip(self.lengths, self.new, strict=True) for i in range(k)]
        return Stream.causal(self.requests, torch.tensor(positions, dtype=torch.int64), len(self.new), self.most)

    def blocks(self) -> Stream:
        ends = torch.tensor([n + k for n, k in zip(self.lengths, self.new, strict=True)])
        return Stream.blocks(self.requests, ends, self.most)


def case(lengths: list[int], new: list[int], *, heads: int = 4, kv_heads: int = 2, d: int = 16, page: int = 16) -> Case:
    """Requests with scattered pages; all that no row may see is NaN."""
    generator = torch.Generator().manual_seed(len(new) + sum(lengths) + 7 * sum(new) + d)
    width = max([1, *(math.ceil((n + k) / page) for n, k in zip(lengths, new, strict=True))])
    pages = torch.randperm(len(new) * width + 1, generator=generator)
    table = pages[: len(new) * width].view(len(new), width)
    shape = (len(pages), kv_heads, page, d)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    for r, end in enumerate(n + k for n, k in zip(lengths, new, strict=True)):
        for j in range(end, width * page):
            keys[table[r, j // page], :, j % page] = values[table[r, j // page], :, j % page] = math.nan
    requests = torch.repeat_interleave(torch.arange(len(new)), torch.tensor(new, dtype=torch.int64))
    q = torch.randn(len(requests), heads, d, generator=generator)
    return Case(q, keys, values, table, requests, lengths, new)


def by_rows(c: Case, stream: Stream) -> Tensor:
    """The definition, row by row and head by head."""
    out = torch.zeros(c.q.shape, dtype=torch.float64)
    group, page = c.q.shape[1] // c.keys.shape[1], c.keys.shape[2]
    for i, r in enumerate(c.requests.tolist()):
        places = [(c.table[r, j // page], j % page) for j in range(int(stream.visible[i]))]
        for h in range(c.q.shape[1]):
            k, v = (torch.stack([t[p, h // group, o] for p, o in places]).double() for t in (c.keys, c.values))
            out[i, h] = (k @ c.q[i, h].double() / math.sqrt(c.q.shape[2])).softmax(0) @ v
    return out


SHAPES = [
    case([5, 0, 40], [3, 1, 8]),
    case([17], [1], heads=1, kv_heads=1, d=1, page=1),
    case([0, 300, 3, 31], [16, 0, 1, 7], heads=5, kv_heads=1, d=24, page=32),
    case([129, 64], [8, 8], heads=6, kv_heads=2, d=80, page=200),
    case([33, 2, 95], [0, 0, 2], heads=8, kv_heads=8, d=32, page=7),
]


def test_the_markers_say_what_a_row_may_see() -> None:
    c = case([5, 0, 40], [3, 1, 2])
    assert c.causal().starts.tolist() == c.blocks().starts.tolist() == [0, 3, 4, 6]
    assert c.causal().visible.tolist() == [6, 7, 8, 1, 41, 42]
    assert c.blocks().visible.tolist() == [8, 8, 8, 1, 42, 42]
    filled = Stream.causal(torch.tensor([0, 0, 2, 2]), torch.tensor([3, 4, 9, 9]), 2, 2)
    assert filled.starts.tolist() == [0, 2, 2]
    assert filled.visible.tolist() == [4, 5, 0, 0]


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_the_reference_is_the_definition(index: int) -> None:
    c = SHAPES[index]
    for stream in (c.causal(), c.blocks()):
        given_back = ragged_attention_reference(c.q, c.keys, c.values, c.table, stream)
        torch.testing.assert_close(given_back.double(), by_rows(c, stream), rtol=0, atol=TOLERANCE)


def test_without_a_gpu_or_the_interpreter_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    c = SHAPES[0]
    expected = ragged_attention_reference(c.q, c.keys, c.values, c.table, c.causal())
    assert torch.equal(ragged_attention(c.q, c.keys, c.values, c.table, c.causal()), expected)


@pytest.mark.interpreter
@pytest.mark.parametrize("splits", [None, 4])
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_the_kernel_is_the_definition(index: int, splits: int | None) -> None:
    c = SHAPES[index]
    for stream in (c.causal(), c.blocks()):
        out = ragged_attention(c.q, c.keys, c.values, c.table, stream, splits=splits)
        torch.testing.assert_close(out.double(), by_rows(c, stream), rtol=0, atol=TOLERANCE)


@pytest.mark.interpreter
def test_causal_and_block_rows_differ_where_they_should() -> None:
    """The control: a kernel that ignored the marker would give both the same answer."""
    c = SHAPES[0]
    causal, block = (ragged_attention(c.q, c.keys, c.values, c.table, s) for s in (c.causal(), c.blocks()))
    last = torch.tensor([2, 3, 11])  # a request's last row sees all of it either way
    assert torch.equal(causal[last], block[last])
    rest = torch.tensor([i for i in range(12) if i not in last])
    assert ((causal - block)[rest].abs().amax((1, 2)) > 1e-2).all()


@pytest.mark.interpreter
def test_batch_mates_change_no_bit() -> None:
    c = SHAPES[2]
    together = ragged_attention(c.q, c.keys, c.values, c.table, c.causal(), splits=4)
    for r, n in enumerate(c.new):
        if n:
            rows = torch.nonzero(c.requests == r)[:, 0]
            positions = c.lengths[r] + torch.arange(n)
            alone = Stream.causal(torch.zeros(n, dtype=torch.int64), positions, 1, c.most)
            out = ragged_attention(c.q[rows], c.keys, c.values, c.table[r : r + 1], alone, splits=4)
            assert torch.equal(out, together[rows])


@pytest.mark.interpreter
@pytest.mark.parametrize("splits", [1, 4])
def test_rows_that_fill_a_batch_up_are_zero_and_change_nothing(splits: int) -> None:
    c = SHAPES[0]
    plain = ragged_attention(c.q, c.keys, c.values, c.table, c.causal(), splits=splits)
    q = torch.cat([c.q, torch.full((4, *c.q.shape[1:]), math.nan)])
    requests = torch.cat([c.requests, torch.full((4,), 3)])
    positions = torch.cat([c.causal().visible - 1, torch.zeros(4, dtype=torch.int32)])
    out = ragged_attention(q, c.keys, c.values, c.table, Stream.causal(requests, positions, 3, c.most), splits=splits)
    assert torch.equal(out[:12], plain)
    assert not out[12:].any()


@pytest.mark.interpreter
def test_more_rows_than_expected_are_computed_all_the_same() -> None:
    c = SHAPES[3]
    short = c.causal()._replace(most=1)
    out = ragged_attention(c.q, c.keys, c.values, c.table, short)
    torch.testing.assert_close(out.double(), by_rows(c, short), rtol=0, atol=TOLERANCE)


@pytest.mark.interpreter
def test_views_with_rows_apart_are_read_where_they_lie() -> None:
    """Queries cut out of a fused product, and a cache that keeps all layers in one block."""
    c = SHAPES[0]
    fused = torch.full((12, 9, 16), math.nan)
    fused[:, 2:6] = c.q
    both = torch.full((2, *c.keys.shape[:2], 20, 16), math.nan)
    both[0, :, :, :16], both[1, :, :, :16] = c.keys, c.values
    out = ragged_attention(fused[:, 2:6], both[0, :, :, :16], both[1, :, :, :16], c.table, c.causal(), scale=0.3)
    expected = ragged_attention_reference(c.q, c.keys, c.values, c.table, c.causal(), scale=0.3)
    torch.testing.assert_close(out, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.interpreter
def test_extreme_scores_saturate_without_a_nan() -> None:
    c = SHAPES[0]
    for factor, tolerance in ((1e4, 1e-3), (1e-30, TOLERANCE)):  # a score of 1e4 is itself rounded to 5e-4
        out = ragged_attention(c.q * factor, c.keys, c.values, c.table, c.causal(), splits=4)
        expected = by_rows(c._replace(q=c.q * factor), c.causal())
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.interpreter
@settings(max_examples=12)
@given(
    requests=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=3),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    d=st.sampled_from([1, 3, 16, 33]),
    page=st.sampled_from([1, 5, 64]),
    splits=st.sampled_from([1, 2, None]),
)
def test_any_shape(
    requests: list[tuple[int, int]], kv_heads: int, group: int, d: int, page: int, splits: int | None
) -> None:
    lengths, new = map(list, zip(*requests, strict=True))
    c = case(lengths, new, heads=kv_heads * group, kv_heads=kv_heads, d=d, page=page)
    for stream in (c.causal(), c.blocks()):
        out = ragged_attention(c.q, c.keys, c.values, c.table, stream, splits=splits)
        expected = ragged_attention_reference(c.q.double(), c.keys, c.values, c.table, stream)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE)


def test_what_does_not_fit_is_refused_before_a_launch() -> None:
    c = SHAPES[0]
    stream = c.causal()
    q, keys, values, table = c.q, c.keys, c.values, c.table
    bad = {
        "float64": (q.double(), keys, values, table, stream),
        "keys is torch.bfloat16": (q, keys.bfloat16(), values, table, stream),
        "expected .any, any, any, 16.": (q, keys[..., :8], values, table, stream),
        "values has shape": (q, keys, values[:-1], table, stream),
        "lay both out alike": (q, keys, values.transpose(0, 1).contiguous().transpose(0, 1), table, stream),
        "leave gaps": (q.transpose(1, 2).contiguous().transpose(1, 2), keys, values, table, stream),
        "table is torch.float32": (q, keys, values, table.float(), stream),
        "table is on meta": (q, keys, values, table.to("meta"), stream),
        "table names pages": (q, keys, values, table + 1, stream),
        "stream.starts has shape": (q, keys, values, table[:2], stream),
        "stream.visible has shape": (q[:5], keys, values, table, stream),
        "share 2 key/value heads": (q[:, :3], keys, values, table, stream),
        "a row sees 49 keys": (q, keys, values, table, stream._replace(visible=stream.visible + 1)),
    }
    for message, arguments in bad.items():
        with pytest.raises(ValueError, match=message):
            ragged_attention(*arguments)
    with pytest.raises(ValueError, match="splits must be a power of 2"):
        ragged_attention(q, keys, values, table, stream, splits=3)
    with pytest.raises(ValueError, match="never fall"):
        Stream.causal(torch.tensor([1, 0]), torch.tensor([0, 0]), 2, 1)
    with pytest.raises(ValueError, match="positions must be 0 or more"):
        Stream.causal(torch.tensor([0]), torch.tensor([-1]), 1, 1)


def test_a_launch_needs_no_value_of_a_tensor() -> None:
    """As in a graph's capture, where the device may not be waited for: tensors without values have none to read."""
    ids = torch.empty(64, dtype=torch.int64, device="meta")
    q = torch.empty(64, 32, 128, device="meta", dtype=torch.bfloat16)
    cache = torch.empty(8, 8, 4096, 128, device="meta", dtype=torch.bfloat16)
    with recording() as launches:
        for stream in (Stream.causal(ids, ids, 8, 8), Stream.blocks(ids, ids[:8], 8)):
            assert ragged_attention(q, cache, cache, ids[:8, None], stream).shape == q.shape
    assert [made.kernel.__name__ for made in launches] == ["_attend", "_join"] * 2
