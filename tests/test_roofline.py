"""Operations, bytes and the roof over them, against products of integers done by hand."""

import pytest

from companion.costs import QWEN3_4B, round_bytes
from companion.experiments import bias_cost
from companion.roofline import H200, Device, Work, bias_ways, round_work

V, R, GAMMA = 151_936, 256, 7


def test_the_roof():
    device = Device("toy", 100.0, 10.0, 0)
    assert device.ridge == 10.0
    assert device.seconds(Work(50, 100)) == 10.0  # bytes decide
    assert device.seconds(Work(5000, 100)) == 50.0  # operations decide
    assert device.attainable(2.0) == 20.0
    assert device.attainable(99.0) == 100.0
    assert H200.ridge == pytest.approx(206, abs=1)


def test_a_round_of_one_request_reads_what_costs_counts():
    work, count = round_work(QWEN3_4B, gamma=GAMMA, rank=R, drafter_layers=5), round_bytes(
        QWEN3_4B, gamma=GAMMA, rank=R, drafter_layers=5
    )  # fmt: skip
    assert sum(w.bytes for w in work.values()) == count.drafter + count.target
    assert work["Markov head"] == Work(2 * GAMMA * R * V, GAMMA * R * V * 2)
    assert work["Markov head"].intensity == 1.0  # one request: an operation a byte
    assert work["shared head"].intensity == GAMMA
    assert work["target"].intensity == GAMMA + 1
    assert work["drafter's layers"].flops == 2 * 7 * 5 * QWEN3_4B.layer_parameters


def test_a_batch_multiplies_operations_and_no_bytes():
    one = round_work(QWEN3_4B, gamma=GAMMA, rank=R, drafter_layers=5)
    many = round_work(QWEN3_4B, gamma=GAMMA, rank=R, drafter_layers=5, batch=128)
    for part, work in one.items():
        assert many[part] == Work(128 * work.flops, work.bytes)


def test_ways_to_the_same_bias():
    ways = list(bias_ways(V, R, GAMMA, batch=2, candidates=1000).values())
    assert [w.work.flops for w in ways] == [2 * 2 * 7 * R * V] * 3 + [2 * 2 * 7 * R * 1000, 0]
    assert [w.work.bytes for w in ways] == [
        7 * R * V * 2, 7 * R * V, R * V * 2, 2 * 7 * R * 1000 * 2, 2 * 7 * V * 2,
    ]  # fmt: skip
    assert ways[0].stored_bytes == 2 * R * V * 2
    assert ways[1].stored_bytes == R * V * 3
    assert ways[-1].stored_bytes == V * V * 2


def test_the_timed_ways_at_a_small_size():
    config = bias_cost.Config(vocab_size=2000, rank=16, candidates=50, table_rows=8, repeats=3)
    result = bias_cost.run(config)
    assert (result.ways[["median", "low", "high"]] > 0).all(axis=None)
    assert list(result.products.index) == list(bias_cost.ROWS)
    assert result.products["intensity"].tolist() == [
        rows / 2 for rows in bias_cost.ROWS
    ]  # fp32: two operations, 4 bytes
    expected = 2 * 16 * 2000 / (result.products["median"][1] / 1000) / 1e9
    assert result.products["gflops"][1] == pytest.approx(expected)
    assert result.bandwidth > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: round_work(QWEN3_4B, gamma=7, rank=256, drafter_layers=5, batch=0), "at least one request"),
        (lambda: bias_ways(V, R, 7, candidates=V + 1), "candidates"),
        (lambda: bias_cost.run(bias_cost.Config(vocab_size=10, candidates=11)), "candidates"),
        (lambda: bias_cost.Config(repeats=2), "repeats"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
