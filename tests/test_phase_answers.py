"""The entropy behind an appended `</think>` at every anchor, against one fresh reading for each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from phase_tables import DOMAINS, same, table
from test_phase_signals import VOCAB, with_statistics

import companion
from companion.engine.target import ragged
from companion.experiments.forced_exit.design import CUE
from companion.experiments.phase_gap.answers import answer_entropies
from companion.experiments.phase_gap.signals import first_slots, signals


def read_anew(target: companion.engine.load.TextTarget, tokens: list[int]) -> float:
    cache = target.new_cache(1, len(tokens))
    with torch.inference_mode():
        logits = target.forward(ragged([(0, 0, tokens)], target.device), cache).logits[-1].double()
    log_p = torch.log_softmax(logits, -1)
    return float(-(log_p.exp() * log_p).sum())


@pytest.mark.parametrize("cue", ["", CUE])
def test_every_anchor_of_a_span_is_probed_as_if_nothing_but_it_had_been_read(cue: str) -> None:
    target = companion.load_target("tiny-qwen3")
    drafter = companion.load_drafter("dspark", target)
    prompts = ["What is 3 + 4?", "Write a haiku about rain."]
    results = companion.generate(target, drafter, prompts, max_new_tokens=60, temperature=1.0, thinking=True, seed=1)
    found = answer_entropies(target, results, cue)
    tail = [target.tags.close, *(target.encode(cue) if cue else [])]
    compared = 0
    for result, own in zip(results, found, strict=True):
        text = [*result.prompt_tokens, *result.tokens]
        assert set(own) == {row.round for row in result.rounds if row.phases[0] == "think"}
        for row in list(result.rounds)[::3]:
            if row.round in own:
                assert own[row.round] == pytest.approx(read_anew(target, [*text[: row.position - 1], *tail]), abs=1e-4)
                compared += 1
    assert compared > 5
    assert len({round(value, 3) for own in found for value in own.values()}) > 5


def test_a_response_without_a_span_has_nothing_to_probe() -> None:
    target = companion.load_target("tiny-qwen3")
    result = companion.generate(target, None, "What is 3 + 4?", max_new_tokens=8, thinking=False)
    assert answer_entropies(target, [result]) == [{}]


def test_an_answer_that_decides_ranks_perfectly_inside_and_is_not_asked_outside() -> None:
    rows = with_statistics(list(table(same(0.5, 0.5, 0.5), prompts=60)))
    inside = [r for r in rows if r.phases[0] == "think" and r.mode == "think"]
    answers = {(r.prompt_id, r.round): (0.1 if r.accepted else 2.0, float(np.log(2.0))) for r in inside}
    slots = first_slots(rows, DOMAINS, VOCAB, answers)
    found = {
        (s.side, s.signal): s
        for s in signals(slots, DOMAINS, drafter="d", sampling="T1", resamples=50, seed=0)
        if s.domain == "all"
    }
    assert found["think", "answer"].auc.value == 1.0
    assert found["think", "answer_cued"].auc.value == 0.5  # the same everywhere
    assert found["think", "answer_cued"].forecast == 0.5
    assert all((side, "answer") not in found for side in ("output", "off", "on"))
