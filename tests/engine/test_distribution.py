"""Logits to probabilities: against transformers' logits processors, and on logits that no model should return."""

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from companion.engine.sampling import distribution, greedy
from companion.protocols import Sampling

SETTINGS = [
    Sampling(0.6),
    Sampling(1.7),
    Sampling(1.0, top_k=1),
    Sampling(1.0, top_k=20),
    Sampling(1.0, top_k=10_000),
    Sampling(1.0, top_p=0.05),
    Sampling(1.0, top_p=0.95),
    Sampling(1.0, min_p=0.1),
    Sampling(1.0, min_p=1.0),
    Sampling(0.6, top_k=20, top_p=0.95),
    Sampling(0.7, top_k=30, top_p=0.8, min_p=0.02),
]
INF = float("inf")


def reference(logits, sampling):
    """What `generate` would sample from: its processors in its order, then a softmax."""
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1.0:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    if sampling.min_p > 0.0:
        scores = MinPLogitsWarper(sampling.min_p)(None, scores)
    return scores.softmax(-1)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("spread", [0.5, 3.0, 20.0])
def test_equals_the_processors_of_transformers(sampling, spread):
    """fp64, so that no token sits on a top-p edge by rounding."""
    generator = torch.Generator().manual_seed(round(10 * spread))
    logits = spread * torch.randn(64, 97, generator=generator, dtype=torch.float64)
    logits[:, 90:] = -INF  # a padded head
    torch.testing.assert_close(distribution(logits, sampling), reference(logits, sampling), atol=1e-12, rtol=1e-9)


def test_fp32_and_half_precision_logits_give_fp32_probabilities():
    logits = 3 * torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        probs = distribution(logits.to(dtype), Sampling(0.8, top_p=0.9))
        assert probs.dtype == torch.float32
        torch.testing.assert_close(probs, distribution(logits.to(dtype).double(), Sampling(0.8, top_p=0.9)).float())


def test_the_input_is_left_alone():
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    distribution(logits, Sampling(0.5, top_k=3, top_p=0.5, min_p=0.1))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_keeps_exactly_k_tokens_of_a_tie(k):
    """Tied logits go to the lower id: the ceiling with V = k counts on a support of k."""
    probs = distribution(torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]]), Sampling(1.0, top_k=k))
    assert (probs[0] > 0).nonzero().flatten().tolist() == [1, 2, 3][:k]


def test_top_p_keeps_the_token_that_crosses_the_threshold():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
    for top_p, kept in ((1e-9, 1), (0.499, 1), (0.501, 2), (0.799, 2), (0.801, 3), (0.999, 4)):
        assert int((distribution(logits, Sampling(1.0, top_p=top_p)) > 0).sum()) == kept


@pytest.mark.parametrize("temperature", [1e-4, 1e-20, 1e-38, 1e-45, 1e-60, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_temperatures_are_greedy_and_finite(temperature, dtype):
    logits = torch.tensor([[1.0, 3.0, 2.5, -INF], [-8e4, -9e4, -INF, -INF]], dtype=dtype)
    probs = distribution(logits, Sampling(temperature))
    assert probs.tolist() == [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]


def test_huge_temperature_is_uniform_over_what_is_allowed():
    probs = distribution(torch.tensor([[1.0, 30.0, -INF]]), Sampling(1e30))
    torch.testing.assert_close(probs, torch.tensor([[0.5, 0.5, 0.0]]))


def test_temperature_zero_is_one_hot_at_the_lowest_best_id():
    logits = torch.tensor([[1.0, 4.0, 4.0], [-INF, -INF, -2.0]])
    assert distribution(logits, Sampling(0.0)).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert greedy(logits).tolist() == [1, 2]


@pytest.mark.parametrize("extreme", [3e38, -3e38])
def test_logits_near_the_end_of_the_range(extreme):
    probs = distribution(torch.tensor([[extreme, 0.0, extreme]]), Sampling(1.0))
    assert probs.tolist() == ([[0.5, 0.0, 0.5]] if extreme > 0 else [[0.0, 1.0, 0.0]])


@pytest.mark.parametrize("row", [[0.0, float("nan")], [INF, 0.0], [-INF, -INF]], ids=["nan", "+inf", "nothing left"])
@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0), Sampling(1.0, top_k=1)], ids=str)
def test_logits_that_are_no_distribution_raise(row, sampling):
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(ValueError, match=r"row 1 .* nothing is emitted"):
        distribution(logits, sampling)
    with pytest.raises(ValueError, match="row 1"):
        greedy(logits)
