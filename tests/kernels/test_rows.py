"""probe and overlap against fp64: odd sizes, masked ids, ties, extremes; what they refuse; controls."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import lanes

from companion.acceptance import overlap as overlap_of_laws
from companion.kernels.launch import Tile
from companion.kernels.overlap import overlap, overlap_reference
from companion.kernels.probe import moments, probe, probe_reference
from companion.kernels.rows import row_parts

# fp32 against fp64. A log-sum is off by half a unit in the last place of its own size, an entropy by a few roundings of
# numbers up to ln V = 12, a probability by what its exponent is off: |x - m| times 2^-24.
LOG_SUM, ENTROPY, MASS = 4e-7, 3e-6, 3e-6


def rows_of(width: int, seed: int = 0) -> torch.Tensor:
    """One row of every kind [8, V]."""
    made = torch.Generator().manual_seed(seed)
    x = 4 * torch.randn(8, width, generator=made)
    x[1, torch.rand(width, generator=made) < 0.7] = -torch.inf
    x[1, width // 2] = 0.0
    x[2] = -torch.inf
    x[2, width - 1] = -3.0  # one-hot
    x[3] = 2.5  # all equal
    x[4] = x[4].round()  # ties, also for the first place
    x[5] *= 2500  # extreme
    x[6] = -1e30
    x[6, width // 3] = 1e30
    x[7] += 1e4  # far from zero
    return x


@lanes
@pytest.mark.parametrize("width", [1, 2, 3, 1000, 1024, 151_936])
@pytest.mark.parametrize("warm", [(1.0,), (0.6, 1.0, 0.0, 2.0, 1e-3, 0.0, 1.0, 1e-30)])
def test_probe_equals_fp64(device: str, dtype: torch.dtype, width: int, warm: tuple[float, ...]) -> None:
    logits = rows_of(width).to(device, dtype)
    temperature = torch.tensor(warm, device=device).expand(8).contiguous()
    ids = sorted({0, width // 2, width - 1})
    found = probe(logits, torch.tensor(ids, device=device), temperature)
    exact = probe_reference(logits.double(), ids, temperature)
    assert found.best.tolist() == exact.best.tolist()
    torch.testing.assert_close(found.entropy.double(), exact.entropy, rtol=0, atol=ENTROPY)
    torch.testing.assert_close(found.max_p.double(), exact.max_p, rtol=MASS, atol=0)
    torch.testing.assert_close(found.mass.double(), exact.mass, rtol=MASS, atol=1e-12)
    torch.testing.assert_close(found.log_sum.double(), exact.log_sum, rtol=LOG_SUM, atol=LOG_SUM)


@lanes
@pytest.mark.parametrize("width", [1, 2, 1000, 151_936])
def test_overlap_equals_fp64(device: str, dtype: torch.dtype, width: int) -> None:
    target, draft = (rows_of(width, seed).to(device, dtype) for seed in (0, 1))
    target[5:] = target[0]
    draft[5], draft[6] = target[5], -target[6]
    temperature = torch.tensor([1.0, 0.7, 1.0, 3.0, 0.0, 0.0, 0.3, 1.0], device=device)
    found, exact = overlap(target, draft, temperature), overlap_reference(target.double(), draft.double(), temperature)
    torch.testing.assert_close(found.overlap.double(), exact.overlap, rtol=MASS, atol=1e-9)
    torch.testing.assert_close(found.log_sum_target.double(), exact.log_sum_target, rtol=LOG_SUM, atol=LOG_SUM)
    torch.testing.assert_close(found.log_sum_draft.double(), exact.log_sum_draft, rtol=LOG_SUM, atol=LOG_SUM)
    assert found.overlap[5] == 1.0  # the same place at temperature 0


@lanes
@settings(max_examples=6)
@given(
    rows=st.integers(0, 3), width=st.integers(1, 200), block=st.sampled_from([64, 128, 256]), seed=st.integers(0, 99)
)
def test_how_a_row_is_cut_into_parts_changes_nothing(
    device: str, dtype: torch.dtype, rows: int, width: int, block: int, seed: int
) -> None:
    logits, other = (rows_of(width, seed + i)[:rows].to(device, dtype) for i in (0, 1))
    tile = Tile(block, 1, 1)
    for cut, exact in zip(
        (*probe(logits, tile=tile)[:2], *overlap(logits, other, tile=tile)),
        (*probe_reference(logits.double())[:2], *overlap_reference(logits.double(), other.double())),
        strict=True,
    ):
        torch.testing.assert_close(cut.double(), exact, rtol=ENTROPY, atol=ENTROPY)
    assert probe(logits, tile=tile).best.tolist() == logits.argmax(-1).tolist()


@lanes
def test_rows_may_be_apart(device: str, dtype: torch.dtype) -> None:
    wide = rows_of(300)[:2].repeat(4, 1).to(device, dtype)
    apart, other = wide[::2, :100], wide[:4, 200:]
    assert apart.stride(0) == 600
    for found, packed in zip(probe(apart), probe(apart.contiguous()), strict=True):
        assert found.tolist() == packed.tolist()
    for found, packed in zip(overlap(apart, other), overlap(apart.contiguous(), other.contiguous()), strict=True):
        assert found.tolist() == packed.tolist()


@lanes
@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_a_row_that_is_no_distribution_shows_in_its_log_sum(device: str, dtype: torch.dtype, broken: float) -> None:
    logits = torch.zeros(3, 70, device=device, dtype=dtype)
    logits[1, 3] = broken
    if broken == -math.inf:
        logits[1] = broken
    for temperature in (None, torch.zeros(3, device=device)):
        assert torch.isfinite(probe(logits, temperature=temperature, tile=Tile(16, 1)).log_sum).tolist() == [
            True,
            False,
            True,
        ]
        for pair in ((logits, torch.zeros_like(logits)), (torch.zeros_like(logits), logits)):
            assert torch.isnan(overlap(*pair, temperature, tile=Tile(16, 1)).overlap).tolist() == [False, True, False]


@pytest.mark.interpreter
def test_a_temperature_below_zero_is_no_number_where_it_cannot_be_refused() -> None:
    parts = row_parts(torch.zeros(2, 8), torch.tensor([-1.0, 1.0]))
    assert torch.isnan(parts.total[:, 0]).tolist() == [True, False]


def test_the_references_agree_with_the_package() -> None:
    logits = rows_of(50).double()[:5]
    laws = logits.softmax(-1)
    found = probe_reference(logits, [3, 7])
    torch.testing.assert_close(found.entropy, -torch.special.xlogy(laws, laws).sum(-1))
    torch.testing.assert_close(found.mass, laws[:, [3, 7]].sum(-1))
    torch.testing.assert_close(found.log_sum, logits.logsumexp(-1))
    torch.testing.assert_close(torch.stack(found[:3]), torch.stack(moments(logits, [3, 7])))
    shuffled = rows_of(50, 1).double()[:5]
    shared = overlap_reference(logits, shuffled).overlap
    torch.testing.assert_close(shared, overlap_of_laws(laws, shuffled.softmax(-1)))


def test_without_a_gpu_or_the_interpreter_the_reference_answers() -> None:
    logits = rows_of(50)[:4]
    for found, expected in zip(probe(logits, torch.tensor([3])), probe_reference(logits, [3]), strict=True):
        assert found.tolist() == expected.tolist()
    assert (
        overlap(logits, logits.flip(0)).overlap.tolist() == overlap_reference(logits, logits.flip(0)).overlap.tolist()
    )


GOOD = torch.zeros(2, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: probe(GOOD.double()), "logits is torch.float64"),
        (lambda: probe(GOOD[0]), r"shape \[5\], expected \[any, any\]"),
        (lambda: probe(GOOD.T), "leave gaps"),
        (lambda: probe(torch.zeros(2, 0)), "no columns"),
        (lambda: probe(GOOD, torch.tensor([5])), "from 5 to 5; they run from 0 to 4"),
        (lambda: probe(GOOD, torch.tensor([-1, 2])), "from -1 to 2; they run from 0 to 4"),
        (lambda: probe(GOOD, torch.zeros(1025, dtype=torch.int64)), "1025 ids, the kernel holds 1024"),
        (lambda: probe(GOOD, torch.tensor([1.0])), "token_set is torch.float32"),
        (lambda: probe(GOOD, torch.tensor([1], device="meta")), "token_set is on meta"),
        (lambda: probe(GOOD, temperature=torch.ones(3)), r"temperature has shape \[3\], expected \[2\]"),
        (lambda: probe(GOOD, temperature=torch.tensor([1.0, -1.0])), "0 \\(greedy\\) or above, got -1.0"),
        (lambda: probe(GOOD, temperature=torch.tensor([1.0, math.nan])), "or above, got nan"),
        (lambda: overlap(GOOD, torch.zeros(2, 6)), r"draft has shape \[2, 6\], expected \[2, 5\]"),
        (lambda: overlap(GOOD, GOOD.double()), "draft is torch.float64"),
        (lambda: overlap(GOOD, GOOD.to("meta")), "draft is on meta"),
        (lambda: overlap(torch.zeros(2, 0), torch.zeros(2, 0)), "no columns"),
        (lambda: overlap(GOOD, GOOD, torch.tensor([1.0, -2.0])), "or above, got -2.0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
