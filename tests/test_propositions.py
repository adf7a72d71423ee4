"""The note's propositions on random distributions in fp64, NumPy and torch; each with a case where it would fail."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from companion.propositions import (
    corollary_2,
    corollary_5,
    proposition_1,
    proposition_3,
    proposition_4,
    top_m_bound,
)

SIZE = 9
SLACK = 1e-7  # near ln V the ceiling moves as the square root of the rounding error of H, about 1e-15


@st.composite
def distributions(draw: st.DrawFn) -> np.ndarray:
    w = draw(arrays(np.float64, SIZE, elements=st.floats(0, 1, width=32) | st.just(0.0)))
    w[draw(st.integers(0, SIZE - 1))] += 0.5
    return w / w.sum()


tokens = st.integers(0, SIZE - 1)


@given(distributions(), tokens)
def test_proposition_1(p_t, token):
    for sides in (proposition_1(p_t, token), proposition_1(torch.from_numpy(p_t), token)):
        assert float(sides.left) == pytest.approx(float(sides.right), abs=1e-15)


@given(distributions(), tokens)
def test_corollary_2(p_t, think_end):
    sides = corollary_2(p_t, think_end)
    assert sides.left == pytest.approx(sides.right, abs=1e-15)


@given(distributions(), distributions(), st.sets(tokens, min_size=1))
def test_proposition_3(p_t, p_d, boundary):
    mask = np.zeros(SIZE)
    mask[sorted(boundary)] = 1
    p_d = p_d * mask + 1e-3 * mask
    p_d /= p_d.sum()
    result = proposition_3(p_t, p_d, sorted(boundary))
    assert result.acceptance <= result.eat + 1e-14
    if result.covers:
        assert result.acceptance == pytest.approx(result.eat, abs=1e-14)
    elif (p_t - p_d)[sorted(boundary)].max() > 1e-9:
        assert result.acceptance < result.eat
    if len(boundary) == 1:
        assert result.covers


def test_proposition_3_needs_the_support_condition():
    p_t, p_d = np.array([0.1, 0.9]), np.array([0.5, 0.5])
    with pytest.raises(ValueError, match="outside the boundary"):
        proposition_3(p_t, p_d, [0])  # its overlap is 0.6, far above e = 0.1


@given(distributions())
def test_proposition_4(p_t):
    bracket = proposition_4(p_t)
    assert bracket.floor <= bracket.mode + 1e-12
    assert bracket.mode <= bracket.ceiling + SLACK


@given(distributions(), tokens)
def test_corollary_5(p_t, token):
    sides = corollary_5(p_t, token)
    assert sides.left <= sides.right + SLACK


def test_a_sampled_drafter_is_not_bound_by_corollary_5():
    """Which drafter: with p_d = p_t every token is accepted, whatever the entropy."""
    uniform = np.full(1000, 1e-3)
    assert corollary_5(uniform, 0).right == pytest.approx(1e-3, abs=SLACK)
    assert top_m_bound(uniform, uniform).left == pytest.approx(1.0)
    assert top_m_bound(uniform, uniform).right == 1.0


@given(distributions(), distributions(), st.sets(tokens, min_size=1))
def test_the_top_m_bound_holds_for_every_small_support(p_t, p_d, support):
    mask = np.zeros(SIZE)
    mask[sorted(support)] = 1
    p_d = (p_d + 1e-3) * mask
    p_d /= p_d.sum()
    sides = top_m_bound(p_t, p_d)
    assert sides.left <= sides.right + SLACK


def test_the_bracket_is_neither_looser_nor_tighter_than_the_theorem():
    """An upper bound of 1 and a floor of 0 would pass every inequality above; here the sides meet."""
    for n in (1, 2, 5, SIZE):  # the floor is reached by n equal tokens, and only there
        p = np.zeros(SIZE)
        p[:n] = 1 / n
        bracket = proposition_4(p)
        assert bracket.floor == pytest.approx(bracket.mode, abs=1e-12)
    for peak in (0.2, 0.5, 0.9, 0.999):  # the ceiling by a spike over an even tail
        p = np.full(SIZE, (1 - peak) / (SIZE - 1))
        p[3] = peak
        bracket = proposition_4(p)
        assert bracket.ceiling == pytest.approx(bracket.mode, abs=1e-12)
        assert corollary_5(p, 3).right == pytest.approx(corollary_5(p, 3).left, abs=1e-12)
        assert bracket.floor < bracket.mode


def test_the_floor_is_not_reached_between_the_equal_laws():
    """Two tokens: the entropy fixes the mode, far above e^-H."""
    bracket = proposition_4(np.array([0.9, 0.1]))
    assert bracket.mode == pytest.approx(bracket.ceiling, abs=1e-12)
    assert bracket.floor == pytest.approx(np.exp(0.9 * np.log(0.9) + 0.1 * np.log(0.1)), abs=1e-12)
    assert bracket.floor < 0.73


@pytest.mark.parametrize("m", [1, 2, 4, 8])
def test_the_top_m_bound_counts_the_support_and_is_reached(m):
    p_t = np.concatenate([np.full(m, 0.9 / m), np.full(SIZE - m, 0.1 / (SIZE - m))])
    p_d = np.concatenate([np.full(m, 1 / m), np.zeros(SIZE - m)])
    sides = top_m_bound(np.stack([p_t, p_t]), np.stack([p_d, p_t]))  # row by row: m tokens, and all of them
    assert sides.left.tolist() == pytest.approx([0.9, 1.0], abs=1e-12)
    assert sides.right.tolist() == pytest.approx([0.9, 1.0], abs=1e-12)


def test_a_draft_that_just_covers_the_target_counts_as_covering():
    p = np.array([0.25, 0.75])
    result = proposition_3(p, p, [0, 1])
    assert result.covers
    assert result.acceptance == result.eat == 1.0


def test_batches_and_torch():
    p = torch.softmax(torch.randn(6, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), -1)
    bracket = proposition_4(p)
    assert bracket.ceiling.shape == bracket.mode.shape == (6,)
    assert bool((bracket.floor <= bracket.mode).all())
    assert bool((bracket.mode <= bracket.ceiling).all())
    covers = proposition_3(p, torch.nn.functional.one_hot(torch.tensor(3), 50).double().expand(6, 50), [3]).covers
    assert covers.tolist() == [True] * 6
