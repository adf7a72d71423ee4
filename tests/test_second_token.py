"""The joint law of two tokens from one batched forward, against forwards over whole sequences."""

import numpy as np
import pytest
import torch

import companion
from companion.engine.target import single
from companion.experiments import second_token


@pytest.fixture(scope="module")
def target():
    torch.set_num_threads(1)
    return companion.load_target("tiny-qwen3")


def test_next_two_is_the_targets_own_law(target):
    tokens = target.render("Tell me about bread.", thinking=False)
    cache = target.new_cache(1, len(tokens) + 4)
    target.forward(single([*tokens, 5, 6], slot=0, cached=0, device=target.device), cache)  # 5, 6: to be dropped
    found, first, second = second_token.next_two(target, cache, tokens, temperature=0.8, neglected=0.05)
    whole = (target.logits(tokens)[-1, : target.usable_vocab].double() / 0.8).softmax(-1).numpy()
    kept = np.sort(whole)[::-1][: len(first)]
    assert first == pytest.approx(kept / kept.sum(), abs=1e-6)
    assert kept.sum() >= 0.95 > kept[:-1].sum()
    for row in (0, len(first) - 1):
        token = found[row]
        assert whole[token] == pytest.approx(kept[row], abs=1e-7)
        after = (target.logits([*tokens, token])[-1, : target.usable_vocab].double() / 0.8).softmax(-1).numpy()
        assert second[row] == pytest.approx(after, abs=1e-6)


def test_rows_are_rates_and_do_not_depend_on_how_much_is_neglected():
    config = second_token.Config(prompts=1, anchors=4, neglected=1e-4)
    rows = second_token.run(config)
    assert len(rows) == 12
    assert ((rows["best"] <= 1 + 1e-12) & (rows["marginals"] <= rows["best"] + 1e-12)).all()
    assert (rows["information"] >= -1e-12).all()
    rough = second_token.run(config.model_copy(update={"neglected": 0.02}))
    assert (rough["firsts"] < rows["firsts"]).any()
    for rate in ("marginals", "best"):
        assert abs(rough[rate] - rows[rate]).max() < 2 * 0.02
