"""Forced exit in a real decoding loop: probing changes nothing, an exit does, and neither meets a lossless run."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import companion
from companion.ceiling import entropy
from companion.engine.decode import Engine
from companion.engine.load import TextTarget
from companion.engine.sampling import distribution
from companion.engine.target import single
from companion.forced_exit import ProbedResponse, Start, decode_with_exit
from companion.phase.exit_rules import AnswerCertain, ExitRule, FixedLength, NoteExit, Watch, replay
from companion.phase.probe import ProbeSettings
from companion.protocols import Policy, Sampling
from companion.training.corpus import DOMAINS, held_out_samples

CUE = "\n\nThe answer is "
T1 = Sampling(1.0)
HOT = Sampling(0.7)


@pytest.fixture(scope="module")
def target() -> TextTarget:
    torch.set_num_threads(1)
    return companion.load_target("tiny-qwen3")


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return [s.prompt for d in DOMAINS for s in held_out_samples(d, "think", 2, seed=11)]


@pytest.fixture(scope="module")
def watched(target: TextTarget, prompts: list[str]) -> list[ProbedResponse]:
    rule = Watch(8, ("", CUE))
    return decode_with_exit(target, prompts, rule, sampling=HOT, max_new_tokens=420, seed=3)


@pytest.mark.parametrize("sampling", [Sampling(0.0), HOT, Sampling(1.0, top_k=20, top_p=0.95)])
def test_probing_changes_no_token(target: TextTarget, prompts: list[str], sampling: Sampling) -> None:
    options: dict[str, Any] = {"max_new_tokens": 150, "seed": 3}
    plain = companion.generate(
        target,
        None,
        prompts,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        max_batch=4,
        **options,
    )
    rule = Watch(4, ("", CUE))
    probed = decode_with_exit(target, prompts, rule, sampling=sampling, max_batch=4, **options)
    assert [r.emitted for r in probed] == [r.tokens for r in plain]
    assert [(r.text, r.finish_reason, r.phases) for r in probed] == [(r.text, r.finish_reason, r.phases) for r in plain]
    assert sum(len(r.samples) for r in probed) > 50
    for ours, theirs in zip(probed, plain, strict=True):  # and the rows are the Rounds table's, to the bit
        assert ours.rows.entropy[1:] == [row.entropy[0] for row in theirs.rounds]
        assert ours.rows.mass[1:] == [row.think_end_mass[0] for row in theirs.rounds]


def test_a_probe_that_is_not_taken_back_would_be_seen(
    target: TextTarget, prompts: list[str], watched: list[ProbedResponse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: a `</think>` that stays where a token of the text was gives another text."""

    def careless(loop: Any, probed: Any) -> dict[int, dict[str, float]]:
        found = {}
        for r in probed:
            loop.target.forward(
                single([loop.close], slot=r.slot, cached=r.cached - 1, device=target.device), loop.cache
            )
            found[r.slot] = {"": 0.0}
        return found

    monkeypatch.setattr("companion.forced_exit._Loop._answer_entropies", careless)
    broken = decode_with_exit(target, prompts, Watch(8, ("",)), sampling=HOT, max_new_tokens=420, seed=3)
    assert [r.emitted for r in broken] != [r.emitted for r in watched]


def test_samples_are_what_a_forward_of_their_own_says(target: TextTarget, watched: list[ProbedResponse]) -> None:
    close = target.tags.close
    assert close is not None
    for response in watched[::2]:
        tokens = [*response.prompt_tokens, *response.emitted]
        start = len(response.prompt_tokens) + 1  # behind <think>
        assert response.emitted[0] == target.tags.open
        assert [s.think_tokens for s in response.samples] == list(range(8, response.think_tokens, 8))
        for sample in response.samples[::5]:
            text = tokens[: start + sample.think_tokens]
            row = distribution(target.logits(text)[-1:].double(), T1)
            assert sample.mass == pytest.approx(float(row[0, close]), abs=1e-5)
            assert sample.entropy == pytest.approx(float(entropy(row)), abs=1e-4)
            assert sample.max_p == pytest.approx(float(row.max()), abs=1e-5)
            for cue in ("", CUE):
                asked = [*text, close, *(target.encode(cue) if cue else ())]
                row = distribution(target.logits(asked)[-1:].double(), T1)
                assert sample.answer_entropy[cue] == pytest.approx(float(entropy(row)), abs=1e-4)


def test_an_exit_forces_the_end_and_the_answer_follows(
    target: TextTarget, prompts: list[str], watched: list[ProbedResponse]
) -> None:
    cut = decode_with_exit(target, prompts, FixedLength(40), allow_lossy=True, sampling=HOT, max_new_tokens=420, seed=3)
    for short, full in zip(cut, watched, strict=True):
        assert full.think_tokens > 41
        assert short.exit is not None
        assert (short.exit.reason, short.exit.think_tokens, short.think_tokens) == ("fixed_length", 40, 41)
        assert short.emitted[:41] == full.emitted[:41]  # up to the exit nothing has happened
        assert short.emitted[41] == target.tags.close
        assert short.emitted.count(target.tags.close) == 1
        assert short.phases[:42] == ["think"] * 42
        assert short.phases[42:] == ["output"] * (len(short.emitted) - 42)
        assert short.finish_reason == "stop"
        assert short.emitted != full.emitted


@pytest.mark.parametrize(
    "rule",
    [
        AnswerCertain(1.2, min_think_tokens=16, probe_every=8, cue=CUE),
        NoteExit(ProbeSettings(ema_alpha=0.3, min_think_tokens=32, max_think_tokens=120, probe_every=8)),
        FixedLength(24),
    ],
)
def test_replayed_exits_and_resumed_answers_are_the_loops_own(
    target: TextTarget, prompts: list[str], watched: list[ProbedResponse], rule: ExitRule
) -> None:
    """What the experiment builds on: probe once, replay any rule, take the response up behind its exit."""
    live = decode_with_exit(target, prompts, rule, allow_lossy=True, sampling=HOT, max_new_tokens=420, seed=3)
    close = target.tags.close
    fired = 0
    for one, full in zip(live, watched, strict=True):
        again = replay(rule, full.samples, full.think_tokens - 1)
        assert one.exit == again
        if again is None:
            assert one.emitted == full.emitted
            continue
        fired += 1
        head = [*full.emitted[: 1 + again.think_tokens], close]
        start = Start(full.prompt_tokens, [t for t in head if t is not None])
        (resumed,) = decode_with_exit(target, [start], Watch(None), sampling=HOT, max_new_tokens=420, seed=3)
        assert resumed.emitted == one.emitted
    assert fired


def test_the_notes_defaults_change_nothing_here(
    target: TextTarget, prompts: list[str], watched: list[ProbedResponse]
) -> None:
    got = decode_with_exit(target, prompts, NoteExit(), allow_lossy=True, sampling=HOT, max_new_tokens=420, seed=3)
    assert [r.emitted for r in got] == [r.emitted for r in watched]
    assert all(r.exit is None and r.samples for r in got)


def test_an_exit_cannot_get_into_a_lossless_run(target: TextTarget, watched: list[ProbedResponse]) -> None:
    rules: list[ExitRule] = [NoteExit(), FixedLength(5), AnswerCertain(0.1)]
    for rule in rules:
        assert not isinstance(rule, Policy)
        with pytest.raises(ValueError, match="allow_lossy=True"):
            decode_with_exit(target, ["What is 1 + 1?"], rule)
        for slot in ("policy", "drafter"):
            with pytest.raises(ValueError, match=f"{slot} must"):
                Engine(target, **{slot: rule})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="policy must"):
            companion.generate(target, None, "What is 1 + 1?", policy=rule)  # type: ignore[arg-type]
    parameters = set(inspect.signature(decode_with_exit).parameters)
    assert not parameters & {"drafter", "policy", "draft", "depth"}
    with pytest.raises(TypeError):
        decode_with_exit(target, ["Hi"], Watch(), drafter=companion.load_drafter("lookup", target))  # type: ignore[call-arg]
    # nor can what it returns be taken for a lossless run's
    assert not isinstance(watched[0], companion.GenerationResult)
    assert not hasattr(watched[0], "rounds")
    assert not hasattr(watched[0], "tokens")


def test_bad_input_is_one_sentence(target: TextTarget) -> None:
    def refuse(message: str, prompts: Any = ("Hi",), rule: ExitRule | None = None, **options: Any) -> None:
        with pytest.raises(ValueError, match=message) as error:
            decode_with_exit(target, prompts, rule or Watch(), **options)
        assert "\n" not in str(error.value)

    refuse("there is no prompt", prompts=())
    refuse("context of tiny-qwen3 holds", max_new_tokens=100_000)
    refuse("max_batch", max_batch=0)
    refuse("fewer than max_new_tokens", prompts=[Start([5], [6, 7])], max_new_tokens=2)
    refuse("max_new_tokens must", max_new_tokens=0)
    refuse("prompt is empty", prompts=["  "])


def test_a_probe_needs_no_room_in_the_text(target: TextTarget) -> None:
    """Its rows lie behind the text for the length of one forward: also where the text ends at the cap."""
    prompt = "What is 345 + 678?"
    (r,) = decode_with_exit(target, [prompt], Watch(1, ("", CUE)), sampling=HOT, max_new_tokens=60)
    assert (len(r.emitted), len(r.samples), r.finish_reason) == (60, 58, "length")
