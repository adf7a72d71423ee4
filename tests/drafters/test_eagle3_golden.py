"""Eagle3 against numbers that the authors' code wrote down: drafting, training loss, whole decoding runs."""

from __future__ import annotations

import json

import pytest
import torch
from drafters.eagle3_golden import FIXTURES, features_in_blocks, model, numbers, record, target
from engine.models import decode_ids
from safetensors.torch import load_file

from companion.drafters.eagle3.drafter import Eagle3Drafter
from companion.drafters.eagle3.fused import FusedEagle3
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws
from companion.engine.request import Request, StopRule
from companion.engine.target import single
from companion.phase.tracker import PhaseTracker, ThinkTokens
from companion.protocols import Context, Sampling
from companion.training.eagle3_loss import eagle3_loss, unrolled

ANCHORS = [24, 28, 29, 35]
HIDDEN, LOGITS = {"atol": 2e-5, "rtol": 0}, {"atol": 5e-5, "rtol": 0}


class Watched(FusedEagle3):
    """Keeps what each step of a round was: hidden states and their logits."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen = []

    def logits(self, hidden):
        logits = super().logits(hidden)
        self.seen.append((hidden.clone(), logits.clone()))
        return logits


def watched_drafter():
    drafter, made = Eagle3Drafter(model()), model()
    drafter._fused = Watched(made, device=torch.device("cpu"), dtype=torch.float32)
    return drafter, drafter._fused.seen


@pytest.mark.parametrize("whose", ["transformers", "ours"])
def test_four_rounds_with_a_growing_cache(whose):
    golden = numbers("rounds")
    ids = golden["input_ids"][0].tolist()
    if whose == "transformers":
        features, hidden_tolerance = features_in_blocks(ids, 24, ANCHORS), HIDDEN
    else:
        batch = single(ids, slot=0, cached=0, device=target().device)
        features = target().forward(batch, target().new_cache(1, 36), taps=(0, 1, 2)).features
        hidden_tolerance = {"atol": 5e-5, "rtol": 0}  # see `features_in_blocks`
    drafter, seen = watched_drafter()
    for number, (read, anchor) in enumerate(zip([0, *ANCHORS], ANCHORS, strict=False), start=1):
        there = {k.split(".", 1)[1]: v for k, v in golden.items() if k.startswith(f"round{number}.")}
        context = Context(0, ids[: anchor + 1], Sampling(0.0), KeyedDraws(0, b""), round=number)
        drafter.observe([context], [features[read:anchor]])
        seen.clear()
        (draft,) = drafter.propose([context], [5])
        hidden, logits = (torch.cat(rows) for rows in zip(*seen, strict=True))
        torch.testing.assert_close(hidden[:1], there["draft_hidden_in"][0], **HIDDEN)
        torch.testing.assert_close(hidden[1:], there["step_hidden"][0, :4], **hidden_tolerance)
        torch.testing.assert_close(logits[:, ::8], there["draft_logits"][0], **LOGITS)
        assert draft.tokens == there["draft_tokens"][0].tolist()
        cache = drafter._slots.cache
        assert cache.lengths == [anchor] == [there["scalars_start_cachebefore_cacheafterpropose"][1]]
        if number in (1, 4):
            torch.testing.assert_close(cache.keys[0, 0, :, :anchor], there["cache_before.k0"][0], **HIDDEN)
            torch.testing.assert_close(cache.values[0, 0, :, :anchor], there["cache_before.v0"][0], **HIDDEN)


@pytest.fixture(scope="module")
def batch():
    golden = load_file(FIXTURES / "golden" / "train_batch.safetensors")
    return {
        "input_ids": golden["input_ids"],
        "features": golden["target_hidden_states_all"][:, 1:4].transpose(1, 2),  # [B, T, 3, d]
        "target_hidden": golden["target_last_hidden_states"],
        "loss_mask": golden["loss_mask"],
    }


def test_hidden_states_and_logits_of_training_time_test(batch):
    golden, drafter = numbers("train"), model()
    with torch.no_grad():
        for k, hidden in enumerate(unrolled(drafter, batch["input_ids"], batch["features"], 5)):
            valid = 40 - k
            torch.testing.assert_close(hidden[:, :valid], golden[f"step{k}.hidden"][:, :valid], **HIDDEN)
            if k in (0, 4):
                logits = drafter.logits(hidden[:, :valid])[..., ::8]
                torch.testing.assert_close(logits, golden[f"step{k}.draft_logits"][:, :valid], **LOGITS)


def test_loss_metrics_and_gradients(batch):
    golden, there, drafter = numbers("train"), record("loss"), model()
    loss = eagle3_loss(drafter, **batch)
    metrics = there["metrics"]
    assert loss.total.item() == pytest.approx(there["total"], rel=1e-5)
    for k in range(5):
        supervised = int(loss.supervised[k])
        assert supervised == metrics[f"train/valid_tokens@{k}"]
        assert loss.cross_entropy[k].item() / loss.tokens == pytest.approx(metrics[f"train/ploss_{k}"], rel=1e-5)
        assert float(loss.overlap[k]) / supervised == pytest.approx(metrics[f"train/accept_rate@{k}"], rel=1e-5)
        assert float(loss.agreement[k]) / supervised == metrics[f"train/accuracy@{k}"]
    loss.total.backward()
    gradients = {name: p.grad for name, p in drafter.named_parameters() if p.grad is not None}
    assert {name: float(g.norm()) for name, g in gradients.items()} == pytest.approx(there["grad_norms"], rel=1e-5)
    for name in (key.removeprefix("grad.") for key in golden if key.startswith("grad.")):
        expected = golden[f"grad.{name}"]
        torch.testing.assert_close(gradients[name], expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


def accepted_in(requests):
    return [[row.accepted for row in request.rounds] for request in requests]


@pytest.mark.parametrize("together", [True, False])
def test_greedy_runs(together):
    """48 tokens after each of four prompts; 56 are asked for, so that every round of the 48 drafts in full."""
    runs = record("runs")
    requests = []
    for prompts in [runs["prompts"]] if together else [[p] for p in runs["prompts"]]:
        requests += decode_ids(target(), Eagle3Drafter(model()), prompts, 56)
    for request, accepted, golden in zip(requests, accepted_in(requests), runs["greedy"], strict=True):
        assert request.context.tokens[: len(golden["output_ids"])] == golden["output_ids"]
        assert accepted[: len(golden["accepted_draft_lengths"])] == golden["accepted_draft_lengths"]
        assert [a + 1 for a in golden["accepted_draft_lengths"]] == golden["acceptance_lengths"]
    assert sum(map(sum, accepted_in(requests))) > 0


@pytest.mark.parametrize("number", range(4))
def test_greedy_runs_end_at_stop_tokens(number):
    greedy = json.loads((FIXTURES / "golden_qwen3" / "greedy.json").read_text())
    stops = frozenset(greedy["stop_token_ids"][number])
    (request,) = decode_ids(target(), Eagle3Drafter(model()), [greedy["prompts"][number]], 48, stops=stops)
    assert request.emitted == greedy["greedy_with_stop"][number]


class Replay:
    """Every random choice as it was recorded: accept tests by their uniforms, tokens by their ids."""

    def __init__(self, golden, prompt_length):
        self.rounds, self.first = golden["rounds"], golden["output_ids"][prompt_length]
        self.prompt_length, self.q, self.residual, self.current = prompt_length, {}, {}, 0

    def token(self, probs, purpose, position):
        if purpose == "target":
            self.residual[self.current] = probs
            return self.first if position == self.prompt_length else self.rounds[self.current - 1]["next_token"]
        number = int(purpose.removeprefix("draft/"))
        if number != self.current:
            self.current, self.start = number, position
        self.q.setdefault(number, []).append(probs)
        return self.rounds[number - 1]["verify_input_ids"][1 + position - self.start]

    def accept(self, probability, position):
        there, k = self.rounds[self.current - 1], position - self.start
        assert probability == pytest.approx(there["accept_probs"][k], rel=1e-3, abs=1e-7)
        return there["uniforms"][k] < probability


@pytest.mark.parametrize("number", [0, 1])
def test_runs_at_temperature_one_with_their_recorded_uniforms(number):
    runs, there = record("runs"), numbers("sampled")
    prompt, golden = runs["prompts"][number], runs["sampled"][number]
    draws = Replay(golden, len(prompt))
    context = Context(0, list(prompt), Sampling(1.0), draws)
    request = Request(context, len(prompt), StopRule(64), PhaseTracker(ThinkTokens(None, None), prompt))
    engine = Engine(target(), Eagle3Drafter(model()), max_batch=1)
    engine.submit(request)
    for _ in range(1 + len(golden["rounds"])):
        engine.step()
    assert [row.drafted for row in request.rounds] == [5] * len(golden["rounds"])
    assert [row.accepted for row in request.rounds] == golden["accepted_draft_lengths"]
    assert context.tokens[: len(golden["output_ids"])] == golden["output_ids"]
    if number == 0:
        for n in (1, 2, 3):
            torch.testing.assert_close(torch.stack(draws.q[n]), there[f"round{n}.draft_probs"][0], atol=1e-6, rtol=1e-4)
            torch.testing.assert_close(draws.residual[n], there[f"round{n}.residual"][0], atol=1e-6, rtol=1e-4)
