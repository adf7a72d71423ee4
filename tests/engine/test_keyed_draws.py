"""Random numbers keyed by seed, request, purpose and position."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from companion.engine.draws import KeyedDraws, inverse_cdf, request_key
from companion.kernels.philox import CHUNK


def test_a_number_depends_on_its_key_alone():
    """Asked for in any order, between any others, from any instance: the same number."""
    first = KeyedDraws(3, b"key")
    keys = [(purpose, position) for purpose in ("accept", "target", "draft/7") for position in (0, 5, 255, 256, 1000)]
    values = {key: first.uniform(*key) for key in keys}
    second = KeyedDraws(3, b"key")
    for i, key in enumerate(reversed(keys)):
        for other in range(12):  # crowd the earlier chunks out of the memory
            second.uniform(f"draft/{100 + 12 * i + other}", other)
        assert second.uniform(*key) == values[key]
    assert len(set(values.values())) == len(values)


@pytest.mark.parametrize("change", [(4, b"key"), (3, b"kez"), (-3, b"key"), (2**64 + 3, b"key")])
def test_another_seed_or_request_has_other_numbers(change):
    one, other = KeyedDraws(3, b"key"), KeyedDraws(*change)
    pairs = [(one.uniform("target", i), other.uniform("target", i)) for i in range(2000)]
    assert abs(np.corrcoef(np.array(pairs).T)[0, 1]) < 0.1
    assert all(a != b for a, b in pairs)


def test_purposes_and_positions_are_independent_and_uniform():
    draws = KeyedDraws(0, b"")
    table = np.array(
        [[draws.uniform(p, i) for i in range(4 * CHUNK)] for p in ("accept", "target", "draft/1", "draft/2")]
    )
    for purpose in table:
        assert kstest(purpose, "uniform").pvalue > 1e-4
        assert abs(np.corrcoef(purpose[:-1], purpose[1:])[0, 1]) < 0.13
    assert np.abs(np.corrcoef(table) - np.eye(4)).max() < 0.13
    chunks = table[1].reshape(4, CHUNK)
    assert np.abs(np.corrcoef(chunks) - np.eye(4)).max() < 0.26
    assert len(np.unique(table)) == table.size


def test_request_keys_tell_prompts_and_copies_apart():
    keys = [request_key(p, n) for p in ([1, 2], [1, 2, 3], [12], [2, 1], [1, 2, 0]) for n in (0, 1)]
    assert len(set(keys)) == len(keys)
    assert request_key((1, 2), 0) == request_key([1, 2], 0)


def test_integer_types_of_other_libraries_are_seeds_too():
    assert KeyedDraws(np.int64(7), b"").uniform("a", 0) == KeyedDraws(7, b"").uniform("a", 0)


def test_inverse_cdf_at_the_edges():
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    assert [inverse_cdf(probs, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)] == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_inverse_cdf_never_draws_an_impossible_token(size):
    """Not with the largest uniform number there is, nor when fp32 sums miss 1 on either side."""
    generator = torch.Generator().manual_seed(size)
    for _ in range(200):
        probs = torch.rand(size, generator=generator) ** 8
        probs[torch.rand(size, generator=generator) < 0.5] = 0.0
        probs[int(torch.randint(size, (1,), generator=generator))] = 0.3
        probs = probs / probs.sum()
        for u in (0.0, 5e-324, 0.5, 1 - 2**-53):
            assert probs[inverse_cdf(probs, u)] > 0


def test_tokens_are_drawn_with_their_probabilities():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    counts = np.bincount([KeyedDraws(1, bytes([i % 256, i // 256])).token(probs, "target", 9) for i in range(4000)])
    assert ((counts - 4000 * probs.numpy()) ** 2 / (4000 * probs.numpy())).sum() < 21.1  # chi-square, 3 degrees, 1e-4


def test_accept_is_certain_at_one_and_impossible_at_zero():
    draws = KeyedDraws(0, b"")
    assert all(draws.accept(1.0, i) for i in range(1000))
    assert not any(draws.accept(0.0, i) for i in range(1000))
