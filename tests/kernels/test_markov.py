"""The Markov block: tokens, q, sums and confidences against PyTorch in fp64, in full, in fp8, and on candidates."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from companion.engine.draws import KeyedDraws, inverse_cdf
from companion.kernels.block import Confidence
from companion.kernels.candidates import candidate_set, full_rows, markov_candidates
from companion.kernels.fp8 import Fp8Rows
from companion.kernels.launch import recording
from companion.kernels.markov import EXAMPLES, markov, markov_reference
from companion.kernels.philox import purpose_word, words
from companion.kernels.pick import Picked, RowDraws

WIDTHS = [1, 2, 1000, 151_936]
TOLERANCE = 2e-5  # of logits of size 10 and of logarithms of their sums, in fp32

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")  # NumPy on what tests make extreme


class Block(NamedTuple):
    logits: Tensor
    w1: Tensor
    w2: Tensor | Fp8Rows
    anchors: Tensor
    temperatures: Tensor
    draws: RowDraws
    confidence: Confidence | None


def draws_of(requests: int, position: int = 250) -> tuple[RowDraws, list[KeyedDraws]]:
    """Each request's words, and the engine's own draws for them. Positions cross the end of a chunk of 256."""
    own = [KeyedDraws(7, bytes([r])) for r in range(requests)]
    keys = words(*[int(word) for draw in own for word in draw.words]).view(requests, 2)
    purposes = words(*[purpose_word(f"draft/{r}") for r in range(requests)])
    return RowDraws(keys, purposes, torch.arange(requests) + position), own


def block(width: int, requests: int = 3, steps: int = 3, rank: int = 16, *, fp8: bool = False) -> Block:
    generator = torch.Generator().manual_seed(width + requests)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    w2 = normal(width, rank) / math.sqrt(rank)
    return Block(
        3 * normal(requests, steps, width),
        normal(width, rank),
        Fp8Rows.of(w2) if fp8 else w2,
        torch.randint(width, (requests,), generator=generator),
        torch.tensor([1.0, 0.0, 0.6, 1e-38, 5.0])[torch.arange(requests) % 5],
        draws_of(requests)[0],
        Confidence(normal(requests, steps), normal(rank) / 4),
    )


def assert_right(b: Block, picked: Picked, *, share: float = 1e-5) -> None:
    """Against fp64, given the tokens before; the token itself from the engine's own uniform and its inverse CDF."""
    own = draws_of(len(b.anchors))[1]
    matrix = (b.w2.matrix() if isinstance(b.w2, Fp8Rows) else b.w2).double()
    for r in range(len(b.anchors)):
        before = int(b.anchors[r])
        temperature = max(float(b.temperatures[r]), torch.finfo(torch.float32).tiny)
        for k in range(b.logits.shape[1]):
            row = b.logits[r, k].double() + matrix @ b.w1[before].double()
            torch.testing.assert_close(picked.logits[r, k].double(), row, rtol=0, atol=TOLERANCE)
            kept = picked.logits[r, k].double()  # what was drawn from: q must be of this very row
            token = int(picked.tokens[r, k])
            if b.temperatures[r] == 0:
                assert token == int(kept.argmax())
                assert picked.q[r, k] == 1.0
            else:
                p = ((kept - kept.max()) / temperature).softmax(0)
                assert token == inverse_cdf(p, own[r].uniform(f"draft/{r}", 250 + r + k))
                torch.testing.assert_close(picked.q[r, k].double(), p[token], rtol=share, atol=1e-12)
                lse = torch.logsumexp(kept / temperature, 0).float()  # overflows at a temperature of 1e-38
                torch.testing.assert_close(picked.lse[r, k], lse, rtol=1e-6, atol=TOLERANCE)
            if b.confidence is not None:
                score = b.confidence.bases[r, k].double() + b.w1[before].double() @ b.confidence.weights.double()
                assert float(picked.confidence[r, k]) == pytest.approx(float(score.sigmoid()), abs=1e-6)
            before = token


def test_the_reference_is_the_definition() -> None:
    for fp8 in (False, True):
        b = block(1000, requests=5, fp8=fp8)
        assert_right(b, markov_reference(*b))


@pytest.mark.interpreter
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_kernel_is_the_definition(width: int, fp8: bool) -> None:
    b = block(width, requests=1 if width > 1000 else 5, steps=2, fp8=fp8)
    assert_right(b, markov(*b))


@pytest.mark.interpreter
def test_more_rows_than_a_tile_and_a_rank_that_no_block_divides() -> None:
    b = block(70, requests=67, steps=1, rank=100)
    assert_right(b, markov(*b))


@pytest.mark.interpreter
def test_rows_that_are_masked_tied_one_hot_or_extreme() -> None:
    b = block(9000, requests=5, steps=4)
    plain = torch.zeros_like(b.logits)
    plain[:, 0, 1::2] = -math.inf  # a masked id adds nothing
    plain[:, 1] = -math.inf
    plain[:, 1, 4097] = 3.0  # one token
    plain[:, 3] = 1e30  # all equal
    plain[:, 2, [17, 5000]] = 80.0  # two that tie, in two tiles
    b = b._replace(logits=plain, w2=torch.zeros_like(b.w1))
    picked = markov(*b)
    # thousands of 1e-7 added to 1 in fp32, which the interpreter does one after another and a GPU in a tree
    assert_right(b, picked, share=5e-5)
    assert not (picked.tokens[:, 0] % 2).any()
    assert (picked.tokens[:, 1] == 4097).all()
    assert (picked.q[:, 1] == 1.0).all()
    assert picked.tokens[1, 2] == 17  # greedy: the lower id
    assert picked.tokens[1, 3] == 0


@pytest.mark.interpreter
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_distribution_has_no_q_and_a_token_inside(bad: float) -> None:
    b = block(1000, requests=2, steps=2)
    broken = b.logits.clone()
    if bad == -math.inf:
        broken[:, 0] = bad
    else:
        broken[:, 0, 500] = bad
    for picked in (markov(*b._replace(logits=broken)), markov_reference(*b._replace(logits=broken))):
        assert picked.q[:, 0].isnan().all()
        assert picked.lse[:, 0].isnan().all()
        assert ((picked.tokens >= 0) & (picked.tokens < 1000)).all()


@pytest.mark.interpreter
def test_batch_mates_change_no_token() -> None:
    b = block(1000, requests=5)
    together = markov(*b)
    for r in (0, 2, 4):
        draws = RowDraws(*(column[r : r + 1] for column in b.draws))
        alone = Block(b.logits[r : r + 1], b.w1, b.w2, b.anchors[r : r + 1], b.temperatures[r : r + 1], draws, None)
        picked = markov(*alone)
        assert torch.equal(picked.tokens[0], together.tokens[r])
        assert torch.equal(picked.q[0], together.q[r])
        assert picked.confidence.isnan().all()


@pytest.mark.interpreter
@pytest.mark.parametrize("kind", ["full", "candidates"])
def test_tokens_follow_q_and_the_control_does_not(kind: str) -> None:
    """Requests in one launch, alike but for their key; chi-square of the drawn tokens, 99.99 % bound."""
    n, width = 160, 6
    b = block(width, requests=1, steps=1)
    draws = RowDraws(torch.arange(2 * n).view(n, 2) * 977, b.draws.purposes.expand(n).clone(), torch.zeros(n).long())
    many = Block(
        b.logits.expand(n, 1, width), b.w1, b.w2, b.anchors.expand(n).clone(), torch.full((n,), 0.8), draws, None
    )
    kept = torch.tensor([0, 2, 3, 5]).expand(n, 1, 4)
    picked = markov_candidates(*many[:3], kept, *many[3:]) if kind == "candidates" else markov(*many)
    row = full_rows(picked, kept, width)[0, 0] if kind == "candidates" else picked.logits[0, 0]
    seen = np.bincount(picked.tokens[:, 0].numpy(), minlength=width)

    def chi_square(temperature: float) -> float:
        p = (row / temperature).softmax(0).double().numpy()
        alive = p > 0
        assert not seen[~alive].any()
        return float((((seen - n * p) ** 2)[alive] / (n * p[alive])).sum())

    assert chi_square(0.8) < 25.7  # 5 degrees of freedom
    assert chi_square(2.4) > 25.7


def test_fp8_rows_are_near_exact_in_their_own_scale_and_kept_in_half_the_bytes() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(50, 64, generator=generator) * torch.logspace(-6, 6, 50)[:, None]
    matrix[7] = 0.0
    rounded = Fp8Rows.of(matrix)
    error = (rounded.matrix() - matrix).abs()
    assert (error <= matrix.abs() / 16 + rounded.scales[:, None] / 1024 + 1e-12).all()  # half a step of 3 bits
    largest = matrix.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(rounded.matrix().gather(1, largest), matrix.gather(1, largest), rtol=1e-6, atol=0)
    assert rounded.bits.element_size() * 2 == torch.bfloat16.itemsize
    with pytest.raises(ValueError, match="NaN or infinite"):
        Fp8Rows.of(torch.tensor([[1.0, math.nan]]))


@pytest.mark.interpreter
def test_the_kernel_decodes_every_byte_of_e4m3_exactly() -> None:
    """One byte a row against an embedding of 1: the logits are the values themselves."""
    bits = torch.arange(256, dtype=torch.uint8)
    finite = (bits & 0x7F) != 0x7F
    w2 = Fp8Rows(bits[finite][:, None], torch.ones(254))
    width = 254
    picked = markov(
        torch.zeros(1, 1, width), torch.ones(width, 1), w2, torch.tensor([0]), torch.ones(1), draws_of(1)[0]
    )
    assert torch.equal(picked.logits[0, 0], bits[finite].view(torch.float8_e4m3fn).float())


@pytest.mark.interpreter
@pytest.mark.parametrize("fp8", [False, True])
def test_candidates_are_the_full_rows_without_the_others(fp8: bool) -> None:
    b = block(1000, requests=5, fp8=fp8)
    candidates = candidate_set(b.logits, 100)
    picked = markov_candidates(*b[:3], candidates, *b[3:])
    rows = full_rows(picked, candidates, 1000)
    masked = torch.full_like(b.logits, -math.inf).scatter(-1, candidates, b.logits.gather(-1, candidates))
    assert_right(b._replace(logits=masked), picked._replace(logits=rows))
    assert (rows > -math.inf).sum() == 100 * 15
    every = torch.arange(1000).expand(5, 3, 1000)
    full, all_of_them = markov(*b), markov_candidates(*b[:3], every, *b[3:])
    assert torch.equal(full.tokens, all_of_them.tokens)
    torch.testing.assert_close(full.q, all_of_them.q, rtol=1e-5, atol=0)


@pytest.mark.interpreter
@settings(max_examples=5)
@given(
    width=st.integers(1, 300), requests=st.integers(0, 2), steps=st.integers(1, 2), rank=st.integers(1, 40),
    count=st.integers(1, 300), fp8=st.booleans(),
)  # fmt: skip
def test_any_shape(width: int, requests: int, steps: int, rank: int, count: int, fp8: bool) -> None:
    b = block(width, requests, steps, rank, fp8=fp8)
    assert_right(b, markov(*b))
    candidates = candidate_set(b.logits, min(count, width))
    picked = markov_candidates(*b[:3], candidates, *b[3:])
    masked = torch.full_like(b.logits, -math.inf).scatter(-1, candidates, b.logits.gather(-1, candidates))
    assert_right(b._replace(logits=masked), picked._replace(logits=full_rows(picked, candidates, width)))


def test_without_a_gpu_or_the_interpreter_the_reference_runs() -> None:
    b = block(1000)
    assert torch.equal(markov(*b).logits, markov_reference(*b).logits)
    candidates = candidate_set(b.logits, 10)
    masked = torch.full_like(b.logits, -math.inf).scatter(-1, candidates, b.logits.gather(-1, candidates))
    picked = markov_candidates(*b[:3], candidates, *b[3:])
    assert_right(b._replace(logits=masked), picked._replace(logits=full_rows(picked, candidates, 1000)))


def test_what_does_not_fit_is_refused_before_a_launch() -> None:
    b = block(50)
    fp8 = Fp8Rows.of(torch.ones(50, 16))
    bad: dict[str, dict[str, object]] = {
        "logits is torch.float64": {"logits": b.logits.double()},
        "w1 has shape": {"w1": b.w1[:-1]},
        "w2 is torch.bfloat16": {"w2": b.w2.bfloat16()},  # type: ignore[union-attr]
        "w2 has strides": {"w2": b.w2.t().contiguous().t()},  # type: ignore[union-attr]
        "w2.bits is torch.int8": {"w2": fp8._replace(bits=fp8.bits.to(torch.int8))},
        "w2.scales has shape": {"w2": fp8._replace(scales=fp8.scales[1:])},
        "anchors holds ids from .* to 50": {"anchors": torch.tensor([0, 1, 50])},
        "anchors is on meta": {"anchors": b.anchors.to("meta")},
        "temperatures must be finite": {"temperatures": torch.tensor([1.0, -1.0, math.nan])},
        "temperatures is torch.float64": {"temperatures": b.temperatures.double()},
        "draws.keys has shape": {"draws": b.draws._replace(keys=b.draws.keys[:2])},
        "positions must be 0 or more": {"draws": b.draws._replace(positions=b.draws.positions - 300)},
        "bases has shape": {"confidence": Confidence(torch.zeros(3, 2), torch.zeros(16))},
        "weights has shape": {"confidence": Confidence(torch.zeros(3, 3), torch.zeros(15))},
    }
    for message, changed in bad.items():
        with pytest.raises(ValueError, match=message):
            markov(*b._replace(**changed))  # type: ignore[arg-type]
    for message, ids in {
        "there are 51 candidates": torch.arange(51).expand(3, 3, 51),
        "rise along each row": torch.tensor([3, 3]).expand(3, 3, 2),
        "ids from 0 to 49": torch.tensor([3, 50]).expand(3, 3, 2),
    }.items():
        with pytest.raises(ValueError, match=message):
            markov_candidates(*b[:3], ids, *b[3:])
    with pytest.raises(ValueError, match="must number 1 to 50"):
        candidate_set(b.logits, 51)


def test_a_block_needs_no_value_of_a_tensor() -> None:
    for call in EXAMPLES.values():
        with recording() as launches:
            assert call().tokens.shape[1] == 7
        assert [made.kernel.__name__ for made in launches] == ["_correct", "pick"] * 7
