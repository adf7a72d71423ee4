"""verify against its reference and the engine's rule: the same tokens; the law; what is broken; what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import lanes
from scipy.stats import chi2

from companion.engine.draws import KeyedDraws
from companion.engine.verify import verify_block, verify_greedy
from companion.kernels import philox
from companion.kernels.batch import Batch, Drafts
from companion.kernels.launch import Tile
from companion.kernels.rows import tempered
from companion.kernels.verify import verify, verify_reference

Case = tuple[torch.Tensor, Batch, Drafts | None]


def case(width: int, lengths: list[int], warm: list[float], kind: str, seed: int = 0) -> Case:
    """A batch whose drafts were really drawn from what comes with them; length -1 is a request without rows."""
    made = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *(n + 1 for n in lengths)]).cumsum(0)
    rows, requests = int(starts[-1]), len(lengths)
    temperature = torch.tensor(warm[:requests])
    logits = 2 * torch.randn(rows, width, generator=made)
    near = logits + torch.randn(rows, width, generator=made)
    heat = temperature[torch.repeat_interleave(torch.arange(requests), starts.diff())]
    law = tempered(near, heat).softmax(-1)
    drafted = torch.multinomial(law, 1, generator=made)[:, 0] if rows else torch.empty(0, dtype=torch.int64)
    if kind == "one-hot":
        drafted = torch.where(torch.rand(rows, generator=made) < 0.6, logits.argmax(-1), drafted)
    keys = philox.words(*range(100 * seed, 100 * seed + 2 * requests)).reshape(requests, 2)
    batch = Batch(drafted, starts, 250 + 3 * torch.arange(requests), keys, temperature)
    places = torch.arange(rows)
    if kind == "mixed":  # every third row one-hot
        places = torch.where(places % 3 == 0, -1, places)
    if kind == "logits":
        return logits, batch, Drafts(near, places, heat)
    return logits, batch, None if kind == "one-hot" else Drafts(law, places)


def on(device: str, dtype: torch.dtype, given: Case) -> Case:
    logits, batch, drafts = given
    moved = None if drafts is None else Drafts(*(None if t is None else t.to(device) for t in drafts))  # type: ignore[arg-type]
    return logits.to(device, dtype), Batch(*(t.to(device) for t in batch)), moved


def same(found: Any, expected: Any) -> None:
    assert found.counts.tolist() == expected.counts.tolist()
    assert found.tokens.tolist() == expected.tokens.tolist()


@lanes
@pytest.mark.parametrize("kind", ["one-hot", "laws", "mixed", "logits"])
@pytest.mark.parametrize(("width", "lengths"), [(1, [1, 0]), (2, [3, -1, 1, 0]), (1000, [16, 0, 5]), (151_936, [2, 1])])
def test_the_tokens_are_those_of_the_reference(
    device: str, dtype: torch.dtype, kind: str, width: int, lengths: list[int]
) -> None:
    logits, batch, drafts = on(device, dtype, case(width, lengths, [1.0, 0.0, 0.6, 2.0], kind))
    depth = max(lengths)
    found = verify(logits, batch, drafts, depth=depth)
    same(found, verify_reference(logits.double(), batch, drafts, depth=depth))
    assert found.tokens.shape == (len(lengths), depth + 1)


@lanes
@settings(max_examples=5)
@given(
    width=st.integers(1, 150),
    lengths=st.lists(st.integers(-1, 4), min_size=1, max_size=3),
    kind=st.sampled_from(["one-hot", "laws", "logits"]),
    seed=st.integers(0, 10**6),
)
def test_whatever_the_shape(
    device: str, dtype: torch.dtype, width: int, lengths: list[int], kind: str, seed: int
) -> None:
    logits, batch, drafts = on(device, dtype, case(width, lengths, [1.0, 0.3, 0.0], kind, seed))
    found = verify(logits, batch, drafts, depth=6, tile=Tile(64, 1, 1))
    same(found, verify_reference(logits.double(), batch, drafts, depth=6))


def test_the_reference_is_the_rule_of_the_engine() -> None:
    logits, batch, drafts = case(50, [4, 0, 7, 2, 5, 1] * 5, [1.0, 0.5, 0.0, 2.0, 1.0, 0.0] * 5, "laws")
    assert drafts is not None
    keys = [KeyedDraws(3, bytes([r])) for r in range(30)]
    batch = batch._replace(keys=torch.stack([philox.words(*key.words.tolist()) for key in keys]))
    found = verify_reference(logits, batch, drafts, depth=7)
    for r, draws in enumerate(keys):
        span = slice(int(batch.starts[r]), int(batch.starts[r + 1]))
        proposed, own = batch.drafted[span][:-1].tolist(), logits[span]
        if batch.temperature[r] == 0:
            accepted, token = verify_greedy(proposed, own.argmax(-1).tolist())
        else:
            p = (own / batch.temperature[r]).softmax(-1)
            accepted, token = verify_block(proposed, drafts.laws[span], p, draws, int(batch.positions[r]))
        assert found.tokens[r].tolist() == [*proposed[:accepted], token] + [-1] * (7 - accepted)
        assert int(found.counts[r]) == accepted + 1


def first_tokens(requests: int, device: str, *, honest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What many requests with one row and draft commit first [R], and the target's law [V]."""
    made = torch.Generator().manual_seed(1)
    logits, near = torch.randn(2, 6, generator=made), torch.randn(6, generator=made)
    q = near.softmax(-1)
    told = q if honest else torch.full((6,), 1 / 6)
    drafted = torch.full((requests, 2), -1)
    drafted[:, 0] = torch.multinomial(q, requests, replacement=True, generator=made)
    batch = Batch(
        drafted.flatten(),
        2 * torch.arange(requests + 1),
        torch.arange(requests) % 7,
        torch.stack([torch.arange(requests), 5 * torch.arange(requests)], 1),
        torch.ones(requests),
    )
    given = on(
        device,
        torch.float32,
        (logits.repeat(requests, 1), batch, Drafts(told[None], drafted.flatten().sign().clamp_max(0))),
    )
    call = verify if device == "cuda" else verify_reference
    return call(*given, depth=1).tokens[:, 0].cpu(), logits[0].double().softmax(-1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_first_token_follows_the_target_and_only_with_the_true_q(device: str) -> None:
    """On a CPU of the reference, whose tokens the kernel's are; the control states a q that was not drawn from."""
    count = 1000
    for honest in (True, False):
        tokens, law = first_tokens(count, device, honest=honest)
        expected = count * law
        statistic = float(((tokens.bincount(minlength=6) - expected) ** 2 / expected).sum())
        assert (statistic < chi2.isf(1e-4, 5)) == honest


@lanes
def test_broken_requests_commit_nothing_and_the_others_do(
    device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a launcher cannot see on a GPU: hide the values from it on a CPU as well."""
    monkeypatch.setattr("companion.kernels.batch.values_known", lambda tensor: False)
    logits, batch, drafts = case(40, [2, 2, 2, 2, 2, 3, 2], [1.0] * 7, "laws", seed=5)
    assert drafts is not None
    expected = verify_reference(logits.double(), batch, drafts, depth=3)
    logits[3, 7] = torch.nan  # request 1
    drafts.laws[6, batch.drafted[6]] = 0.0  # request 2
    batch.drafted[9] = 40  # request 3
    drafts.rows[12] = len(drafts.laws)  # request 4
    logits, batch, drafts = on(device, dtype, (logits, batch, drafts))
    found = verify(logits, batch, drafts, depth=2)  # request 5 brings three
    assert found.counts.tolist() == [int(expected.counts[0]), -1, -1, -1, -1, -1, int(expected.counts[6])]
    assert found.tokens[0].tolist() == expected.tokens[0, :3].tolist()
    assert found.tokens[6].tolist() == expected.tokens[6, :3].tolist()
    assert bool((found.tokens[1:6] == -1).all())


@lanes
def test_a_residual_without_mass_falls_back_to_the_target(device: str, dtype: torch.dtype) -> None:
    logits, batch, _ = case(30, [1], [1.0], "laws")
    q = 2 * logits.softmax(-1)  # nowhere below p
    q[0, batch.drafted[0]] += 1e6  # never accepted
    given = on(device, dtype, (logits, batch, Drafts(q, torch.tensor([0, -1]))))
    found = verify(*given, depth=1)
    assert found.counts.tolist() == [1]
    same(found, verify_reference(given[0].double(), *given[1:], depth=1))


@lanes
def test_masked_ids_are_never_committed(device: str, dtype: torch.dtype) -> None:
    logits, batch, drafts = case(64, [1] * 6, [1.0, 3.0, 0.0] * 2, "one-hot")
    logits[:, 5:] = -torch.inf
    found = verify(*on(device, dtype, (logits, batch, drafts)), depth=1)
    assert int(found.tokens.max()) < 5
    assert found.counts.tolist() == [int((row >= 0).sum()) for row in found.tokens.cpu()]


LOGITS, GOOD, _ = case(5, [1, 2], [1.0, 1.0], "one-hot")
LAW = torch.full((5, 5), 0.2)


def changed(**fields: torch.Tensor) -> Callable[[], object]:
    return lambda: verify(LOGITS, GOOD._replace(**fields), depth=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: verify(LOGITS.double(), GOOD, depth=2), "logits is torch.float64"),
        (lambda: verify(LOGITS, GOOD, depth=1), "a request brings 2 drafts, the kernel was given depth 1"),
        (lambda: verify(LOGITS, GOOD, depth=-1), "depth -1"),
        (lambda: verify(LOGITS, GOOD, Drafts(LAW.half(), GOOD.drafted), depth=2), "drafts.laws is torch.float16"),
        (lambda: verify(LOGITS, GOOD, Drafts(LAW[:, :4], GOOD.drafted), depth=2), "drafts.laws has shape"),
        (lambda: verify(LOGITS, GOOD, Drafts(LAW, torch.full((5,), 5)), depth=2), "run from -1 to 4"),
        (lambda: verify(LOGITS, GOOD, Drafts(LAW, GOOD.drafted, torch.ones(4)), depth=2), "temperature has shape"),
        (changed(drafted=torch.tensor([5, 0, 0, 0, 0])), "they run from 0 to 4"),
        (changed(drafted=torch.tensor([0, 0, -1, 0, 0])), "they run from 0 to 4"),
        (changed(starts=torch.tensor([0, 2, 6])), "at most 5 rows"),
        (changed(starts=torch.tensor([0, 3, 2])), "must rise"),
        (changed(starts=torch.tensor([0, 2, 5], dtype=torch.int32)), "starts is torch.int32"),
        (changed(positions=torch.tensor([0, -1])), "positions must be 0 or more"),
        (changed(keys=torch.zeros(2, 3, dtype=torch.int64)), "keys has shape"),
        (changed(temperature=torch.tensor([1.0, -1.0])), "or above, got -1.0"),
        (changed(temperature=torch.ones(2, device="meta")), "temperature is on meta"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_last_row_may_name_any_token_and_no_request_is_fine() -> None:
    verify(LOGITS, GOOD._replace(drafted=torch.tensor([0, -1, 0, 0, 99])), depth=2)
    empty = Batch(*(t[:0] for t in GOOD[:1]), torch.tensor([0]), *(t[:0] for t in GOOD[2:]))
    assert verify(LOGITS[:0], empty, depth=4).tokens.shape == (0, 5)
