"""The ceiling of a served row from its own entropy and from the model's: a bound at every sampling, and attained."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from companion.ceiling import entropy, entropy_ceiling, spike_entropy
from companion.engine.sampling import distribution
from companion.protocols import Sampling
from companion.scheduling.row_ceiling import PER_NAT, kept_tokens, model_ceiling, served_ceiling

QWEN3_V = 151_936

samplings = st.builds(
    Sampling,
    temperature=st.floats(0.1, 4),
    top_k=st.one_of(st.none(), st.integers(1, 14)),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.9),
)


def rows():
    """Random rows, some of few tokens and some that are spikes over even tails."""
    spikes = st.tuples(st.integers(2, 12), st.floats(0.05, 0.999)).map(
        lambda s: [s[1], *[(1 - s[1]) / (s[0] - 1)] * (s[0] - 1)]
    )
    return st.one_of(st.lists(st.floats(1e-6, 1), min_size=2, max_size=12), spikes)


@given(rows(), samplings)
def test_no_served_row_is_surer_than_its_ceilings(weights, sampling):
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    served = distribution(p.log()[None], sampling)[0]
    top = float(served.max())
    assert top <= model_ceiling(float(entropy(p)), len(p), sampling) + 1e-9
    assert top <= served_ceiling(float(entropy(served, check=False)), len(p), sampling) + 1e-9


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("top_k", [None, 2, 20])
@pytest.mark.parametrize("top_p", [1.0, 0.97])
def test_the_spike_attains_it_up_to_temperature_one(temperature, top_k, top_p):
    """All but top-p, which may keep more than it must."""
    sampling = Sampling(temperature, top_k, top_p)
    mode, size = 0.2, 64
    p = torch.full((size,), (1 - mode) / (size - 1), dtype=torch.float64)
    p[0] = mode
    H = float(spike_entropy(mode, size))
    top = float(distribution(p.log()[None], sampling).max())
    found = model_ceiling(H, size, sampling)
    assert top <= found + 1e-12
    if top_p == 1.0:
        assert found == pytest.approx(top, abs=4e-3)  # H was rounded down to a 256th of a nat


def test_entropy_is_rounded_down_to_a_ceiling_that_is_none_too_low():
    H = np.linspace(0, math.log(QWEN3_V), 4000)
    found = np.array([model_ceiling(float(h), QWEN3_V, Sampling()) for h in H])
    exact = entropy_ceiling(H, QWEN3_V)
    assert (found >= exact).all()
    assert (found <= entropy_ceiling(np.maximum(H - 1 / PER_NAT, 0), QWEN3_V) + 1e-12).all()


def test_top_k_tightens_the_served_rows_ceiling_and_loosens_the_models():
    """The figures of the module's docstring."""
    nucleus = Sampling(1.0, top_k=20)
    assert served_ceiling(2.0, QWEN3_V, Sampling()) == pytest.approx(0.865, abs=1e-3)
    assert served_ceiling(2.0, QWEN3_V, nucleus) == pytest.approx(0.554, abs=1e-3)
    assert model_ceiling(2.0, QWEN3_V, nucleus) > 0.999
    recommended = Sampling(0.6, top_k=20)
    assert min(model_ceiling(h, QWEN3_V, recommended) for h in np.arange(0, 11.8, 0.05)) > 0.999


def test_what_says_nothing():
    for ceiling in (served_ceiling, model_ceiling):
        assert ceiling(3.0, 100, Sampling(0.0)) is None
        assert ceiling(math.nan, 100, Sampling()) is None
        assert ceiling(math.inf, 100, Sampling()) is None
        assert ceiling(-0.1, 100, Sampling()) == ceiling(0.0, 100, Sampling()) == 1.0
        assert ceiling(99.0, 100, Sampling()) == pytest.approx(0.01, abs=0.02)  # rounding can lift H above ln V
        with pytest.raises(ValueError, match="at least 2"):
            ceiling(1.0, 1, Sampling())
    assert kept_tokens(100, Sampling(0.0)) == 1
    assert kept_tokens(100, Sampling(1.0, top_k=200)) == 100
    assert served_ceiling(0.0, 100, Sampling(1.0, top_k=1)) == 1.0
