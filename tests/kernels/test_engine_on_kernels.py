"""The engine decodes on the kernels under the interpreter: the same tokens and rounds as on their references."""

from typing import Any

import numpy as np
import pytest

from companion.drafters.dspark import kernel_block
from companion.drafters.load import load_drafter
from companion.engine import judge
from companion.engine.generate import GenerationResult, generate
from companion.engine.load import load_target
from companion.kernels.launch import Kernel
from companion.scheduling.fixed import FixedDepth

pytestmark = pytest.mark.interpreter

PROMPTS = ["What is 3 + 4?", "Say hello, and then count to five."]
COLUMNS = ("entropy", "max_p", "think_end_mass", "served_entropy", "served_max_p")


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    target = load_target("tiny-qwen3")
    return target, load_drafter("dspark", target)


def decoded(
    models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, kernels: bool, **options: Any
) -> tuple[list[GenerationResult], set[str]]:
    """The results, and the names of the kernels that ran."""
    ran: set[str] = set()
    launch = Kernel.__getitem__
    with monkeypatch.context() as patch:
        patch.setattr(Kernel, "__getitem__", lambda self, grid: ran.add(self.__name__) or launch(self, grid))
        patch.setattr(judge, "runs_here", lambda tensor: kernels)
        results = generate(*models, PROMPTS, max_new_tokens=7, seed=4, policy=FixedDepth(3), **options)
    return results, ran


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 20}])
def test_a_ragged_batch_is_decoded_to_the_same_tokens(
    models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    on_kernels, ran = decoded(models, monkeypatch, True, **options)
    on_references, none = decoded(models, monkeypatch, False, **options)
    assert ran >= {"_row_parts", "_probe", "_accept", "_masses", "_place"}
    assert not none & {"_row_parts", "_probe", "_accept", "_masses", "_place"}
    for one, other in zip(on_kernels, on_references, strict=True):
        assert one.tokens == other.tokens
        assert one.finish_reason == other.finish_reason
        for row, expected in zip(one.rounds.rows, other.rounds.rows, strict=True):
            assert (row.accepted, row.rejected, row.tokens) == (expected.accepted, expected.rejected, expected.tokens)
            for name in COLUMNS:
                np.testing.assert_allclose(getattr(row, name), getattr(expected, name), rtol=3e-5, atol=3e-6)
    assert sum(row.verified for one in on_kernels for row in one.rounds.rows) > 0


def test_replayed_steps_give_the_same_tokens(models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Target and block from fixed buffers, padded to their buckets, attention by the kernel."""
    direct, _ = decoded(models, monkeypatch, True, temperature=0.0)
    graphs = load_target("tiny-qwen3", graphs=True)
    replayed, ran = decoded((graphs, load_drafter("dspark", graphs)), monkeypatch, True, temperature=0.0)
    assert "_attend" in ran
    for one, other in zip(replayed, direct, strict=True):
        assert one.tokens == other.tokens
        assert [(row.accepted, row.rejected) for row in one.rounds] == [(r.accepted, r.rejected) for r in other.rounds]


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 20}])
def test_a_round_reads_the_device_once_for_the_drafts_and_once_for_the_commit(
    models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    reads = {judge: 0, kernel_block: 0}
    for module in reads:

        def count(*tensors: Any, module: Any = module, own: Any = module.download) -> Any:
            reads[module] += 1
            return own(*tensors)

        monkeypatch.setattr(module, "download", count)
    results, _ = decoded(models, monkeypatch, True, max_batch=2, **options)
    rounds = max(len(one.rounds) for one in results)
    assert reads[judge] == rounds + 1, "and once for the prompts"
    filtered = "top_k" in options  # sorting a row is no kernel of ours: those drafts are drawn one after another
    assert reads[kernel_block] in ((0,) if filtered else (rounds - 1, rounds)), "the last one may have no room"
