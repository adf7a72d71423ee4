"""The terms of single slots are those that the trainer sums up; and the two pictures of the page on training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import companion
from companion import figures_training
from companion.drafters.dspark.checkpoint import load_dspark
from companion.drafters.dspark.model import DSparkModel
from companion.engine.load import TextTarget, find_model
from companion.training.block_terms import block_terms, blocks_of
from companion.training.drafter_loss import Alphas, loss_sums, position_weights, supervised_slots
from companion.training.features import features
from companion.training.recipe import spread_layers

PROMPT = 4
TEXT = [1, 2, 3, 4, *range(300, 312)]
ANCHORS = [5, 8, 12]


@pytest.fixture(scope="module")
def target() -> TextTarget:
    return companion.load_target()


@pytest.fixture(scope="module", params=["dspark", "dflash"])
def model(request: pytest.FixtureRequest, target: TextTarget) -> DSparkModel:
    return load_dspark(find_model(request.param), target)


def test_the_weighted_means_of_the_terms_are_the_loss(model: DSparkModel, target: TextTarget) -> None:
    layers = model.config.target_layer_ids
    rows = block_terms(model, layers, target, TEXT, PROMPT, ANCHORS)
    taps, last = features(target, TEXT, layers)
    with torch.no_grad():
        slots = supervised_slots(model, blocks_of(model, TEXT, PROMPT, ANCHORS), taps[None], last[None])
    sums, acceptance = loss_sums(slots, position_weights("code", 7))
    total = sum(row.weight for row in rows)
    for name, of_all in (("cross_entropy", sums.ce), ("distance", sums.l1)):
        assert sum(row.weight * getattr(row, name) for row in rows) == pytest.approx(float(of_all), rel=1e-5)
    assert [row.acceptance for row in rows] == pytest.approx(acceptance.tolist(), abs=1e-6)
    forecast = sum(row.weight * (row.forecast or 0) for row in rows)
    alphas = Alphas()
    loss = alphas.ce * float(sums.ce) + alphas.l1 * float(sums.l1) + alphas.confidence * forecast
    assert loss / total == pytest.approx(float(sums.total(alphas)), rel=1e-5)
    assert all((row.confidence is None) == (model.confidence_head is None) for row in rows)


def test_a_slot_knows_its_place_in_the_text(model: DSparkModel, target: TextTarget) -> None:
    rows = block_terms(model, model.config.target_layer_ids, target, TEXT, PROMPT, ANCHORS)
    assert [(r.anchor, r.k) for r in rows] == [(a, k) for a in ANCHORS for k in range(1, 8) if a + k < len(TEXT)]
    assert all(r.label == TEXT[r.anchor + r.k] and r.previous == TEXT[r.anchor + r.k - 1] for r in rows)
    assert all(0 <= r.draft <= 1 and 0 <= r.target <= 1 and 0 <= r.acceptance <= 1 for r in rows)
    assert all(r.cross_entropy == pytest.approx(-torch.tensor(r.draft).log().item(), abs=1e-4) for r in rows)


@pytest.mark.parametrize("anchors", [[], [3], [15], [5, 99]])
def test_an_anchor_without_a_block_is_refused(target: TextTarget, anchors: list[int]) -> None:
    model = load_dspark(find_model("dspark"), target)
    with pytest.raises(ValueError, match=r"anchors must lie between the prompt's end, 4, and .* 14, got"):
        block_terms(model, model.config.target_layer_ids, target, TEXT, PROMPT, anchors)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (36, (1, 9, 17, 25, 33)),
        (40, (1, 10, 19, 28, 37)),
        (8, (1, 2, 3, 4, 5)),
        (6, (0, 1, 2, 3, 4)),
        (2, (0,)),
        (1, (-1,)),
    ],
)
def test_layers_are_spread_as_the_authors_spread_them(layers: int, expected: tuple[int, ...]) -> None:
    assert spread_layers(layers) == expected


def test_the_picture_of_a_packing_shows_the_mask_and_the_labels(target: TextTarget) -> None:
    model = load_dspark(find_model("dspark"), target)
    blocks = blocks_of(model, TEXT, PROMPT, ANCHORS)
    text = [str(token) for token in TEXT]
    axes, asked = figures_training.packing(blocks, text, "mask", start=2).axes
    shown = axes.images[0].get_array()
    assert shown.shape == (21, len(TEXT) - 2 + 21)
    assert [int((shown[row] == 1).sum()) for row in (0, 7, 14)] == [a - 2 for a in ANCHORS]
    assert all(int((row == 2).sum()) == 7 for row in shown), "a row sees its own block"
    labels = [label.get_text() for label in asked.get_yticklabels()]
    assert labels[:7] == text[6:13]
    assert labels[14:] == [*text[13:], "", "", "", ""]
    with pytest.raises(ValueError, match="packed for a text of 16 tokens, got 3"):
        figures_training.packing(blocks, text[:3], "mask")


def test_the_picture_of_losses_draws_what_the_logs_say(tmp_path: Path) -> None:
    lines = [{"step": 5, "loss": 2.5}, {"step": 10, "loss": 1.5}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (axes,) = figures_training.losses({"a run": tmp_path}).axes
    assert axes.lines[0].get_xydata().tolist() == [[5.0, 2.5], [10.0, 1.5]]
    with pytest.raises(ValueError, match=r"has no log\.jsonl"):
        figures_training.losses({"none": tmp_path / "none"})
