"""The entropy ceiling: known digits, an independent 60-digit reference at both ends, and its meaning by attack."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq

from companion.ceiling import eat_mass, entropy, entropy_ceiling, entropy_floor, spike_entropy, top_m_ceiling

QWEN3_V = 151_936

KNOWN = {  # (V, m): {H: value}, six digits
    (QWEN3_V, 1): {
        0.5: 0.969525, 1: 0.936098, 2: 0.865471, 4: 0.714845,
        6: 0.554710, 8: 0.385362, 10: 0.204297, 11.5: 0.053675,
    },
    (20, 1): {0.5: 0.922650, 1: 0.820312, 2: 0.554166, 2.5: 0.375755},
    (QWEN3_V, 2): {2: 0.910525, 8: 0.410042},
    (QWEN3_V, 8): {2: 1.0, 8: 0.469198},
    (QWEN3_V, 20): {4: 0.919062, 8: 0.517453},
}  # fmt: skip


def reference(H: float, V: int, m: int = 1) -> mp.mpf:
    """The root by plain bisection in 60 digits, with H and V at their exact values and no step shared with ours."""
    with mp.workdps(60):
        h, v, k = mp.mpf(H), mp.mpf(V), mp.mpf(m)
        if h <= mp.log(k):
            return mp.mpf(1)
        if h >= mp.log(v):
            return k / v
        low, high = k / v, mp.mpf(1)
        for _ in range(190):
            p = (low + high) / 2
            curve = -p * mp.log(p) - (1 - p) * mp.log(1 - p) + p * mp.log(k) + (1 - p) * mp.log(v - k)
            low, high = (p, high) if curve > h else (low, p)
        return (low + high) / 2


def error(H: float, V: int, m: int = 1) -> float:
    return float(abs(mp.mpf(float(top_m_ceiling(H, V, m))) - reference(H, V, m)))


@pytest.mark.parametrize(
    ("V", "m", "H", "value"), [(V, m, H, x) for (V, m), row in KNOWN.items() for H, x in row.items()]
)
def test_known_values(V, m, H, value):
    assert top_m_ceiling(H, V, m) == pytest.approx(value, abs=5.1e-7)


def test_the_notes_bracket_table():
    H = np.array([0.5, 2.0, 4.0, 8.0, 11.0, math.log(QWEN3_V)])
    assert entropy_floor(H).round(4).tolist() == [0.6065, 0.1353, 0.0183, 0.0003, 0.0, 0.0]
    ceiling = entropy_ceiling(H, QWEN3_V)
    assert ceiling[:5] == pytest.approx([0.9695, 0.8655, 0.7148, 0.3854, 0.1065], abs=5e-5)
    assert ceiling[5] == pytest.approx(1 / QWEN3_V, abs=1e-15)


SIZES = [2, 3, 5, 20, 1000, QWEN3_V, 10**6, 10**9, 10**15]


@pytest.mark.parametrize(("V", "m"), [(V, m) for V in SIZES for m in (1, 2, 8) if m < V])
def test_right_to_1e_12_at_both_ends_and_between(V, m):
    bottom, top = math.log(m), math.log(V)
    near_top = [top - d for d in (1e-3, 1e-6, 1e-9, 1e-12, 1e-14)] + [float(np.nextafter(top, 0))]
    near_bottom = [bottom + d for d in (1e-300, 1e-30, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3)]
    between = [bottom + f * (top - bottom) for f in (0.1, 0.5, 0.9)]
    checked = [H for H in near_bottom + between + near_top if 0 < H < top]
    assert len(checked) >= 12
    assert max(error(H, V, m) for H in checked) < 1e-14


@given(st.integers(2, 10**12), st.floats(0, 1), st.integers(1, 40))
def test_the_root_solves_its_equation(V, fraction, m):
    H = fraction * math.log(V)
    P = top_m_ceiling(H, V, m)
    if m >= V or math.log(m) >= H:
        assert P == 1.0
    else:
        assert m / V - 1e-15 <= P <= 1.0
        assert spike_entropy(P, V, m) == pytest.approx(H, abs=1e-9)


@pytest.mark.parametrize("H", [0.3, 1.0, 2.5, 7.0, 11.0])
def test_agrees_with_brentq(H):
    root = brentq(lambda p: float(spike_entropy(p, QWEN3_V)) - H, 1 / QWEN3_V, 1.0, xtol=1e-15)
    assert entropy_ceiling(H, QWEN3_V) == pytest.approx(root, abs=1e-13)


def test_exact_ends():
    for V in (2, 3, 20, QWEN3_V, 10**6):
        assert entropy_ceiling(0.0, V) == 1.0
        assert entropy_ceiling(math.log(V), V) == 1 / V
        assert top_m_ceiling(math.log(V), V, 2) == min(2 / V, 1.0)


@pytest.mark.parametrize("H", [float("nan"), float("inf"), float("-inf"), 0.0, -1.0])
def test_a_signal_without_meaning_bounds_nothing(H):
    assert entropy_ceiling(H, QWEN3_V) == 1.0


def test_odd_vocabularies_and_excess_entropy():
    assert entropy_ceiling(2.0, 1) == 1.0
    assert entropy_ceiling(2.0, 0) == 1.0
    assert entropy_ceiling(2.0, float("nan")) == 1.0
    assert entropy_ceiling(50.0, 20) == 1 / 20
    assert top_m_ceiling(50.0, 20, 4) == 4 / 20


@pytest.mark.parametrize(("H", "floor"), [(0.0, 1.0), (-1.0, 0.0), (float("nan"), 0.0), (float("inf"), 0.0)])
def test_floor_on_odd_input(H, floor):
    assert entropy_floor(H) == floor


def test_more_tokens_than_the_vocabulary():
    assert top_m_ceiling(1.0, 5, 5) == 1.0
    assert top_m_ceiling(1.0, 5, 9) == 1.0


@pytest.mark.parametrize("m", [0, -1, 1.5, float("nan")])
def test_m_must_count_tokens(m):
    with pytest.raises(ValueError, match="whole number"):
        top_m_ceiling(1.0, 20, m)


def test_kinds_dtypes_and_broadcasting():
    H = torch.tensor([[0.5], [2.0]])
    V = torch.tensor([20, QWEN3_V])
    bound = entropy_ceiling(H, V)
    assert bound.dtype == torch.float32
    assert bound.shape == (2, 2)
    assert bound[1].tolist() == pytest.approx([0.554166, 0.865471], abs=1e-6)
    assert isinstance(entropy_ceiling(2.0, 20), float)
    assert entropy_ceiling(np.full(3, 2.0, np.float32), 20).dtype == np.float32
    assert entropy_ceiling(np.zeros((0, 4)), 20).shape == (0, 4)


def test_monotone_in_entropy_vocabulary_and_support():
    H = np.linspace(0.01, math.log(QWEN3_V), 500)
    assert (np.diff(entropy_ceiling(H, QWEN3_V)) < 0).all()
    sizes = np.array([20, 100, 1000, QWEN3_V, 10**7])
    assert (np.diff(entropy_ceiling(2.0, sizes)) > 0).all()
    assert (np.diff(top_m_ceiling(8.0, QWEN3_V, np.array([1, 2, 8, 20, 500, 2980]))) > 0).all()


# --- the bound as a bound ---

weights = arrays(np.float64, st.integers(2, 30), elements=st.floats(0, 1, width=32) | st.just(0.0))


@given(weights, st.integers(1, 5), st.integers(0, 29))
def test_no_distribution_beats_the_bracket(w, m, spike):
    w[spike % len(w)] += 1.0
    p = w / w.sum()
    H, V = entropy(p) - 1e-14, len(p)  # near ln V the bound moves as the square root of H's own rounding error
    assert entropy_floor(H) <= p.max() + 1e-12
    top = np.sort(p)[::-1][: min(m, V)].sum()
    assert top <= top_m_ceiling(H, V, m) + 1e-12


@pytest.mark.parametrize(("V", "m", "P"), [(QWEN3_V, 1, 0.4), (20, 1, 0.9), (50, 3, 0.5), (7, 2, 0.99)])
def test_the_bound_is_attained_by_equal_spikes_over_an_equal_tail(V, m, P):
    """So no smaller function of H and V can replace it."""
    p = np.concatenate([np.full(m, P / m), np.full(V - m, (1 - P) / (V - m))])
    assert top_m_ceiling(entropy(p), V, m) == pytest.approx(P, abs=1e-12)


def test_a_tighter_formula_would_be_caught():
    """Negative control: replace ln(V - 1) by ln(V - 1) - 0.1 and a spike over a uniform tail breaks the 'bound'."""
    P, V = 0.4, 1000
    p = np.concatenate([[P], np.full(V - 1, (1 - P) / (V - 1))])
    wrong = brentq(lambda q: float(spike_entropy(q, V)) - 0.1 * (1 - q) - entropy(p), 1 / V, 1.0)
    assert p.max() > wrong + 1e-3


# --- entropy and EAT ---


def test_entropy_in_nats():
    assert entropy(np.array([0.5, 0.5])) == pytest.approx(math.log(2))
    assert entropy(np.array([1.0, 0.0])) == 0.0
    uniform = torch.full((3, 8), 1 / 8, dtype=torch.float64)
    assert entropy(uniform).tolist() == pytest.approx([math.log(8)] * 3)
    assert entropy(uniform.float()).dtype == torch.float32


def test_eat_is_the_mass_on_a_set():
    p = np.array([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]])
    assert eat_mass(p, [0, 2]).tolist() == pytest.approx([0.8, 0.0])
    assert eat_mass(torch.tensor(p), [2, 2]).tolist() == pytest.approx([0.7, 0.0])  # a set: counted once
    for bad in ([], [3], [-1]):
        with pytest.raises(ValueError, match="token_ids"):
            eat_mass(p, bad)


@pytest.mark.parametrize("function", [entropy, lambda p: eat_mass(p, [0])])
def test_bad_distributions_are_refused(function):
    with pytest.raises(ValueError, match="sum to 1"):
        function(np.array([0.5, 0.6]))
    with pytest.raises(ValueError, match="NaN"):
        function(torch.tensor([float("nan"), 0.5]))


def test_few_newton_steps_everywhere():
    """The hook asks for a ceiling at each step of a decode, so a slow corner (bisection to the end) would be felt."""
    import companion.ceiling as module

    calls = 0
    original = module._phi

    def counting(z):
        nonlocal calls
        calls += 1
        return original(z)

    module._phi = counting
    try:
        for V in (2, 20, QWEN3_V, 10**12):
            for H in np.concatenate([np.geomspace(1e-15, 1, 40), np.linspace(0, 1, 40)]) * math.log(V):
                calls = 0
                entropy_ceiling(float(H), V)
                assert calls <= 2 * 8, (V, H)
    finally:
        module._phi = original
