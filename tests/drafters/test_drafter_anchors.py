"""Anchors and packing: which positions teach, and that a packed block is the block by itself."""

import pytest
import torch
from drafters.golden import model, read
from hypothesis import given
from hypothesis import strategies as st

from companion.training.anchors import pack_blocks, sample_anchors


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=3), st.integers(1, 14))
def test_anchors_are_distinct_eligible_and_as_many_as_there_are(masks, count):
    mask = torch.tensor(masks)
    anchors, real = sample_anchors(mask, count, torch.Generator().manual_seed(0))
    assert anchors.shape == real.shape == (len(masks), count)
    for row in range(len(masks)):
        eligible = [a for a in range(11) if mask[row, a] and mask[row, a + 1]]
        chosen = anchors[row][real[row]].tolist()
        assert len(chosen) == min(count, len(eligible))
        assert chosen == sorted(set(chosen))
        assert set(chosen) <= set(eligible)
        assert not anchors[row][~real[row]].any()


def test_every_anchor_has_its_chance():
    mask = torch.ones(400, 9)
    anchors, _ = sample_anchors(mask, 2, torch.Generator().manual_seed(1))
    counts = torch.bincount(anchors.flatten(), minlength=8)
    assert counts.shape == (8,)
    assert int(counts.min()) > 60, "100 expected for each of the eight"
    again, _ = sample_anchors(mask, 2, torch.Generator().manual_seed(1))
    assert torch.equal(anchors, again)


def test_no_anchors_are_refused():
    with pytest.raises(ValueError, match="at least 1 anchor per text, got 0"):
        sample_anchors(torch.ones(1, 5), 0)


@pytest.mark.parametrize("anchor_predicts", [True, False])
def test_a_packed_block_is_the_block_by_itself(anchor_predicts):
    """Same hidden states whatever its neighbours are, and nothing of the text from the anchor on is seen."""
    from dataclasses import replace

    made, batch = model("dspark_rnn"), read("train_batch")
    config = replace(made.config, anchor_predicts=anchor_predicts)
    anchors = torch.tensor([[10, 16, 24], [30, 31, 0]])
    real = torch.tensor([[True, True, True], [True, True, False]])
    features = torch.stack([batch["target_hidden_states_all"][:, i + 1] for i in config.target_layer_ids], 2)
    blocks = pack_blocks(batch["input_ids"], batch["loss_mask"], anchors, real, config)
    packed = made(blocks.tokens, blocks.positions, features, blocks.visible).view(2, 3, 5, -1)
    for row, number in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]:
        a = int(anchors[row, number])
        tokens = torch.tensor([[int(batch["input_ids"][row, a]), *[config.mask_token_id] * 4]])
        alone = made(tokens, torch.arange(a, a + 5)[None], features[row : row + 1, :a])
        torch.testing.assert_close(packed[row, number], alone[0], atol=2e-6, rtol=0)
        labels = batch["input_ids"][row, a + 1 : a + 1 + config.proposal_length]
        kept = int(blocks.supervised[row, number].sum())
        assert blocks.labels[row, number].tolist()[:kept] == labels.tolist()[:kept]
        assert blocks.previous[row, number].tolist()[:kept] == batch["input_ids"][row, a : a + kept].tolist()
        assert blocks.source[row, number].tolist()[:kept] == list(range(a, a + kept))
    assert not blocks.supervised[1, 2].any()
    assert blocks.supervised.shape[-1] == config.proposal_length
