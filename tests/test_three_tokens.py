"""Three tokens: no bigram head repairs the built case, a state does, and the count counts what its definition says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import companion
from companion.cli import app
from companion.collision import survival, with_memory
from companion.drafters.dspark.heads import markov_head
from companion.drafters.medusa import MedusaConfig, MedusaModel, save_medusa
from companion.experiments import broken_triples as study
from companion.experiments.three_tokens import (
    ANCHOR,
    ANSWERS,
    TOKENS,
    acceptance,
    base_logits,
    drafted_laws,
    solved_rnn,
)
from companion.provenance import write_json


@pytest.mark.parametrize("kind", ["vanilla", "gated"])
@pytest.mark.parametrize("seed", range(5))
def test_no_weights_of_a_bigram_head_move_slot_three(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    head = markov_head(kind, len(TOKENS), 4, 0).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_((1 + seed) / 3)
        assert acceptance(head)[2] == pytest.approx(0.5, abs=1e-9)
    assert acceptance(None) == pytest.approx([1.0, 1.0, 0.5], abs=1e-12)


def test_a_state_of_rank_one_does_and_the_general_rule_agrees() -> None:
    with torch.no_grad():
        assert acceptance(solved_rnn()) == pytest.approx([1.0, 1.0, 1.0], abs=1e-12)
        forgetful = solved_rnn()
        forgetful.markov_w1.weight.zero_()  # it no longer sees which answer has begun
        assert acceptance(forgetful)[2] == pytest.approx(0.5)
        assert drafted_laws(solved_rnn())[ANSWERS[0][:2]][ANSWERS[0][2]] > 1 - 1e-12
    joint = np.zeros((2, 1, 2))
    joint[0, 0, 0] = joint[1, 0, 1] = 0.5
    for memory, expected in ((0, 0.5), (1, 0.5), (2, 1.0)):
        assert survival(joint, with_memory(joint, memory)) == pytest.approx([1.0, 1.0, expected])


def test_training_finds_what_each_head_can_do() -> None:
    losses = {}
    for kind in ("vanilla", "rnn"):
        torch.manual_seed(0)
        head = markov_head(kind, len(TOKENS), 2, 0).double()  # type: ignore[arg-type]
        optimiser = torch.optim.Adam(head.parameters(), 0.05)
        texts = torch.tensor(ANSWERS)
        previous = torch.cat([torch.full((2, 1), ANCHOR), texts[:, :2]], 1)
        for _ in range(200):
            latents = head.latents(head.embed(previous), torch.zeros(2, 3, 0, dtype=torch.double))
            logits = base_logits() + head.bias(latents)
            loss = nn.functional.cross_entropy(logits[:, 2], texts[:, 2])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        losses[kind] = loss.item()
    assert losses["vanilla"] == pytest.approx(np.log(2), abs=1e-3)
    assert losses["rnn"] < 0.01


def test_triples_are_judged_by_the_reference_and_end_at_a_stop_token() -> None:
    reference = study.Reference([[1, 2, 3], [4, 2, 5], [6, 7]])
    assert reference.tokens == 8
    assert (reference.broken_pair((1, 2, 5)), reference.broken_triple((1, 2, 5))) == (False, True)
    assert (reference.broken_pair((1, 2, 3)), reference.broken_triple((1, 2, 3))) == (False, False)
    assert (reference.broken_pair((1, 3, 2)), reference.broken_triple((1, 3, 2))) == (True, False)
    assert reference.broken_pair((2, 3, 4)), "a pair across two texts is no pair"
    assert reference.counts([(1, 2, 5), (1, 2, 3), (9, 9, 9), (4, 2, 3)]) == (1, 2, 4)
    assert study.triples_of([1, 2, 3, 0, 5, 6], frozenset({0})) == [(1, 2, 3), (2, 3, 0)]
    assert study.triples_of([1, 2], frozenset()) == []


def test_shares_and_what_is_beyond_the_text_follow_from_the_counts() -> None:
    config = study.Config(prompts=30, resamples=400)
    drafted = np.tile([10.0, 9.0, 40.0], (30, 1))
    answers = np.tile([4.0, 1.8, 40.0], (30, 1))
    rows = {row.drafter: row for row in study.summarise({"dspark": [(drafted, answers)]}, config)}
    row = rows["dspark"]
    assert (row.pair, row.triple) == pytest.approx((10 / 40, 9 / 30))
    assert (row.pair_excess, row.triple_excess) == pytest.approx((6 / 40, 9 / 30 - 1.8 / 36))
    assert (row.triples, row.whole_pairs) == (1200, 900)
    assert rows["target"].triple == pytest.approx(1.8 / 36)
    assert rows["target"].triple_excess == 0.0
    generator = np.random.default_rng(0)
    same = [generator.poisson((4, 3, 40), (30, 3)).astype(float) for _ in range(2)]  # no difference to be found
    null = list(study.summarise({"dspark": [(same[0], same[1])]}, config))[1]
    assert null.triple_excess_low is not None
    assert null.triple_excess_high is not None
    assert null.triple_excess_low < 0 < null.triple_excess_high
    nothing = list(study.summarise({"dspark": [(drafted * 0, answers)]}, config))[1]
    assert (nothing.triple, nothing.triple_excess_low) == (None, None)


def test_the_command_counts_trained_heads_and_keeps_the_reference(tmp_path: Path) -> None:
    target = companion.load_target()
    torch.manual_seed(0)
    model = MedusaModel(MedusaConfig(target.shape, 4, 5))
    save_medusa(model, tmp_path / "models" / "medusa-0" / "model")
    write_json(tmp_path / "models" / "medusa-0" / "model" / "recipe.json", {})
    arguments = ["experiment", "broken-triples", "--models", str(tmp_path / "models"), "--prompts", "2"]
    arguments += ["--answers", "6", "--reference", str(tmp_path / "chat"), "--json"]
    found = [json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout) for _ in range(2)]
    assert found[0]["rows"] == found[1]["rows"]
    assert [row["drafter"] for row in found[0]["rows"]] == ["target", "medusa"]
    assert found[0]["reference_tokens"] > 50
    assert all(row["triples"] > 0 for row in found[0]["rows"])
    stored = (tmp_path / "chat" / "reference.jsonl").read_text().splitlines()
    assert len(stored) == 6
