"""The engine's attention and the drafter's loop on their kernels, under the interpreter: the same drafts and tokens."""

from typing import Any

import pytest
import torch

from companion.drafters.dspark import kernel_block, sequential
from companion.drafters.dspark.heads import ConfidenceHead, GatedMarkovHead, MarkovHead
from companion.drafters.load import load_drafter
from companion.engine import judge, paged
from companion.engine.draws import KeyedDraws
from companion.engine.generate import generate
from companion.engine.load import load_target
from companion.kernels.launch import Kernel
from companion.protocols import Context, Draft, Sampling
from companion.scheduling.fixed import FixedDepth

PROMPTS = ["What is 3 + 4?", "Say hello, and then count to five."]
WARM = [Sampling(1.0), Sampling(0.0), Sampling(0.5)]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the kernels that ran."""
    names: set[str] = set()
    launch = Kernel.__getitem__
    monkeypatch.setattr(Kernel, "__getitem__", lambda self, grid: names.add(self.__name__) or launch(self, grid))
    return names


def on_kernels(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    for module in (paged, kernel_block):
        monkeypatch.setattr(module, "runs_here", lambda tensor: wanted)
    monkeypatch.setattr(judge, "runs_here", lambda tensor: False)  # has a test of its own


def blocks(head: MarkovHead | None, confidence: ConfidenceHead | None, samplings: list[Sampling]) -> list[Draft]:
    generator = torch.Generator().manual_seed(3)
    hidden, logits = torch.randn(3, 4, 8, generator=generator), 2 * torch.randn(3, 4, 50, generator=generator)
    contexts = [
        Context(r, list(range(r + 5)), sampling, KeyedDraws(1, bytes([r])), round=r)
        for r, sampling in enumerate(samplings)
    ]
    with torch.inference_mode():
        return sequential.draft_blocks(hidden, logits, contexts, [4, 2, 3], markov=head, confidence=confidence)


@pytest.mark.interpreter
@pytest.mark.parametrize("reads_markov", [True, False])
def test_a_block_is_the_loop_s(monkeypatch: pytest.MonkeyPatch, ran: set[str], reads_markov: bool) -> None:
    torch.manual_seed(0)
    head, confidence = MarkovHead(50, 16), ConfidenceHead(8, 16 if reads_markov else 0)
    on_kernels(monkeypatch, True)
    by_kernel = blocks(head, confidence, WARM)
    assert ran == {"_correct", "pick"}
    on_kernels(monkeypatch, False)
    for one, other in zip(by_kernel, blocks(head, confidence, WARM), strict=True):
        assert one.tokens == other.tokens
        assert one.confidence == pytest.approx(other.confidence, abs=1e-6)
        if other.probs is None:
            assert one.probs is None
        else:
            torch.testing.assert_close(one.probs, other.probs, rtol=1e-5, atol=1e-7)


@pytest.mark.interpreter
def test_what_the_kernel_does_not_hold_takes_the_loop(monkeypatch: pytest.MonkeyPatch, ran: set[str]) -> None:
    on_kernels(monkeypatch, True)
    with torch.inference_mode():
        blocks(GatedMarkovHead(50, 16, 8), None, WARM)
        blocks(MarkovHead(50, 16), None, [*WARM[:2], Sampling(1.0, top_k=5)])
    assert not ran


@pytest.mark.interpreter
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_logits_that_are_no_distribution_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    on_kernels(monkeypatch, True)
    head = MarkovHead(50, 16)
    head.markov_w2.weight.data[7] = torch.nan
    with pytest.raises(ValueError, match="no distribution"):
        blocks(head, None, WARM)


@pytest.mark.interpreter
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_ragged_batch_is_decoded_to_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch, ran: set[str], temperature: float
) -> None:
    target = load_target("tiny-qwen3")

    def decoded(wanted: bool) -> list[Any]:
        on_kernels(monkeypatch, wanted)
        options = {"temperature": temperature, "seed": 4, "max_new_tokens": 6, "policy": FixedDepth(3)}
        return generate(target, load_drafter("dspark", target), PROMPTS, **options)

    by_kernels = decoded(True)
    assert ran >= {"_attend", "_correct", "pick"}
    ran.clear()
    for one, other in zip(by_kernels, decoded(False), strict=True):
        assert one.tokens == other.tokens
        assert [row.accepted for row in one.rounds.rows] == [row.accepted for row in other.rounds.rows]
    assert not ran
