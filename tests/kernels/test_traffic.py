"""Bytes: what each step must move by its shapes, against what its kernel moves under the interpreter; the counters."""

import pytest
import torch

from companion.costs import QWEN3_4B
from companion.kernels import work
from companion.kernels.block import Confidence
from companion.kernels.candidates import candidate_set, markov_candidates
from companion.kernels.fp8 import Fp8Rows
from companion.kernels.launch import Tile
from companion.kernels.markov import markov
from companion.kernels.overlap import overlap
from companion.kernels.philox import words
from companion.kernels.pick import RowDraws
from companion.kernels.plain import plain_attention, plain_overlap, plain_probe
from companion.kernels.probe import probe, probe_reference
from companion.kernels.ragged_attention import Stream, ragged_attention, ragged_attention_reference
from companion.kernels.traffic import kernel_traffic, tensor_traffic
from companion.roofline import H200, Work

V, R = QWEN3_4B.vocab_size, 256
TILE = Tile(1024, 1, 1)


def test_qwen3_by_hand() -> None:
    row = 303_872  # 151,936 logits in bf16
    assert work.probe_work(512, V).bytes == 512 * row
    assert work.overlap_work(448, V).bytes == 896 * row
    assert work.verify_work(64, 7, V).bytes == 64 * (8 + 7 + 2) * row
    assert work.markov_work(1, 7, V, R).bytes == 7 * (77_791_232 + 8 * V) == 553_047_040
    assert work.markov_work(1, 7, V, R, weight=work.fp8_weight(R)).bytes == 7 * (39_503_360 + 8 * V)
    assert work.candidates_work(1, 7, 1024, R).bytes == 7 * 1024 * (512 + 16)
    layer = work.attention_work(64, 8, 4096, heads=32, kv_heads=8, head_dim=128)
    assert layer == Work(4 * 512 * 32 * 4096 * 128, 64 * 16_777_216)
    assert work.schedule_work(512, 7).bytes == 4 * 3584 + 8 * 3585 + 4 * 512


def test_all_but_the_schedule_wait_for_memory_on_a_gpu() -> None:
    waiting = (
        work.probe_work(512, V),
        work.overlap_work(448, V),
        work.verify_work(64, 7, V),
        work.markov_work(64, 7, V, R),
        work.candidates_work(64, 7, 1024, R),
        work.attention_work(64, 8, 4096, heads=32, kv_heads=8, head_dim=128),
    )
    assert max(one.intensity for one in waiting) < H200.ridge < work.schedule_work(512, 7).intensity


# ---- what the kernels move


@pytest.mark.interpreter
@pytest.mark.parametrize("width", [3000, 4096])
def test_the_row_kernels_move_what_is_counted(width: int) -> None:
    logits, other = torch.randn(2, 3, width)
    with kernel_traffic() as count:
        probe(logits, torch.tensor([5]), tile=TILE)
    assert 0 <= count.bytes - work.probe_work(3, width, 4).bytes < 1000
    with kernel_traffic() as count:
        overlap(logits, other, tile=TILE)
    assert 0 <= count.bytes - 2 * work.overlap_work(3, width, 4).bytes < 3000  # read twice


@pytest.mark.interpreter
def test_the_block_reads_each_matrix_once_a_step() -> None:
    width, rank, requests, steps = 500, 256, 2, 3
    logits = torch.randn(requests, steps, width)
    w1, w2 = torch.randn(2, width, rank)
    ids = torch.zeros(requests, dtype=torch.int64)
    draws = RowDraws(words(1, 2, 3, 4).view(2, 2), ids, ids)
    rest = (ids, torch.ones(requests), draws, Confidence(torch.zeros(requests, steps), w1[0]))
    few = candidate_set(logits, 100)
    for matrix, weight in ((w2, 4.0), (Fp8Rows.of(w2), work.fp8_weight(rank))):
        with kernel_traffic() as count:
            markov(logits, w1, matrix, *rest)
        must = work.markov_work(requests, steps, width, rank, weight=weight).bytes
        assert 1 <= count.bytes / must < 1.08, weight
        with kernel_traffic() as count:
            markov_candidates(logits, w1, matrix, few, *rest)
        must = work.candidates_work(requests, steps, 100, rank, weight=weight).bytes
        assert 1 <= count.bytes / must < 1.25, weight


@pytest.mark.interpreter
def test_attention_reads_keys_and_values_once_for_all_new_tokens() -> None:
    keys, values = torch.randn(2, 2, 2, 512, 16)
    table = torch.arange(2, dtype=torch.int32)[:, None]
    ids, positions = torch.arange(2).repeat_interleave(4), torch.arange(508, 512).repeat(2)
    with kernel_traffic() as count:
        ragged_attention(torch.randn(8, 4, 16), keys, values, table, Stream.causal(ids, positions, 2, 4), splits=1)
    must = work.attention_work(2, 4, 512, heads=4, kv_heads=2, head_dim=16, size=4).bytes
    assert 1 <= count.bytes / must < 1.15


def test_without_the_interpreter_there_is_nothing_to_count() -> None:
    with pytest.raises(ValueError, match="under the interpreter only"), kernel_traffic():
        pass


# ---- what plain PyTorch moves


def test_operations_on_tensors_are_counted() -> None:
    x, ids = torch.empty(4, 100, device="meta"), torch.empty(4, 1, dtype=torch.int64, device="meta")
    with tensor_traffic() as count:
        x.view(400)[3:].t()
    assert count.bytes == 0
    with tensor_traffic() as count:
        x + x[:, :1].expand(4, 100)
    assert (count.read, count.written) == (1600 + 16, 1600)
    with tensor_traffic() as count:
        x.gather(1, ids)
    assert (count.read, count.written) == (4 * 8 + 4 * 4, 16)
    with tensor_traffic() as count:
        x.zero_()
    assert (count.read, count.written) == (0, 1600)


def test_plain_versions_move_several_times_what_they_must() -> None:
    """The counts that the book shows, on tensors without values, at full size."""
    logits = torch.empty(8, V, dtype=torch.bfloat16, device="meta")
    must = work.probe_work(8, V).bytes
    with tensor_traffic() as count:
        plain_probe(logits, (5,))
    # to fp32, log_softmax, exp, clamp, product, its sum, negation, max, log-sum-exp, argmax: 2 + 4 x 15 bytes a logit
    assert count.bytes / must > 20
    with tensor_traffic() as count:
        plain_overlap(logits, logits)
    assert count.bytes / (2 * must) > 8


def test_plain_versions_are_right() -> None:
    made = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 60, generator=made)
    logits[:, ::7] = -torch.inf
    for found, right in zip(plain_probe(logits, (1, 3)), probe_reference(logits, (1, 3)), strict=True):
        torch.testing.assert_close(found, right)
    q = torch.randn(6, 4, 8, generator=made)
    keys, values = torch.randn(2, 2, 2, 20, 8, generator=made)
    ids, positions = torch.arange(2).repeat_interleave(3), torch.arange(17, 20).repeat(2)
    table = torch.arange(2)[:, None]
    right = ragged_attention_reference(q, keys, values, table, Stream.causal(ids, positions, 2, 3))
    found = plain_attention(q.view(2, 3, 4, 8).transpose(1, 2), keys, values, torch.arange(18, 21))
    torch.testing.assert_close(found.transpose(1, 2).flatten(0, 1), right)
