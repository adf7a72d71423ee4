"""schedule on the device gives the answers of the policies: prefix, ranking and the lagged top K, ties included."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from companion.kernels.launch import recording
from companion.kernels.schedule import EXAMPLES, Scheduled, schedule, schedule_reference
from companion.scheduling.capacity import Capacity, step_seconds
from companion.scheduling.prefix import global_tokens, prefix_lengths
from companion.scheduling.ranking import ranked, survival

CURVES = ({1: 100.0, 8: 99.0, 9: 60.0, 64: 40.0}, {1: 1.0}, {1: 90.0, 4096: 80.0})  # a cliff, no loss up to 1, a slope
STEPS = [Capacity.of_steps(curve) for curve in CURVES]


def table(requests: int, width: int, kind: str, seed: int) -> Tensor:
    """Confidences: any, few values that tie in many ways, saturated, or with drafts that end early."""
    generator = torch.Generator().manual_seed(seed)
    c = torch.rand(requests, width, generator=generator)
    if kind == "ties":
        c = torch.tensor([0.25, 0.5, 1.0])[(3 * c).long()]
    elif kind == "saturated":
        c = torch.where(c > 0.2, 1.0, c)
    elif kind == "short":
        c = torch.where(c > 0.3, c, 0.0)
    return c


def seconds_of(capacity: Capacity, c: Tensor) -> Tensor:
    return torch.from_numpy(step_seconds(capacity, len(c), c.numel()).copy())


def assert_the_policies_answer(c: Tensor, past: Tensor, capacity: Capacity, now: Scheduled, lagged: Scheduled) -> None:
    expected = prefix_lengths(c.numpy(), capacity)
    assert now.lengths.tolist() == expected.tolist()
    assert int(now.slots) == expected.sum()
    slots = global_tokens(past.numpy(), capacity)
    assert int(lagged.slots) == slots
    rows, _ = ranked(survival(c.numpy()))
    assert lagged.lengths.tolist() == np.bincount(rows[:slots], minlength=len(c)).tolist()


@pytest.mark.parametrize("kind", ["any", "ties", "saturated", "short"])
def test_the_reference_is_the_policy(kind: str) -> None:
    for seed in range(20):
        for capacity in STEPS:
            c, past = table(5 + seed, 4, kind, seed), table(5 + seed, 3, kind, 100 + seed)
            now = schedule_reference(c, seconds_of(capacity, c))
            lagged = schedule_reference(c, seconds_of(capacity, past), past)
            assert_the_policies_answer(c, past, capacity, now, lagged)


@pytest.mark.interpreter
@settings(max_examples=30)
@given(
    requests=st.integers(1, 40),
    width=st.integers(1, 8),
    past_width=st.integers(1, 8),
    kind=st.sampled_from(["any", "ties", "saturated", "short"]),
    capacity=st.sampled_from(STEPS),
    seed=st.integers(0, 1000),
)
def test_the_kernels_are_the_policy(
    requests: int, width: int, past_width: int, kind: str, capacity: Capacity, seed: int
) -> None:
    c, past = table(requests, width, kind, seed), table(requests, past_width, kind, seed + 1)
    now, lagged = schedule(c, seconds_of(capacity, c)), schedule(c, seconds_of(capacity, past), past)
    assert_the_policies_answer(c, past, capacity, now, lagged)


@pytest.mark.interpreter
@pytest.mark.parametrize("kind", ["any", "ties"])
def test_the_size_of_the_issue(kind: str) -> None:
    c, past = table(512, 7, kind, 1), table(512, 7, kind, 2)
    for capacity in STEPS:
        now, lagged = schedule(c, seconds_of(capacity, c)), schedule(c, seconds_of(capacity, past), past)
        assert_the_policies_answer(c, past, capacity, now, lagged)


@pytest.mark.interpreter
def test_what_saturates_keeps_its_prefix_whoever_asks() -> None:
    """Every slot ties with its predecessor; a rank that put the deeper one first would leave gaps, and it shows."""
    c = torch.ones(3, 4, dtype=torch.float64)
    past = torch.tensor([[1.0, 0.5, 0.0, 0.0]] * 3, dtype=torch.float64)
    seconds = torch.cumsum(torch.full((13,), 1e-3, dtype=torch.float64), 0) + 0.05
    seconds[6:] = 1.0  # five slots fit
    scheduled = schedule(c, seconds, past)
    assert int(scheduled.slots) == 5
    assert scheduled.lengths.tolist() == [2, 2, 1]


@pytest.mark.interpreter
def test_a_step_that_costs_too_much_admits_nothing_and_a_free_one_all_that_can_survive() -> None:
    c = torch.tensor([[0.9, 0.9], [0.9, 0.0]])
    dear = torch.tensor([1.0, 9.0, 9.0, 9.0, 9.0], dtype=torch.float64)
    assert schedule(c, dear).lengths.tolist() == [0, 0]
    assert schedule(c, torch.ones(5, dtype=torch.float64)).lengths.tolist() == [2, 1]


@pytest.mark.interpreter
def test_the_first_stall_is_not_the_best_point() -> None:
    """The control: a dip before the maximum. Algorithm 1 stops at it, the search over the past goes on."""
    c = torch.tensor([[1.0, 1.0, 1.0]])
    seconds = torch.tensor([1.0, 2.5, 1.0, 1.0], dtype=torch.float64)
    assert schedule(c, seconds).lengths.tolist() == [0]
    assert schedule(c, seconds, c).lengths.tolist() == [3]


def test_without_a_gpu_or_the_interpreter_the_reference_runs() -> None:
    c = table(5, 4, "any", 0)
    seconds = seconds_of(STEPS[0], c)
    assert torch.equal(schedule(c, seconds).lengths, schedule_reference(c, seconds).lengths)


def test_what_does_not_fit_is_refused_before_a_launch() -> None:
    c = table(5, 4, "any", 0)
    seconds = seconds_of(STEPS[0], c)
    bad = {
        "confidence is torch.bfloat16": (c.bfloat16(), seconds, None),
        "leave gaps": (c.t().contiguous().t(), seconds, None),
        r"past has shape \[4, 4\]": (c, seconds, c[:4]),
        "the batch is empty": (c[:0], seconds, None),
        "seconds is torch.float32": (c, seconds.float(), None),
        r"seconds has shape \[21\], expected \[11\]": (c, seconds, c[:, :2].contiguous()),
        "seconds is on meta": (c, seconds.to("meta"), None),
        "a probability between 0 and 1": (c + 1.0, seconds, None),
        "between 0 and 1; some": (c, seconds, c * float("nan")),
        "positive and finite": (c, -seconds, None),
        "the kernel holds 16384": (torch.zeros(4097, 4), seconds, None),
    }
    for message, arguments in bad.items():
        with pytest.raises(ValueError, match=message):
            schedule(*arguments)


def test_a_schedule_needs_no_value_of_a_tensor() -> None:
    """As in a graph's capture: tensors without values have none to read."""
    counts = {}
    for name, call in EXAMPLES.items():
        with recording() as launches:
            assert call().lengths.shape == (512,)
        counts[name] = len(launches)
    assert counts == {"schedule, Algorithm 1": 4, "schedule, lagged top K": 6}
