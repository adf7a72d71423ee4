"""Latency, speed-ups, operations and bytes against the figures that paper, review and note print."""

import pytest

from companion.costs import (
    QWEN3_4B,
    TransformerShape,
    breakeven_tau,
    latency_per_token,
    markov_head_flops,
    round_bytes,
    speedup,
    speedup_ratio,
)


def test_the_reviews_latency_example():
    assert latency_per_token(3, 25, 3.5) == 8.0
    assert speedup(20, 3, 25, 3.5) == 2.5
    assert latency_per_token(3, 25, 5.5) == pytest.approx(5.1, abs=0.05)
    assert speedup(20, 3, 25, 5.5) == pytest.approx(3.9, abs=0.05)


def test_eq_16_and_what_its_percentage_means():
    ratio = speedup_ratio(5.5, 3.5)
    assert ratio == pytest.approx(1.57, abs=5e-3)
    assert ratio == pytest.approx(latency_per_token(3, 25, 3.5) / latency_per_token(3, 25, 5.5))
    assert 1 - 1 / ratio == pytest.approx(0.364, abs=5e-4)  # the review reads 57 % off the ratio


def test_breakeven_is_where_the_speedup_is_one():
    assert breakeven_tau(20, 3, 25) == pytest.approx(1.4)
    assert speedup(20, 3, 25, breakeven_tau(20, 3, 25)) == pytest.approx(1.0)


def test_markov_head_operations():
    assert markov_head_flops(5, 256, 128_000) == pytest.approx(3.3e8, rel=0.01)  # the review's example
    assert markov_head_flops(7, 256, 151_936) == 544_538_624  # a product of integers: exact, where 1 % hides a term
    assert markov_head_flops(5, 128_000, 128_000) == pytest.approx(1.6e11, rel=0.03)  # full rank


def test_bytes_of_a_qwen3_4b_round():
    count = round_bytes(QWEN3_4B, gamma=7, rank=256, drafter_layers=5)
    assert count.markov_head == 7 * 256 * 151_936 * 2
    assert count.markov_head / 7 == pytest.approx(78e6, rel=0.01)
    assert count.markov_head == pytest.approx(0.54e9, rel=0.01)
    assert count.drafter_layers == pytest.approx(1.0e9, rel=0.01)
    assert count.shared_head == pytest.approx(0.78e9, rel=0.01)
    assert count.target == pytest.approx(8e9, rel=0.01)
    layer = 2560 * (2 * 32 * 128 + 2 * 8 * 128 + 3 * 9728)
    assert count.drafter_layers == 5 * layer * 2
    assert count.target == (36 * layer + 151_936 * 2560) * 2
    assert count.drafter == count.drafter_layers + count.shared_head + count.markov_head


def test_layer_parameters_match_transformers():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = TransformerShape(64, 2, 96, 4, 2, 32, 500)
    config = Qwen3Config(
        hidden_size=64, num_hidden_layers=2, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=500, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    matrices = sum(p.numel() for p in model.model.layers[0].parameters() if p.ndim == 2)
    assert shape.layer_parameters == matrices
    assert shape.head_parameters == model.lm_head.weight.numel()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: latency_per_token(3, 25, 0.9), "bonus token"),
        (lambda: latency_per_token(-3, 25, 2), "T_draft"),
        (lambda: latency_per_token(3, float("nan"), 2), "T_verify"),
        (lambda: speedup(0, 3, 25, 2), "positive"),
        (lambda: breakeven_tau(-1, 3, 25), "positive"),
        (lambda: speedup_ratio(5.5, 0.5), "bonus token"),
        (lambda: markov_head_flops(-1, 256, 10), "gamma"),
        (lambda: round_bytes(QWEN3_4B, gamma=7, rank=-1, drafter_layers=5), "rank"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
