"""The ablations change one field each, and the confidence head's other labels mean what their names say."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from drafters.eagle3_fitted import greedy_texts, target
from drafters.test_medusa import random_medusa

from companion.drafters.dspark.heads import markov_head
from companion.engine.target import ragged
from companion.training import zoo
from companion.training.ablations import Ablations
from companion.training.anchors import pack_blocks
from companion.training.drafted_prefix import drafted_confidence, sample_blocks
from companion.training.drafter import DrafterConfig, dflash_config
from companion.training.drafter_loss import (
    block_states,
    confidence_sum,
    loss_sums,
    position_weights,
    supervised_slots,
)


def changed(a: DrafterConfig, b: DrafterConfig) -> set[str]:
    return {f.name for f in fields(a) if getattr(a, f.name) != getattr(b, f.name)}


def test_each_recipe_differs_from_its_base_in_one_field():
    dspark, dflash = zoo.RECIPES["dspark"], zoo.RECIPES["dflash"]
    for name, recipe in zoo.ABLATIONS.recipes.items():
        base = dflash if recipe.kind == "dflash" else dspark
        assert len(changed(recipe, base)) == (2 if name == "rnn-gamma-15" else 1), name
    assert len({repr(r) for r in zoo.ABLATIONS.recipes.values()}) == len(zoo.ABLATIONS.recipes)
    assert not zoo.ABLATIONS.recipes.keys() & zoo.RECIPES.keys()
    for name in ("medusa", "medusa-markov"):
        assert changed(zoo.RECIPES[name], dspark) <= {"kind", "layers", "rank"}
    assert changed(zoo.RECIPES["medusa"], zoo.RECIPES["medusa-markov"]) == {"rank"}


def test_groups_hold_what_the_figures_need_and_follow_their_base():
    groups = zoo.ABLATIONS.groups
    assert set(groups) == {"depth", "gamma", "head", "rank", "anchor", "weight", "confidence", "mix", "backbone"}
    everything = {**zoo.RECIPES, **zoo.ABLATIONS.recipes}
    depths = {everything[n].layers for n in zoo.ABLATIONS.members("depth") if everything[n].kind == "dspark"}
    assert depths == {1, 2, 3, 5}
    for kind in ("dspark", "dflash"):
        of_kind = [everything[n] for n in zoo.ABLATIONS.members("gamma") if everything[n].kind == kind]
        assert {c.block_size for c in of_kind} == {3, 7, 11, 15}
    named = dict(zoo.runs(["depth", "head", "dspark"], seeds=1))
    assert list(named) == [
        "dspark-0", "dflash-depth-5-0", "depth-1-0", "depth-3-0", "depth-5-0",
        "head-none-0", "head-gated-0", "dspark-rnn-0",
    ]  # fmt: skip
    other = Ablations(DrafterConfig(layers=3), dflash_config(layers=3))
    assert "depth-2" in other.recipes
    assert "depth-3" not in other.recipes
    assert other.recipes["rank-8"].layers == 3
    with pytest.raises(ValueError, match=r"no drafter recipe 'depht'.*and the groups depth, gamma"):
        zoo.runs(["depht"])
    with pytest.raises(ValueError, match="no group 'colour'"):
        zoo.ABLATIONS.members("colour")


def test_traces_of_another_mix_have_a_folder_of_their_own(tmp_path):
    recipes = {**zoo.RECIPES, **zoo.ABLATIONS.recipes}
    names = {zoo._data(tmp_path, config.traces).name for config in recipes.values()}
    assert names == {"data-0", "data-0.05", "data-0.5", "data-1", "data-0-0.25-0.25-0.5"}
    assert len({config.traces for config in recipes.values()}) == len(names)


@pytest.fixture(scope="module")
def scene():
    """Greedy texts of a small target, its states, and blocks at all anchors."""
    of, texts = target(), torch.tensor([text[:24] for text in greedy_texts(30)[:3]])
    stream = ragged([(i, 0, row) for i, row in enumerate(texts.tolist())], of.device)
    seen = of.forward(stream, of.new_cache(len(texts), 24), taps=(1, 2)).features.clone().unflatten(0, texts.shape)
    anchors = torch.arange(2, 22).expand(len(texts), -1)
    real = torch.ones_like(anchors).bool()
    real[1, 5:] = False
    model = random_medusa("rnn")
    blocks = pack_blocks(texts, torch.ones_like(texts), anchors.where(real, 0), real, model.config)
    return model, texts, anchors.where(real, torch.tensor(0)), blocks, seen[:, :, :1], of.final_norm(seen[:, :, 1])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_outcomes_are_accepted_as_often_as_the_analytic_label_says(scene):
    model, _, _, blocks, seen, last = scene
    slots, weights = supervised_slots(model, blocks, seen, last), position_weights("none", 4)
    analytic, acceptance = loss_sums(slots, weights)
    draws = [loss_sums(slots, weights, seeded(seed))[0].confidence.item() for seed in range(200)]
    error = 3 * torch.tensor(draws).std().item() / 200**0.5
    assert abs(sum(draws) / 200 - analytic.confidence.item()) < error  # the loss is linear in the label
    assert len(set(draws)) == 200
    sure = torch.tensor([0.0, 1.0])
    for outcomes in (None, seeded()):
        value = confidence_sum(torch.tensor([-30.0, 30.0]), sure, torch.ones(2), outcomes)
        assert value.item() < 1e-6
    always_wrong = confidence_sum(torch.tensor([-30.0, 30.0]), 1 - sure, torch.ones(2), seeded())
    assert always_wrong.item() == pytest.approx(60.0)
    assert acceptance.shape == slots.labels.shape


def test_drafted_labels_are_the_overlap_along_the_drafts_own_tokens(scene):
    """Slot by slot against a plain forward of the target over text and draft."""
    model, texts, anchors, blocks, seen, _ = scene
    of, weights = target(), torch.tensor([1.0, 0.5, 0.25, 0.125])
    hidden = block_states(model, blocks, seen)
    found, weight = drafted_confidence(
        model, of, frozenset({7}), texts.tolist(), anchors, blocks, hidden, weights, seeded(1)
    )
    found.backward()
    assert model.heads.weight.grad.abs().sum() > 0
    assert model.lm_head.weight.grad is None
    real = blocks.supervised.any(-1)
    first = texts.gather(1, anchors)[real]
    with torch.no_grad():
        drafted, laws = sample_blocks(model, hidden[real], first, seeded(1))
        expected, total = 0.0, 0.0
        for row, (text, place) in enumerate(real.nonzero().tolist()):
            a, before = int(anchors[text, place]), texts[text].tolist()
            state = None
            for k in range(4):
                fed = [before[a], *drafted[row].tolist()]
                if not blocks.supervised[text, place, k] or 7 in fed[1 : k + 1]:
                    break
                embedded = model.markov_head.embed(torch.tensor(fed[k]))
                h = hidden[text, place, k]
                latent, state = model.markov_head.latent(embedded, h, state)
                q = (model.lm_head(h) + model.markov_head.bias(latent)).softmax(-1)
                torch.testing.assert_close(q, laws[row, k])
                p = of.logits(before[:a] + fed[: k + 1])[-1].softmax(-1)
                logit = model.confidence_head(h, embedded)
                label = torch.minimum(p, q).sum()
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, label)
                expected, total = expected + weights[k] * loss, total + weights[k]
    torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight, total)


def test_sampled_blocks_follow_the_law_they_come_with():
    torch.manual_seed(0)
    model = random_medusa("vanilla")
    with torch.no_grad():
        torch.nn.init.normal_(model.markov_head.markov_w2.weight, std=0.5)
    hidden = torch.randn(1, 2, 48).expand(4000, -1, -1)
    tokens, laws = sample_blocks(model, hidden, torch.full((4000,), 3), seeded())
    first = torch.bincount(tokens[:, 0], minlength=laws.shape[-1]) / 4000
    assert (first - laws[0, 0]).abs().sum() < 0.25
    common = int(first.argmax())
    rows = tokens[:, 0] == common
    assert torch.equal(laws[rows][:, 1], laws[rows][:1, 1].expand(int(rows.sum()), -1))
    other = laws[~rows][0, 1]
    assert (other - laws[rows][0, 1]).abs().sum() > 0.01, "the second slot does not see the first"


def test_rank_and_head_of_a_recipe_reach_the_model():
    made = markov_head("gated", 11, 3, 5)
    assert made.markov_w1.weight.shape == (11, 3)
    assert replace(zoo.RECIPES["medusa-markov"], head="rnn").head == "rnn"
