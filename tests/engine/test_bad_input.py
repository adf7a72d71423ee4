"""Bad input to `generate`: one sentence that says what was wrong and what to do, and nothing decoded."""

import numpy as np
import pytest
import torch
from engine.models import decode_ids, ours, reference_model, text_target

import companion
from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws
from companion.engine.generate import generate, stream
from companion.engine.request import Request, StopRule
from companion.exact.laws import NO_TAGS
from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, Sampling
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.retrospective import Retrospective


@pytest.fixture(scope="module")
def target():
    return text_target()


BAD = {
    "negative temperature": (("hi",), {"temperature": -0.1}, "temperature must be a finite number >= 0, got -0.1"),
    "temperature nan": (("hi",), {"temperature": float("nan")}, "temperature must be a finite number"),
    "temperature infinite": (("hi",), {"temperature": float("inf")}, "temperature must be a finite number"),
    "top_p 0": (("hi",), {"top_p": 0.0}, r"top_p must lie in \(0, 1\], got 0.0; 1 keeps every token"),
    "top_p above 1": (("hi",), {"top_p": 1.1}, r"top_p must lie in \(0, 1\]"),
    "top_p nan": (("hi",), {"top_p": float("nan")}, r"top_p must lie in \(0, 1\]"),
    "negative top_k": (("hi",), {"top_k": -1}, "top_k must be a positive integer, or 0 or None"),
    "fractional top_k": (("hi",), {"top_k": 2.5}, "top_k must be a positive integer"),
    "min_p above 1": (("hi",), {"min_p": 1.5}, r"min_p must lie in \[0, 1\]"),
    "greedy with top_k": (("hi",), {"temperature": 0.0, "top_k": 5}, "would have no effect; drop them, or set"),
    "greedy with top_p": (("hi",), {"temperature": 0.0, "top_p": 0.9}, "would have no effect"),
    "greedy with min_p": (("hi",), {"temperature": 0.0, "min_p": 0.1}, "would have no effect"),
    "no tokens": (("hi",), {"max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1, got 0"),
    "half a token": (("hi",), {"max_new_tokens": 2.5}, "max_new_tokens must be an integer"),
    "empty message": (("",), {}, "the prompt is empty; write a question or an instruction"),
    "blank message": ((" \n",), {}, "the prompt is empty"),
    "one of several empty": ((["hi", ""],), {}, "the prompt is empty"),
    "no prompts": (([],), {}, "there is no prompt"),
    "empty ids": (([[]],), {}, "a prompt has no tokens"),
    "think tags": (("<think>",), {}, "contains the control token <think>, .*remove it, or pass token ids"),
    "closing tag": (("so </think> 42",), {}, "control token </think>"),
    "turn marker": (("hi<|im_end|>",), {}, r"control token <\|im_end\|>"),
    "neither": ((), {}, "give either prompts or input_ids"),
    "both": (("hi",), {"input_ids": [1]}, "give either prompts or input_ids"),
    "labels": ((["a", "b"],), {"labels": [{}]}, "2 prompts and 1 labels; give one for each"),
    "too long": (("x" * 600,), {}, r"longest prompt has 6\d\d tokens .* holds 512: at most 0 new tokens fit"),
    "too much": (("hi",), {"max_new_tokens": 511}, r"holds 512: at most 4\d\d new tokens fit"),
    "empty batch": (("hi",), {"max_batch": 0}, "max_batch must be an integer of at least 1, got 0"),
    "batch of nothing": (("hi",), {"max_batch": None}, "max_batch must be an integer of at least 1, got None"),
    "empty stop string": (("hi",), {"stop_strings": ["a", ""]}, "a stop string is empty"),
    "lossy policy": (("hi",), {"policy": Retrospective(2, len)}, "allow_lossy=True"),
}


@pytest.mark.parametrize("case", BAD)
def test_is_refused_before_anything_is_decoded(target, case, monkeypatch):
    monkeypatch.setattr(target, "forward", lambda *args: pytest.fail("the model ran"), raising=False)
    arguments, options, words = BAD[case]
    with pytest.raises(ValueError, match=words) as caught:
        generate(target, LookupDrafter(target.vocab_size), *arguments, **options)
    assert "\n" not in str(caught.value)
    if arguments and "input_ids" not in options:
        with pytest.raises(ValueError, match=words):  # at the call, not at the first event
            stream(target, LookupDrafter(target.vocab_size), *arguments, **options)


def test_an_unknown_option_is_named(target):
    with pytest.raises(TypeError, match="temprature"):
        generate(target, None, "hi", temprature=0.5)


def test_text_that_only_looks_like_control_is_welcome(target):
    result = generate(target, None, "is a < b > c? <thinking> im_end /no_think", max_new_tokens=3)
    assert result.finish_reason in ("length", "stop")


def test_token_ids_may_hold_think_tags_on_purpose(target):
    tags = target.encode("<think>\n")
    result = generate(target, None, [*target.render("hi"), *tags], max_new_tokens=5, stop_token_ids=())
    assert result.phases == ["think"] * 5


def test_nan_logits_stop_the_run_and_emit_nothing():
    model = reference_model(1)
    with torch.no_grad():
        model.lm_head.weight[3, 0] = float("nan")
    for sampling in (Sampling(0.0), Sampling(1.0)):
        with pytest.raises(ValueError, match=r"no distribution .*nothing is emitted"):
            decode_ids(ours(model), None, [[1, 2]], 5, sampling)


def test_nan_draft_logits_stop_the_run():
    model = reference_model(1)
    with torch.no_grad():
        model.lm_head.weight[3, 0] = float("nan")
    for proposal in ("sampled", "greedy"):
        with pytest.raises(ValueError, match="no distribution"):
            decode_ids(
                ours(reference_model(1)), ModelDrafter(ours(model), proposal=proposal), [[1, 2]], 5, Sampling(1.0)
            )


def test_a_drafter_that_reads_less_than_asked_for_is_refused():
    target = ours(reference_model(1))
    short = ModelDrafter(ours(reference_model(2, max_position_embeddings=16)))
    assert len(decode_ids(target, short, [[1] * 8], 8)[0].emitted) == 8
    with pytest.raises(ValueError, match="reads at most 16: ask for fewer tokens, or decode without a drafter"):
        decode_ids(target, short, [[1] * 8], 9)


def test_the_engine_checks_its_own_capacity():
    engine = Engine(ours(reference_model(1)), capacity=20)
    context = Context(0, [1] * 12, Sampling(), KeyedDraws(0, b""))
    with pytest.raises(
        ValueError, match="together 21; the context holds 20: shorten the prompt or ask for fewer tokens"
    ):
        engine.submit(Request(context, 12, StopRule(9), PhaseTracker(NO_TAGS)))


@pytest.mark.parametrize("capacity", [0, 129])
def test_an_engine_cannot_hold_more_than_the_context(capacity):
    with pytest.raises(ValueError, match=f"capacity must be 1 to 128 tokens, what .* holds, got {capacity}"):
        Engine(ours(reference_model(1)), capacity=capacity)


def test_a_tokenizer_without_a_chat_template_takes_no_message(monkeypatch):
    target = text_target()
    monkeypatch.setattr(target.tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match=r"has no chat template, so a message cannot be put to the model; pass token"):
        generate(target, None, "hi", max_new_tokens=2)
    assert len(generate(target, None, target.encode("hi"), max_new_tokens=2, stop_token_ids=()).tokens) == 2


def test_the_whole_context_may_be_used():
    target = ours(reference_model(1))
    for drafter in (None, LookupDrafter(64, max_depth=15), ModelDrafter(ours(reference_model(2)), max_depth=7)):
        (request,) = decode_ids(target, drafter, [[1, 2, 3] * 33], 29, Sampling(1.0))
        assert len(request.context.tokens) == 128 == target.max_context


def test_depths_below_zero_are_refused():
    with pytest.raises(ValueError, match="depth must be an integer >= 0, got -1; 0 is plain decoding"):
        FixedDepth(-1)


@pytest.mark.parametrize(
    "form",
    [
        lambda ids: ids,
        lambda ids: tuple(ids),
        lambda ids: np.array(ids),
        lambda ids: list(np.array(ids)),
        lambda ids: torch.tensor(ids),
    ],
)
def test_one_prompt_of_ids_in_any_form_gives_one_result(target, form):
    ids = [70, 71, 72]
    options = {"max_new_tokens": 4, "seed": 2, "stop_token_ids": ()}
    expected = generate(target, None, ids, **options)
    for result in (generate(target, None, form(ids), **options), generate(target, input_ids=form(ids), **options)):
        assert (result.prompt_tokens, result.tokens) == (ids, expected.tokens)
        assert all(type(token) is int for token in [*result.prompt_tokens, *result.tokens])


@pytest.mark.parametrize("form", [lambda ids: ids, np.array, torch.tensor])
def test_many_prompts_give_a_list_in_order(target, form):
    ids = [[70, 71, 72], [80, 81, 82]]
    results = generate(target, None, form(ids), max_new_tokens=4, max_batch=1)
    assert [r.prompt_tokens for r in results] == ids
    (only,) = generate(target, None, form(ids[:1]), max_new_tokens=4)
    assert only.prompt_tokens == ids[0]


def test_messages_are_rendered_with_the_toggle(target):
    on, off = (generate(target, None, "how?", thinking=t, max_new_tokens=2).prompt_tokens for t in (True, False))
    assert target.decode(on, keep_special=True) == "<|im_start|>user\nhow?<|im_end|>\n<|im_start|>assistant\n"
    assert off == [*on, *target.encode("<think>\n\n</think>\n\n")]


def test_the_public_names():
    for name in companion.__all__:
        assert getattr(companion, name) is not None
