"""What every launcher relies on: the seam to Triton, the checks, and random numbers equal to NumPy's."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from companion.engine.draws import KeyedDraws
from companion.kernels import launch, philox


def test_importing_the_kernels_imports_no_triton() -> None:
    code = "import sys, companion.engine.decode, companion.kernels.philox; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_recorded_launch_runs_nothing_and_needs_no_values() -> None:
    empty = torch.empty(8, dtype=torch.int64, device="meta")
    with launch.recording() as launches:
        assert launch.runs_here(empty)
        philox._fill[(1,)](empty, empty, empty, empty, 8, BLOCK=16, num_warps=2)
    assert not launch.runs_here(empty)
    (made,) = launches
    assert (made.kernel, made.grid) == (philox._fill, (1,))
    assert made.arguments["BLOCK"] == 16
    assert made.arguments["count"] == 8
    assert made.options["num_warps"] == 2


def test_a_tile_is_no_wider_than_its_row() -> None:
    tiles = (launch.Tile(4096, 8), launch.Tile(1024))
    assert launch.tile_for(tiles, 151_936) == launch.Tile(4096, 8)
    assert launch.tile_for(tiles, 1000).block == 1024
    assert [launch.power_of_two(n) for n in (0, 1, 2, 3, 1024, 1025)] == [1, 1, 2, 4, 1024, 2048]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ([1.0], "must be a tensor, got list"),
        (torch.zeros(2, 3, dtype=torch.float64), r"float64; the kernel takes .*convert it first"),
        (torch.zeros(2, 4), r"shape \[2, 4\], expected \[any, 3\]"),
        (torch.zeros(3), r"shape \[3\], expected \[any, 3\]"),
        (torch.zeros(3, 2).T, r"strides \[1, 2\], which leave gaps"),
        (torch.zeros(2, 6)[:, ::2], "leave gaps"),
        (torch.zeros(2, 6)[:, :3], "leave gaps"),
        (torch.zeros(2, 3, device="meta"), "is on meta and the other tensors on cpu"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_in_one_sentence(tensor: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        launch.require(
            "logits",
            tensor,  # type: ignore[arg-type]
            dtypes=launch.FLOATS,
            shape=(None, 3),
            device=torch.device("cpu"),
            contiguous=True,
        )
    assert "\n" not in str(error.value)


def test_rows_may_be_apart_and_a_row_of_one_may_have_any_stride() -> None:
    launch.require("rows", torch.zeros(2, 6)[:, :3], dtypes=launch.FLOATS, shape=(None, 3))
    launch.require("rows", torch.zeros(4, 6)[:, :1], dtypes=launch.FLOATS, shape=(4, None))


def test_ids_outside_the_row_are_refused_where_they_can_be_seen() -> None:
    launch.require_ids("tokens", torch.tensor([0, 4]), 5)
    launch.require_ids("tokens", torch.tensor([], dtype=torch.int64), 5)
    launch.require_ids("tokens", torch.tensor([-1, 4]), 5, least=-1)
    launch.require_ids("tokens", torch.empty(3, dtype=torch.int64, device="meta"), 5)
    for bad in ([5], [-1, 0]):
        with pytest.raises(ValueError, match="they run from 0 to 4"):
            launch.require_ids("tokens", torch.tensor(bad), 5)


def test_the_shared_chunk_is_the_one_the_engine_draws() -> None:
    draws = KeyedDraws(11, b"somebody")
    made = philox.chunk(draws.words, "target", 2)
    assert made.tolist() == [draws.uniform("target", 512 + i) for i in range(philox.CHUNK)]


@pytest.mark.interpreter
@given(
    seed=st.integers(-(2**127), 2**127 - 1),
    purpose=st.sampled_from(["accept", "target", "draft/0", "draft/123"]),
    positions=st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
)
def test_the_device_makes_the_numbers_of_the_engine_bit_for_bit(seed: int, purpose: str, positions: list[int]) -> None:
    draws, n = KeyedDraws(seed, b"prompt"), len(positions)
    out = torch.full((n + 1,), -1.0, dtype=torch.float64)
    keys = philox.words(*draws.words.tolist()).repeat(n)
    purposes = philox.words(philox.purpose_word(purpose)).repeat(n)
    philox._fill[(1,)](out, keys, purposes, torch.tensor(positions), n, BLOCK=8)
    assert out.tolist() == [*(draws.uniform(purpose, p) for p in positions), -1.0]


@pytest.mark.interpreter
def test_neighbouring_positions_purposes_and_keys_share_no_numbers() -> None:
    """A statistical check with its control: uniform over [0, 1), and uncorrelated between purposes."""
    n = 2048
    columns = []
    for name in ("accept", "target"):
        out = torch.empty(n, dtype=torch.float64)
        keys, purposes = philox.words(1, 2).repeat(n), philox.words(philox.purpose_word(name)).repeat(n)
        philox._fill[(1,)](out, keys, purposes, torch.arange(n), n, BLOCK=n)
        columns.append(out.numpy())
    bound = 4.5 / np.sqrt(n)
    correlation = np.corrcoef(columns)[0, 1]
    assert abs(correlation) < bound
    assert abs(np.corrcoef(columns[0][:-1], columns[0][1:])[0, 1]) < bound
    assert np.corrcoef(columns[0], columns[0] + columns[1])[0, 1] > bound
    counts = np.histogram(columns[0], 16, (0, 1))[0]
    assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 40  # 99.95 % of a chi-square with 15 degrees of freedom
