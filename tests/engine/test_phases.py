"""Phases from token ids: where a think span begins and ends, whatever the prompt, the block or the cap did."""

import pytest
from engine.models import byte_tokenizer, text_target
from hypothesis import given
from hypothesis import strategies as st

from companion.drafters.lookup import LookupDrafter
from companion.engine.generate import generate
from companion.exact.tables import TableDrafter, TableTarget, script_law
from companion.metrics import phase_counts, straddle_rate
from companion.phase.tracker import PhaseTracker, ThinkTokens, straddles
from companion.scheduling.fixed import FixedDepth

TOKENIZER = byte_tokenizer()
TAGS = ThinkTokens.of(TOKENIZER)
OPEN, CLOSE, TURN = TAGS.open, TAGS.close, TAGS.turn


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def rendered(thinking, message="how many?"):
    messages = [{"role": "user", "content": message}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking)
    return ids(text)


def marks(text, prompt=()):
    """Phases of a text, t for think and o for output."""
    tracker = PhaseTracker(TAGS, prompt)
    return "".join(phase[0] for phase in tracker.label(ids(text)))


def test_the_tags_belong_to_the_span():
    assert marks("<think>ab</think>cd") == "tttt" + "oo"


def test_an_empty_span_is_two_tokens_of_thinking():
    """What a model writes after the soft switch: the span is there and holds nothing."""
    assert marks("<think>\n\n</think>\n\nab", rendered(True, "how many? /no_think")) == "tttt" + "oooo"


def test_truncated_before_the_end_of_the_span():
    """With thinking on all of it is thinking; with thinking off there is no span, so all of it is output."""
    assert marks("<think>abc", rendered(True)) == "tttt"
    assert marks("abc", rendered(False)) == "ooo"


def test_the_first_phase_comes_from_the_prompts_tail():
    """Not from a flag: a prompt may end inside an open span or behind a closed one."""
    assert PhaseTracker(TAGS, rendered(True)).phase == "output"  # the model itself opens the span
    assert PhaseTracker(TAGS, rendered(False)).phase == "output"  # the template has opened and closed it
    forced = [*rendered(True), *ids("<think>\n")]
    assert PhaseTracker(TAGS, forced).phase == "think"
    assert marks("ab</think>c", forced) == "ttt" + "o"


def test_think_text_quoted_in_an_earlier_turn_opens_nothing():
    history = ids("<|im_start|>user\nwhat does <think> mean?<|im_end|>\n<|im_start|>assistant\n")
    assert PhaseTracker(TAGS, history).phase == "output"
    spent = ids("<|im_start|>assistant\n<think>never closed<|im_end|>\n<|im_start|>user\nhm<|im_end|>\n")
    assert PhaseTracker(TAGS, [*spent, *ids("<|im_start|>assistant\n")]).phase == "output"


def test_tags_written_as_ordinary_letters_are_text():
    letters = [TOKENIZER.convert_tokens_to_ids(c) for c in "<think>"]
    assert PhaseTracker(TAGS).label(letters) == ["output"] * 7


def test_an_orphan_close_is_output_and_counted():
    tracker = PhaseTracker(TAGS, rendered(False))
    assert tracker.label(ids("a</think>b")) == ["output"] * 3
    assert (tracker.orphan_closes, tracker.spans_closed) == (1, 0)


def test_a_span_may_be_entered_again_and_does_not_nest():
    assert marks("<think>a</think>b<think>c</think>d") == "ttt" + "o" + "ttt" + "o"
    assert marks("<think>a<think>b</think>c</think>d") == "ttttt" + "ooo"


def test_counts_of_the_prompt_are_not_those_of_the_response():
    tracker = PhaseTracker(TAGS, [*rendered(False), *ids("</think>")])
    assert (tracker.spans_closed, tracker.orphan_closes) == (0, 0)


def test_a_tokenizer_without_the_tags_has_one_phase():
    class Plain:
        def get_vocab(self):
            return {"a": 0, "b": 1}

    tags = ThinkTokens.of(Plain())
    assert tags == ThinkTokens(None, None, None)
    assert PhaseTracker(tags, [0, 1]).label([0, 1, 0]) == ["output"] * 3


@given(st.lists(st.sampled_from([OPEN, CLOSE, TURN, 5, 6]), max_size=30), st.data())
def test_labels_do_not_depend_on_how_the_text_is_cut(tokens, data):
    """Pushed in blocks of any sizes, and with any part of the text counted as prompt of the same turn."""
    whole = PhaseTracker(TAGS).label(tokens)
    cut = data.draw(st.integers(0, len(tokens)))
    tracker = PhaseTracker(TAGS)
    assert tracker.label(tokens[:cut]) + tracker.label(tokens[cut:]) == whole
    if TURN not in tokens:
        assert PhaseTracker(TAGS, tokens[:cut]).label(tokens[cut:]) == whole[cut:]
    assert len(whole) == len(tokens)


def scripted(monkeypatch, script, depth, *, prompt, **options):
    """A response that the target is made to write, drafted ``depth`` tokens ahead."""
    target = text_target()
    law = script_law(target.vocab_size, len(prompt), ids(script))
    table = TableTarget(target.vocab_size, law)
    monkeypatch.setattr(target, "new_cache", table.new_cache, raising=False)
    monkeypatch.setattr(target, "forward", table.forward, raising=False)
    drafter = TableDrafter(target.vocab_size, law, "greedy")
    return generate(target, drafter, prompt, policy=FixedDepth(depth), **options)


@pytest.mark.parametrize("depth", [1, 2, 3, 6, 15])
def test_a_boundary_inside_a_block_is_labelled_token_by_token(monkeypatch, depth):
    """The straddle: one round's tokens lie in both phases; each token keeps its own."""
    script = "<think>abcdef</think>123456"
    result = scripted(monkeypatch, script, depth, prompt=rendered(True), max_new_tokens=14, stop_token_ids=())
    assert [p[0] for p in result.phases] == list("t" * 8 + "o" * 6)
    in_rounds = [phase for row in result.rounds for phase in row.phases]
    assert in_rounds == result.phases[1:]
    straddling = [row for row in result.rounds if straddles(row.phases)]
    close = [i for i, row in enumerate(result.rounds) if ids("</think>")[0] in row.tokens]
    assert len(close) == 1
    row = result.rounds[close[0]]
    ends_with_the_tag = row.tokens[-1] == ids("</think>")[0]
    assert len(straddling) == (0 if ends_with_the_tag else 1)
    assert straddle_rate(result.rounds) == len(straddling) / len(result.rounds)


@pytest.mark.parametrize(("cap", "stops"), [(4, ""), (9, ""), (20, "5"), (20, "d"), (20, "a5")])
def test_phase_counts_sum_to_the_emitted_tokens(monkeypatch, cap, stops):
    """Nothing past the stop token or the cap is counted in any phase, though the block went on."""
    script = "<think>abcdef</think>123456789"
    result = scripted(
        monkeypatch, script, 15, prompt=rendered(True), max_new_tokens=cap, stop_token_ids=ids(stops) if stops else ()
    )
    assert len(result.phases) == len(result.tokens) <= cap
    assert sum(phase_counts(result.rounds).values()) == len(result.tokens) - 1
    assert all(len(row.phases) == len(row.tokens) for row in result.rounds)


def test_the_mode_of_token_ids_is_not_guessed():
    """A label says what is known: of a rendered message the flag, of token ids nothing."""
    target = text_target()
    options = {"max_new_tokens": 4, "stop_token_ids": (), "temperature": 0.0}
    ran = generate(target, LookupDrafter(target.vocab_size), ["hello"], thinking=False, **options)
    assert {row.mode for row in ran[0].rounds} == {"no_think"}
    ran = generate(target, LookupDrafter(target.vocab_size), [ids("hello")], thinking=False, **options)
    assert {row.mode for row in ran[0].rounds} == {None}
