"""A sampled grid keeps its corners, keeps what it says, and leaves out nothing for good."""

import pytest
from tiers import sampled

CASES = [(depth, batch) for depth in range(1, 16) for batch in range(1, 9)]


def _is_full(case: object) -> bool:
    return any(mark.name == "full" for mark in getattr(case, "marks", ()))


@pytest.mark.parametrize("keep", [2, 3, 10, len(CASES), 10_000])
def test_sample_has_the_corners_and_the_rest_is_marked(keep: int) -> None:
    grid = sampled(CASES, keep)
    everyday = [case for case in grid if not _is_full(case)]
    assert len(grid) == len(CASES)
    assert len(everyday) == min(keep, len(CASES))
    assert everyday[0] == CASES[0]
    assert everyday[-1] == CASES[-1]
    assert [getattr(case, "values", case) for case in grid] == CASES


def test_sample_is_the_same_every_time() -> None:
    assert [_is_full(case) for case in sampled(CASES, 9)] == [_is_full(case) for case in sampled(CASES, 9)]


@pytest.mark.parametrize("case", sampled([1, 2, 3], keep=2))
def test_default_run_leaves_out_the_rest(case: int, request: pytest.FixtureRequest) -> None:
    assert case != 2 or request.config.getoption("--full")
