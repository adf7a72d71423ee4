"""Two drafted tokens, enumerated: against values by hand, a linear programme, and brute force."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from companion.acceptance import overlap
from companion.accepted_length import tau_from_conditional
from companion.collision import (
    best_parallel_second,
    conditional_acceptance,
    drafted_law,
    emitted_law,
    log_linear,
    mutual_information,
    survival,
    with_memory,
)

OF_COURSE = np.array([[0.6, 0.0], [0.0, 0.4]])  # of/no, then course/problem


def random_case(seed: int, shape: tuple[int, ...] = (3, 4, 2)) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    joint = rng.dirichlet(np.full(np.prod(shape), 0.3)).reshape(shape)
    known = [(), shape[:1], shape[1:2]]  # one table that knows nothing, one everything, one the token before
    return joint, [rng.dirichlet(np.ones(v), size=k) for v, k in zip(shape, known, strict=True)]


def test_the_collision_by_hand():
    parallel = with_memory(OF_COURSE, 0)
    assert drafted_law(parallel) == pytest.approx(np.array([[0.36, 0.24], [0.24, 0.16]]))
    assert conditional_acceptance(OF_COURSE, parallel) == pytest.approx([1.0, 0.52])  # 0.6^2 + 0.4^2
    assert survival(OF_COURSE, with_memory(OF_COURSE, 1)) == pytest.approx([1.0, 1.0])
    best = best_parallel_second(np.array([0.6, 0.4]), np.eye(2))
    assert best == pytest.approx([1.0, 0.0])
    assert survival(OF_COURSE, [parallel[0], best]) == pytest.approx([1.0, 0.6])


def test_three_tokens_need_a_memory_of_two():
    either = np.array([[[0.5, 0.0]], [[0.0, 0.5]]])  # either-way-or, neither-way-nor
    assert [survival(either, with_memory(either, m))[-1] for m in (0, 1, 2)] == pytest.approx([0.5, 0.5, 1.0])


@pytest.mark.parametrize("seed", range(8))
def test_what_is_emitted_is_the_target(seed):
    joint, drafter = random_case(seed)
    assert abs(drafted_law(drafter) - joint).max() > 0.01
    assert emitted_law(joint, drafter) == pytest.approx(joint, abs=1e-14)


@pytest.mark.parametrize("seed", range(4))
def test_survival_against_a_loop_over_blocks(seed):
    joint, drafter = random_case(seed)
    target = with_memory(joint, 2)
    found = np.zeros(3)
    for block in itertools.product(*map(range, joint.shape)):
        chance = 1.0
        for k, token in enumerate(block):
            p = target[k][block[:k]][token]
            q = drafter[k][block[k + 1 - drafter[k].ndim : k]][token]
            chance *= min(p, q)
            found[k] += chance / np.prod(joint.shape[k + 1 :])  # every continuation of a prefix passes here once
    assert survival(joint, drafter) == pytest.approx(found)
    conditional = conditional_acceptance(joint, drafter)
    assert tau_from_conditional(conditional) == pytest.approx(1 + found.sum())


def test_three_ways_to_average_differ_unless_the_first_token_is_exact():
    sure = [np.array([0.9, 0.1]), np.array([0.9, 0.1])]  # too sure of one phrase
    means = [conditional_acceptance(OF_COURSE, sure, along)[1] for along in ("target", "accepted", "draft")]
    assert means == pytest.approx([0.6 * 0.9 + 0.4 * 0.1, (0.6 * 0.9 + 0.1 * 0.1) / 0.7, 0.9**2 + 0.1**2])
    exact = [np.array([0.6, 0.4]), np.array([0.9, 0.1])]
    assert (
        len({round(conditional_acceptance(OF_COURSE, exact, a)[1], 12) for a in ("target", "accepted", "draft")}) == 1
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_best_parallel_second_token_is_the_linear_programmes(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.dirichlet(np.ones(5)), rng.dirichlet(np.full(6, 0.4), size=5)
    q = best_parallel_second(first, second)
    assert q.sum() == pytest.approx(1.0)
    value = first @ overlap(second, q)
    # maximise sum first(x) m(x, v) with m <= q(v), m <= second(v | x), q a distribution
    n, v = second.shape
    link = np.hstack([np.eye(n * v), -np.tile(np.eye(v), (n, 1))])
    cost = -np.concatenate([np.repeat(first, v), np.zeros(v)])
    bounds = [(0, level) for level in second.reshape(-1)] + [(0, 1)] * v
    total = np.concatenate([np.zeros(n * v), np.ones(v)])[None]
    solved = linprog(cost, A_ub=link, b_ub=np.zeros(n * v), A_eq=total, b_eq=[1], bounds=bounds)
    assert value == pytest.approx(-solved.fun, abs=1e-9)
    assert value >= first @ overlap(second, first @ second) - 1e-12  # no worse than the marginal
    for _ in range(50):  # and no random rival with any first token does better
        rival = [rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(v))]
        assert survival(first[:, None] * second, rival)[1] <= value + 1e-12


def test_mutual_information_is_the_kl_divergence_of_the_product():
    first, second = np.array([0.6, 0.4]), np.array([[0.7, 0.3, 0.0], [0.1, 0.2, 0.7]])
    joint, product = first[:, None] * second, np.outer(first, first @ second)
    held = joint > 0
    assert mutual_information(first, second) == pytest.approx((joint[held] * np.log(joint[held] / product[held])).sum())
    assert mutual_information(np.array([0.6, 0.4]), np.eye(2)) == pytest.approx(-0.6 * np.log(0.6) - 0.4 * np.log(0.4))
    assert mutual_information(first, np.tile(second[:1], (2, 1))) == pytest.approx(0.0, abs=1e-15)


def test_a_bias_of_rank_one_undoes_the_collision():
    base, sign = np.log([0.6, 0.4]), np.array([1.0, -1.0])
    second = [conditional_acceptance(OF_COURSE, [np.exp(base), log_linear(base, b * np.outer(sign, sign))])[1]
              for b in (0.0, 1.0, 20.0)]  # fmt: skip
    assert second[0] == pytest.approx(0.52)
    of, no = (1 / (1 + np.exp(-x)) for x in (base[0] - base[1] + 2, base[1] - base[0] + 2))
    assert second[1] == pytest.approx(0.6 * of + 0.4 * no)
    assert second[2] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: with_memory(OF_COURSE, -1), "at least 0"),
        (lambda: with_memory(OF_COURSE * 2, 0), "sum to 1"),
        (lambda: with_memory(np.array([[1.0, 0.0], [0.0, 0.0]]), 1), "never writes"),
        (lambda: survival(OF_COURSE, [np.array([1.0, 0.0])]), "1 tables"),
        (lambda: survival(OF_COURSE, [np.ones((2, 2)) / 2, np.ones(2) / 2]), "does not fit"),
        (lambda: survival(OF_COURSE, [np.ones(2) / 2, np.ones(2)]), "table 2 does not sum"),
        (lambda: conditional_acceptance(OF_COURSE, with_memory(OF_COURSE, 0), "own"), "weighted by"),  # type: ignore[arg-type]
        (lambda: best_parallel_second(np.array([1.0, 1.0]), np.eye(2)), "first does not sum"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
