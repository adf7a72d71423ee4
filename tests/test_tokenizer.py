"""The tokenizer behaves as Qwen3's where it matters: digits, control tokens, chat template, thinking toggle."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config

from companion.training.corpus import training_sample
from companion.training.tokenizer import CONTROL, corpus_texts, render, train_tokenizer

EMPTY = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(corpus_texts(0, 1500), vocab_size=640)


def _prompt(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]], **options: object) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options))


def test_digits_are_single_tokens_and_controls_have_one_id(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [tokenizer.decode(i) for i in tokenizer.encode("347+28")] == ["3", "4", "7", "+", "2", "8"]
    for token in CONTROL:
        assert len(tokenizer.encode(token)) == 1
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_think_tags_survive_skip_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("<think>\nx\n</think>\n\ny<|im_end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>\nx\n</think>\n\ny"


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=60))
def test_any_text_can_be_encoded_and_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    import unicodedata

    ids = tokenizer.encode(text)
    assert max(ids, default=0) < len(tokenizer)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_the_thinking_toggle(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    on = _prompt(tokenizer, messages, enable_thinking=True)
    assert on == _prompt(tokenizer, messages) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert _prompt(tokenizer, messages, enable_thinking=False) == on + EMPTY


def test_history_drops_earlier_thinking_and_keeps_the_system_message(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "<think>\nhidden\n</think>\n\nTwo."},
        {"role": "user", "content": "Three?"},
    ]
    assert _prompt(tokenizer, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
        "<|im_start|>assistant\nTwo.<|im_end|>\n<|im_start|>user\nThree?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_last_answer_keeps_its_thinking(tokenizer: PreTrainedTokenizerFast) -> None:
    user = {"role": "user", "content": "One?"}
    given_inline = {"role": "assistant", "content": "<think>\nseen\n</think>\n\nTwo."}
    given_apart = {"role": "assistant", "content": "Two.", "reasoning_content": "seen"}
    expected = "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n<think>\nseen\n</think>\n\nTwo.<|im_end|>\n"
    for answer in (given_inline, given_apart):
        assert tokenizer.apply_chat_template([user, answer], tokenize=False) == expected
    plain = tokenizer.apply_chat_template([user, {"role": "assistant", "content": "Two."}], tokenize=False)
    assert plain == f"<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n{EMPTY}Two.<|im_end|>\n"


@pytest.mark.parametrize(
    ("messages", "options", "complaint"),
    [
        ([{"role": "tool", "content": "x"}], {}, "unknown role"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}], {}, "must come first"),
        ([{"role": "user", "content": "x"}], {"tools": [{"name": "t"}]}, "no tool use"),
    ],
)
def test_what_the_template_cannot_say_is_an_error(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]], options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(Exception, match=complaint):
        _prompt(tokenizer, messages, **options)


def test_training_text_is_the_chat_templates_text(tokenizer: PreTrainedTokenizerFast) -> None:
    kinds = set()
    for i in range(400):
        s = training_sample(0, i)
        prompt, response = render(s)
        soft = s.prompt.endswith("/no_think")
        kinds.add((s.mode, bool(s.system), bool(s.history), soft))
        assert prompt == _prompt(tokenizer, s.messages, enable_thinking=s.mode == "think" or soft)
        answer = {"role": "assistant", "content": s.answer, "reasoning_content": s.thinking}
        whole = tokenizer.apply_chat_template([*s.messages, answer], tokenize=False)
        assert prompt + response + "\n" == whole
    assert {k[0] for k in kinds} == {"think", "no_think"}
    assert any(k[1] for k in kinds)
    assert any(k[2] for k in kinds)
    assert any(k[3] for k in kinds)


def test_a_saved_tokenizer_loads_through_auto_classes(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    Qwen3Config().save_pretrained(tmp_path)  # as beside a model: its type must not bring in another tokenizer class
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>user\nIt's 1,234 + 56 = 1290.\n\n<think>\nHmm, naïve?\n</think>"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="more varied text"):
        train_tokenizer(["abc"], vocab_size=2000)
