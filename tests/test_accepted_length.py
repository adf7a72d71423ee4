"""tau and its inverse against exact rational arithmetic; conditional and survival forms against one another."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from companion.accepted_length import (
    certified_tau,
    conditional_from_survival,
    solve_acceptance,
    survival_from_conditional,
    tau,
    tau_from_conditional,
    tau_from_survival,
)

rates = st.floats(0.0, 1.0)
curves = arrays(np.float64, st.integers(1, 10), elements=st.floats(0.0, 1.0, width=32))


def exact_tau(a: float, gamma: int) -> float:
    return float(sum(Fraction(a) ** k for k in range(gamma + 1)))


@given(rates, st.integers(0, 40))
def test_tau_is_the_geometric_sum(a, gamma):
    assert tau(a, gamma) == pytest.approx(exact_tau(a, gamma), rel=2e-15)


@pytest.mark.parametrize("distance", [1e-3, 1e-8, 1e-12, 2.0**-53])
def test_tau_is_stable_near_one(distance):
    a = 1.0 - distance
    assert tau(a, 7) == pytest.approx(exact_tau(a, 7), rel=2e-15)


def test_tau_at_the_ends():
    assert tau(1.0, 7) == 8.0
    assert tau(0.0, 7) == 1.0
    assert tau(0.3, 0) == 1.0
    assert isinstance(tau(0.5, 7), float)


def test_tau_broadcasts_and_keeps_kind_and_dtype():
    table = tau(np.array([[0.0], [0.5], [1.0]]), np.array([1, 3]))
    assert table.tolist() == [[1.0, 1.0], [1.5, 1.875], [2.0, 4.0]]
    assert tau(torch.tensor([0.5]), 1).dtype == torch.float32
    assert tau(np.float32(0.5), 1).dtype == np.float32


@given(rates, st.integers(1, 30))
def test_solve_acceptance_inverts_tau(a, gamma):
    assert solve_acceptance(tau(a, gamma), gamma) == pytest.approx(a, abs=1e-14 * (gamma + 1))


def test_solve_acceptance_at_the_ends():
    assert solve_acceptance(8.0, 7) == 1.0
    assert solve_acceptance(1.0, 7) == pytest.approx(0.0, abs=1e-15)
    assert solve_acceptance(torch.tensor([1.0, 8.0]), 7).tolist() == pytest.approx([0.0, 1.0])


def test_verify_rate_is_not_the_rate_that_the_planner_wants():
    """Accepted over proposed + steps is tau / (gamma + 1): 0.52 for a = 0.8 and 0.18 for a = 0.3, at gamma = 7."""
    assert tau(0.8, 7) / 8 == pytest.approx(0.52, abs=5e-3)
    assert tau(0.3, 7) / 8 == pytest.approx(0.18, abs=5e-3)
    assert solve_acceptance(tau(0.8, 7), 7) == pytest.approx(0.8, abs=1e-14)


@given(curves)
def test_conditional_and_survival_carry_the_same_information(conditional):
    survival = survival_from_conditional(conditional)
    np.testing.assert_allclose(survival_from_conditional(conditional_from_survival(survival)), survival, rtol=1e-12)
    assert tau_from_conditional(conditional) == pytest.approx(tau_from_survival(survival))
    assert 1.0 <= tau_from_survival(survival) <= len(conditional) + 1


@given(rates, st.integers(1, 12))
def test_equal_conditionals_give_the_iid_form(a, gamma):
    assert tau_from_conditional(np.full(gamma, a)) == pytest.approx(tau(a, gamma), rel=1e-13)


@given(curves)
def test_a_bound_on_the_first_slot_certifies_no_less_than_what_happens(conditional):
    assert tau_from_conditional(conditional) <= certified_tau(conditional[0], len(conditional)) + 1e-12


def test_torch_matches_numpy_and_batches():
    c = np.array([[0.9, 0.8, 0.7], [0.5, 0.0, 0.3]])
    s = survival_from_conditional(torch.tensor(c))
    np.testing.assert_allclose(s.numpy(), survival_from_conditional(c))
    np.testing.assert_allclose(
        conditional_from_survival(s).numpy(), conditional_from_survival(s.numpy()), equal_nan=True
    )
    assert tau_from_survival(s).tolist() == pytest.approx([1 + 0.9 + 0.72 + 0.504, 1.5])


def test_a_position_that_no_round_reaches_has_no_rate():
    c = conditional_from_survival(np.array([0.5, 0.0, 0.0]))
    assert c[:2].tolist() == [0.5, 0.0]
    assert np.isnan(c[2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tau(1.1, 7), "percentage"),
        (lambda: tau(float("nan"), 7), "percentage"),
        (lambda: tau(0.5, 2.5), "whole number"),
        (lambda: tau(0.5, -1), "whole number"),
        (lambda: solve_acceptance(0.9, 7), "bonus token"),
        (lambda: solve_acceptance(8.1, 7), "bonus token"),
        (lambda: solve_acceptance(1.0, 0), "at least 1"),
        (lambda: survival_from_conditional(np.array([0.5, 1.5])), r"\[0, 1\]"),
        (lambda: survival_from_conditional(np.array([0.5, np.nan])), "NaN"),
        (lambda: tau_from_survival(np.array([0.5, 0.6])), "conditional acceptances"),
        (lambda: tau_from_survival(np.array([np.nan])), "NaN"),
        (lambda: tau_from_survival(np.array([1, 0])), "floating-point"),
        (lambda: certified_tau(1.5, 7), "percentage"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
