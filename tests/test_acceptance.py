"""The accept/reject rule: exact against enumeration, on NumPy and torch alike, and loud about bad input."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from companion.acceptance import (
    accept_probability,
    one_hot,
    overlap,
    residual,
    step_law,
    total_variation,
    validate_distribution,
)

P_T, P_D = np.array([0.7, 0.3]), np.array([0.5, 0.5])  # paper, Appendix A


@st.composite
def distribution_pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Two batches of distributions over one vocabulary, zeros and near point masses included."""
    batch, size = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    weight = st.floats(0.0, 1.0, width=32) | st.just(0.0) | st.just(1e-12)
    pair = []
    for _ in range(2):
        w = draw(arrays(np.float64, (batch, size), elements=weight))
        w[:, draw(st.integers(0, size - 1))] += 1.0  # no empty row
        pair.append(w / w.sum(-1, keepdims=True))
    return pair[0], pair[1]


def enumerated_step(p_t: np.ndarray, p_d: np.ndarray) -> np.ndarray:
    """The law of the emitted token, by walking through every (draft, verdict, replacement) in plain Python."""
    law = np.zeros_like(p_t)
    gaps = [max(t - d, 0.0) for t, d in zip(p_t, p_d, strict=True)]
    for x, drawn in enumerate(p_d):
        if drawn == 0.0:
            continue
        keep = min(1.0, p_t[x] / drawn)
        law[x] += drawn * keep
        if keep < 1.0 and sum(gaps) > 0.0:
            for y, gap in enumerate(gaps):
                law[y] += drawn * (1.0 - keep) * gap / sum(gaps)
    return law


def test_appendix_a_overlap_is_four_fifths():
    assert overlap(P_T, P_D) == pytest.approx(0.8, abs=1e-15)
    assert total_variation(P_T, P_D) == pytest.approx(0.2, abs=1e-15)
    assert residual(P_T, P_D).tolist() == [1.0, 0.0]
    assert accept_probability(P_T, P_D).tolist() == pytest.approx([1.0, 0.6])


@given(distribution_pairs())
def test_the_step_emits_the_target(pair):
    p_t, p_d = pair
    law = step_law(p_t, p_d)
    np.testing.assert_allclose(law, p_t, atol=1e-14, rtol=0)
    for row in range(len(p_t)):
        np.testing.assert_allclose(law[row], enumerated_step(p_t[row], p_d[row]), atol=1e-14, rtol=0)


@given(distribution_pairs())
def test_overlap_is_one_minus_total_variation_and_the_acceptance_rate(pair):
    """Review Eq. 8a, 8b and 8c: three expressions of one number."""
    p_t, p_d = pair
    c = overlap(p_t, p_d)
    np.testing.assert_allclose(c, 1 - total_variation(p_t, p_d), atol=1e-14)
    np.testing.assert_allclose(c, (p_d * accept_probability(p_t, p_d)).sum(-1), atol=1e-14)
    np.testing.assert_allclose(c, overlap(p_d, p_t), atol=0)
    assert (c >= 0).all()
    assert (c <= 1 + 1e-14).all()


@given(distribution_pairs())
def test_residual_is_a_distribution_that_never_repeats_what_was_over_drafted(pair):
    p_t, p_d = pair
    r = residual(p_t, p_d)
    np.testing.assert_allclose(r.sum(-1), 1.0, atol=1e-12)
    rejected_at_all = (np.maximum(p_t - p_d, 0).sum(-1) > 0)[:, None]
    assert not (r[(p_d >= p_t) & rejected_at_all] > 0).any()


@given(distribution_pairs())
def test_numpy_and_torch_agree(pair):
    p_t, p_d = pair
    t_t, t_d = torch.from_numpy(p_t), torch.from_numpy(p_d)
    for function in (overlap, total_variation, accept_probability, residual, step_law):
        ours, theirs = function(p_t, p_d), function(t_t, t_d)
        assert isinstance(theirs, torch.Tensor)
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_torch_dtype_is_kept(dtype):
    p_t, p_d = torch.tensor([[0.75, 0.25]], dtype=dtype), torch.tensor([[0.5, 0.5]], dtype=dtype)
    for function in (overlap, total_variation, accept_probability, residual, step_law):
        assert function(p_t, p_d).dtype == dtype
    assert one_hot(1, p_t).dtype == dtype


def test_numpy_dtype_is_kept():
    p_t, p_d = np.array([[0.75, 0.25]], np.float32), np.array([[0.5, 0.5]], np.float32)
    for function in (overlap, total_variation, accept_probability, residual, step_law):
        assert function(p_t, p_d).dtype == np.float32


def test_leading_axes_broadcast():
    p_t = np.full((4, 1, 3), 1 / 3)
    p_d = np.broadcast_to(np.array([0.5, 0.25, 0.25]), (5, 3))
    assert overlap(p_t, p_d).shape == (4, 5)
    assert residual(p_t, p_d).shape == (4, 5, 3)


# --- the wrong rules, as negative controls ---


def test_resampling_from_the_target_is_the_064_mistake():
    law = step_law(P_T, P_D, resample=P_T)
    assert law.tolist() == pytest.approx([0.64, 0.36], abs=1e-15)


def test_argmax_proposal_with_a_soft_ratio_is_biased():
    p_t = np.array([0.4, 0.3, 0.2, 0.1])
    p_d = np.array([0.2, 0.2, 0.5, 0.1])
    wrong = step_law(p_t, p_d, drawn_from=one_hot(2, p_t))
    assert abs(wrong - p_t).max() > 0.1
    right = step_law(p_t, one_hot(2, p_t))
    np.testing.assert_allclose(right, p_t, atol=1e-15)


# --- the edges ---


def test_accept_probability_where_the_draft_has_no_mass():
    assert accept_probability(np.array([0.5, 0.0]), np.array([0.0, 0.0])).tolist() == [1.0, 0.0]


def test_accept_probability_survives_subnormal_draft_mass():
    with np.errstate(all="raise"):
        assert accept_probability(np.array([0.5]), np.array([5e-324])).tolist() == [1.0]


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_residual_falls_back_to_the_target(make):
    p = make([0.5, 0.5])
    assert residual(p, p).tolist() == [0.5, 0.5]  # zero mass
    huge = make([float("inf"), 1.0])
    assert residual(huge, p).tolist() == [float("inf"), 1.0]  # mass that overflows


def test_residual_falls_back_row_by_row():
    p_t = np.array([[0.5, 0.5], [0.7, 0.3]])
    assert residual(p_t, np.full((2, 2), 0.5)).tolist() == [[0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_residual_raises_on_nan_from_either_side(make):
    good, bad = make([0.5, 0.5]), make([float("nan"), 0.5])
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(ValueError, match="NaN"):
            residual(*pair)


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_accept_probability_keeps_nan_visible(make):
    good, bad = make([0.5]), make([float("nan")])
    assert np.isnan(accept_probability(good, bad).tolist()).all()
    assert np.isnan(accept_probability(bad, good).tolist()).all()


BAD = {
    "negative mass": ([1.2, -0.2], "negative"),
    "sum too large": ([0.5, 0.6], "sum to 1"),
    "sum too small": ([0.5, 0.4], "sum to 1"),
    "nan": ([float("nan"), 1.0], "NaN"),
    "infinite": ([float("inf"), 0.0], "infinite"),
}


@pytest.mark.parametrize("make", [np.array, torch.tensor])
@pytest.mark.parametrize(("values", "message"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("function", [overlap, total_variation, step_law])
def test_bad_distributions_are_refused(function, make, values, message):
    good = make([0.5, 0.5])
    for pair in ((make(values), good), (good, make(values))):
        with pytest.raises(ValueError, match=message):
            function(*pair)


def test_shape_kind_and_dtype_are_refused():
    with pytest.raises(ValueError, match="same vocabulary"):
        overlap(np.array([1.0]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="batch axes"):
        overlap(np.full((2, 2), 0.5), np.full((3, 2), 0.5))
    with pytest.raises(ValueError, match="convert them to one kind"):
        overlap(np.array([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="got list, list"):
        overlap([0.5, 0.5], [0.5, 0.5])
    with pytest.raises(ValueError, match="floating-point"):
        validate_distribution(np.array([1, 0]))
    with pytest.raises(ValueError, match="last axis"):
        validate_distribution(np.array(1.0))
    with pytest.raises(ValueError, match="last axis"):
        validate_distribution(np.zeros((3, 0)))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        one_hot(2, P_T)


def test_tolerance_follows_the_dtype():
    off = np.array([0.5, 0.5 + 1e-5])
    with pytest.raises(ValueError, match="off by 1e-05"):
        validate_distribution(off)
    validate_distribution(off.astype(np.float32))
    validate_distribution(off, tolerance=1e-4)
    validate_distribution(np.zeros((0, 4)))  # an empty batch holds no bad row
    for dtype, slip in ((torch.float32, 1e-3), (torch.float16, 0.05), (torch.bfloat16, 0.05)):
        with pytest.raises(ValueError, match="does not sum to 1"):
            validate_distribution(torch.tensor([0.5, 0.5 + slip], dtype=dtype))


@pytest.mark.parametrize("mass", [1e-9, 1e-300])
def test_the_smallest_negative_mass_is_refused(mass):
    with pytest.raises(ValueError, match="negative"):
        validate_distribution(np.array([1.0, -mass]))


def test_a_real_vocabulary_in_fp32_passes_validation():
    logits = torch.randn(4, 151_936, generator=torch.Generator().manual_seed(0)) * 3
    validate_distribution(torch.softmax(logits, -1))
