"""Eagle3's loss beyond the golden batch: padding, the mask, what is trained, and that training works."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from drafters.eagle3_fitted import VOCAB, greedy_texts, random_eagle3, teach

from companion.drafters.eagle3.model import Eagle3
from companion.training.eagle3_loss import eagle3_loss


def random_batch(texts, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(VOCAB, (texts, tokens), generator=generator),
        "features": torch.randn(texts, tokens, 2, 48, generator=generator),
        "target_hidden": torch.randn(texts, tokens, 48, generator=generator),
        "loss_mask": torch.randint(2, (texts, tokens), generator=generator),
    }


def test_a_padded_batch_adds_up_to_its_texts():
    """What stands behind the end of a text, ids, features and mask, changes nothing."""
    model, batch, lengths = random_eagle3(), random_batch(3, 20), torch.tensor([20, 9, 14])
    batch["loss_mask"][:, -8:] = 1
    together = eagle3_loss(model, **batch, lengths=lengths)
    alone = [
        eagle3_loss(model, **{key: value[i : i + 1, :n] for key, value in batch.items()})
        for i, n in enumerate(lengths.tolist())
    ]
    for name in ("cross_entropy", "overlap", "agreement", "supervised"):
        torch.testing.assert_close(getattr(together, name), sum(getattr(one, name) for one in alone), msg=name)
    assert together.tokens == 60
    assert int(together.supervised[0]) == sum(
        int(batch["loss_mask"][i, : n - 1].sum()) for i, n in enumerate(lengths.tolist())
    )


def test_the_total_weighs_steps_and_counts_every_token():
    model = random_eagle3()
    loss = eagle3_loss(model, **random_batch(2, 12))
    expected = sum(0.8**k * float(loss.cross_entropy[k].detach()) for k in range(4)) / 24
    assert loss.total.item() == pytest.approx(expected, rel=1e-6)


def test_step_k_supervises_only_positions_with_k_before_them():
    """A mask on the first three tokens: step 3 has nothing left to say about them."""
    batch = random_batch(1, 12)
    batch["loss_mask"] = (torch.arange(12) < 3).long()[None]
    loss = eagle3_loss(random_eagle3(), **batch)
    assert loss.supervised.tolist() == [3, 2, 1, 0]
    assert float(loss.cross_entropy[3].detach()) == 0.0
    assert loss.total.isfinite()


def test_a_text_as_long_as_the_context_fits():
    model = Eagle3(replace(random_eagle3().config, shape=replace(random_eagle3().config.shape, max_context=12)))
    assert eagle3_loss(model, **random_batch(1, 12)).total.isfinite()


def test_training_moves_all_but_embedding_and_head_and_is_learnt():
    model = random_eagle3()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = teach(model, torch.tensor([text[:30] for text in greedy_texts(44)]), 20)
    assert losses[-1] < losses[0] / 4
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in ("embed_tokens.weight", "lm_head.weight")), name
