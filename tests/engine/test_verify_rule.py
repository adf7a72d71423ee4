"""The accept, reject, resample rule by itself: golden rounds, awkward masses, and input it must refuse."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from companion.engine.verify import verify_block, verify_greedy

GOLDEN = load_file(Path(__file__).parents[1] / "fixtures" / "golden_qwen3" / "verify_t1.safetensors")


class Replay:
    """Accept tests answered from recorded uniforms; the distribution of the next token is kept for inspection."""

    def __init__(self, uniforms, token=0):
        self.uniforms, self.answer = list(uniforms), token
        self.asked, self.drawn_from, self.position = [], None, None

    def accept(self, probability, position):
        self.asked.append(probability)
        return self.uniforms[len(self.asked) - 1] < probability

    def token(self, probs, purpose, position):
        self.drawn_from, self.position = probs, position
        assert purpose == "target"
        return self.answer


@pytest.mark.parametrize("number", range(1, 7))
def test_rounds_of_another_implementation(number):
    """Same probabilities, same uniforms: same accepted count, and the same distribution for the next token."""
    golden = {k.split(".")[1]: v for k, v in GOLDEN.items() if k.startswith(f"round{number}.")}
    accepted_there, token_there = golden["accepted_next"].tolist()
    draws = Replay(golden["uniforms"].tolist(), token_there)
    tokens = golden["verify_input_ids"][1:].tolist()
    accepted, token = verify_block(tokens, golden["draft_probs"], golden["target_probs"], draws, 100)
    assert (accepted, token) == (accepted_there, token_there)
    assert draws.position == 100 + accepted
    torch.testing.assert_close(torch.tensor(draws.asked), golden["accept_probs"][: len(draws.asked)])
    torch.testing.assert_close(draws.drawn_from, golden["residual"].flatten(), atol=1e-6, rtol=1e-5)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_equal_distributions_are_always_accepted_and_leave_no_residual():
    p = rows([0.25, 0.75], [0.5, 0.5])
    draws = Replay([1 - 2**-53])
    assert verify_block([0], p[:1], p, draws, 5) == (1, 0)
    assert draws.asked == [1.0]


def test_zero_residual_mass_falls_back_to_the_target():
    """p below q by rounding everywhere, and an accept test that fails all the same: the next token comes from p."""
    p, q = rows([0.5, 0.5 - 1e-12], [1.0, 0.0]), rows([0.5 + 1e-12, 0.5])
    draws = Replay([1.0])
    verify_block([0], q, p, draws, 5)
    assert torch.equal(draws.drawn_from, p[0])


def test_nan_never_reaches_an_accept_test():
    """NaN compares false with everything: a rule that asks `mass <= 0` would let it through."""
    good, bad = rows([0.5, 0.5], [0.5, 0.5]), rows([float("nan")] * 2)
    with pytest.raises(ValueError, match="drawn from"):
        verify_block([0], bad, good, Replay([0.5]), 5)


def test_a_one_hot_proposal_is_accepted_with_the_targets_own_mass():
    """q is one-hot for a deterministic drafter, so the test is p(x), and the residual is p without x."""
    p = rows([0.2, 0.5, 0.3], [1.0, 0.0, 0.0])
    draws = Replay([0.3])
    assert verify_block([0], None, p, draws, 5)[0] == 0
    assert draws.asked == [0.2]
    torch.testing.assert_close(draws.drawn_from, rows([0.0, 0.625, 0.375])[0])


def test_a_draft_token_that_the_target_forbids_is_rejected():
    p, q = rows([0.0, 1.0], [0.5, 0.5]), rows([0.5, 0.5])
    draws = Replay([0.0])
    assert verify_block([0], q, p, draws, 5)[0] == 0
    assert torch.equal(draws.drawn_from, p[0])


def test_a_token_that_its_own_drafter_could_not_draw_is_an_error():
    p = rows([0.5, 0.5], [0.5, 0.5])
    with pytest.raises(ValueError, match="must come with the distribution it was drawn from"):
        verify_block([0], rows([0.0, 1.0]), p, Replay([0.5]), 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_draft_probabilities_are_refused(dtype):
    """Tokens drawn from a bf16 softmax and judged by another tensor: two distributions where one is promised."""
    p = rows([0.5, 0.5], [0.5, 0.5]).float()
    with pytest.raises(ValueError, match="compute them in fp32"):
        verify_block([0], p[:1].to(dtype), p, Replay([0.5]), 5)


def test_draft_probabilities_over_another_vocabulary_are_refused():
    """A reduced draft head (32k of 152k) without its id map would be compared entry by entry with the wrong tokens."""
    p = rows([0.5, 0.5], [0.5, 0.5])
    with pytest.raises(ValueError, match="expected a row over 2 tokens"):
        verify_block([0], rows([0.5, 0.25, 0.25]), p, Replay([0.5]), 5)
    with pytest.raises(ValueError, match="for each of 2 drafted"):
        verify_block([0, 0], rows([0.5, 0.5]), rows(*[[0.5, 0.5]] * 3), Replay([0.5, 0.5]), 5)


@pytest.mark.parametrize(
    ("drafted", "accepted"),
    [([1, 0, 1, 1], 1), ([0, 1, 1, 1], 0), ([1, 1, 1, 1], 4), ([1, 1, 1, 0], 3), ([], 0)],
)
def test_acceptance_is_the_leading_run_only(drafted, accepted):
    """A later match after a mismatch counts for nothing: [1, 0, 1, 1] is one accepted token, not three."""
    best = [*[1] * len(drafted), 2]
    assert verify_greedy(drafted, best) == (accepted, best[accepted])


class ElsewhereTensor(torch.Tensor):
    """A tensor that behaves as if it lived on another device: no operation mixes it with one that does not."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.to, torch.Tensor.cpu):
            with torch._C.DisableTorchFunctionSubclass():
                return args[0].as_subclass(torch.Tensor)
        flat = [x for a in (*args, *(kwargs or {}).values()) for x in (a if isinstance(a, (list, tuple)) else [a])]
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        if any(isinstance(t, cls) for t in tensors) and not all(isinstance(t, cls) for t in tensors):
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")
        return super().__torch_function__(function, types, args, kwargs)


def test_draft_probabilities_on_another_device_are_moved():
    p, q = rows([0.7, 0.3], [0.5, 0.5]), rows([0.5, 0.5])
    elsewhere = q.as_subclass(ElsewhereTensor)
    with pytest.raises(RuntimeError, match="two devices"):
        p[0] - elsewhere[0]
    here, there = Replay([0.99]), Replay([0.99])
    assert verify_block([1], q, p, here, 5) == verify_block([1], elsewhere, p, there, 5)
    assert torch.equal(here.drawn_from, there.drawn_from)
