"""What users of other libraries fed in and were surprised by: prompts, stops, streams, templates, folders.

Each test names the public report whose kind of failure it guards against.
"""

import numpy as np
import pytest
import torch
from engine.models import byte_tokenizer, text_target
from engine.tables import TableDrafter, TableTarget, script_law

from companion.engine.generate import generate

OPTIONS = {"max_new_tokens": 4, "stop_token_ids": ()}


@pytest.fixture(scope="module")
def target():
    return text_target()


def plain(target, prompts, **options):
    return generate(target, None, prompts, **(OPTIONS | options))


@pytest.mark.parametrize(
    "prompts",
    [
        byte_tokenizer()(["hello", "hi"]),  # ids under the key input_ids
        byte_tokenizer().apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True),
        {"role": "user", "content": "hi"},
        [{"role": "user", "content": "hi"}],
        b"hi",
        [b"hi"],
        7,
        torch.tensor(7),
        [None],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_neither_text_nor_ids_is_refused(target, prompts):
    """ed-donner/llm_engineering#1307, SearchSavior/OpenArc#95: the dict that a tokenizer returns is passed as it is."""
    with pytest.raises(ValueError, match=r"a prompt is a message or a list of token ids, got .*pass the 'input_ids'"):
        plain(target, prompts)


@pytest.mark.parametrize("wrong", [-1, 10**6, 70.0, "a", None])
def test_ids_that_no_tokenizer_makes_are_refused(target, wrong):
    """vllm-project/vllm#51795: a negative id passed the check and became an index."""
    for prompts in ([70, wrong], [[70], [71, wrong]]):
        with pytest.raises(ValueError, match=r"outside the vocabulary|a prompt is a message"):
            plain(target, prompts)


def test_ids_come_in_every_container(target):
    """ed-donner/llm_engineering#1307: lists, tuples, arrays, tensors of any integer type, generators, lists of them."""
    expected = plain(target, [70, 71]).tokens
    one = [(70, 71), np.array([70, 71], np.uint8), torch.tensor([70, 71], dtype=torch.int32), iter([70, 71])]
    one.append([torch.tensor(70), torch.tensor(71)])
    assert [plain(target, ids).tokens for ids in one] == [expected] * len(one)
    many = [[torch.tensor([70, 71])], ([70, 71] for _ in range(1)), {"a": [70, 71]}.values(), torch.tensor([[70, 71]])]
    assert [[r.tokens for r in plain(target, ids)] for ids in many] == [[expected]] * len(many)


def test_stop_tokens_come_in_every_form(target):
    """Blaizzy/mlx-audio#964, huggingface/transformers#31362: an int is no set, a tensor in a set never matches."""
    free = plain(target, [70, 71]).tokens
    for stops in (free[1], [free[1]], torch.tensor(free[1]), [torch.tensor(free[1])], np.array([free[1]]), {free[1]}):
        assert plain(target, [70, 71], stop_token_ids=stops).tokens == free[:2]


@pytest.mark.parametrize("stops", [[-1], [10**6], [None], "<|im_end|>", ["<|im_end|>"], [1.5]])
def test_stop_tokens_that_never_come_are_refused(target, stops):
    """sgl-project/sglang#27398, #22175: ids beyond the vocabulary, null and text were taken, and stopped nothing."""
    with pytest.raises(ValueError, match="outside the vocabulary"):
        plain(target, [70, 71], stop_token_ids=stops)


def test_no_stop_strings_may_be_said_with_none(target):
    """NovaSky-AI/SkyRL#541: None is the other libraries' default."""
    assert plain(target, [70, 71], stop_strings=None).tokens == plain(target, [70, 71]).tokens
    with pytest.raises(ValueError, match=r"stop_strings must be text, got .* token ids go into stop_token_ids"):
        plain(target, [70, 71], stop_strings=[5])


def scripted(target, monkeypatch, script, depth=3):
    """Let ``target`` answer "? " with ``script`` (text or ids); the drafter knows it."""
    prompt, tokens = target.encode("? "), target.encode(script) if isinstance(script, str) else script
    law = script_law(target.vocab_size, len(prompt), tokens)
    table = TableTarget(target.vocab_size, law)
    monkeypatch.setattr(target, "new_cache", table.new_cache, raising=False)
    monkeypatch.setattr(target, "forward", table.forward, raising=False)
    return prompt, TableDrafter(target.vocab_size, law, "greedy", max_depth=depth)


@pytest.mark.parametrize("depth", [1, 6])
def test_a_stop_string_that_is_a_special_token_stops(monkeypatch, depth):
    """vllm-project/vllm#2123, LostRuins/koboldcpp#791: the decoded text has no special tokens, so nothing matched."""
    target = text_target()
    prompt, drafter = scripted(target, monkeypatch, "ab<|im_start|>cdefgh", depth)
    result = generate(target, drafter, prompt, max_new_tokens=9, stop_token_ids=(), stop_strings="<|im_start|>")
    assert (result.text, result.finish_reason) == ("ab", "stop")
    assert result.tokens == target.encode("ab<|im_start|>")


def test_an_empty_list_of_stop_tokens_ignores_the_models_own():
    """vllm-project/vllm#4589: stop tokens of generation_config.json interfered with ignore_eos."""
    target = text_target()
    free = plain(target, [70, 71]).tokens
    target.eos_token_ids = frozenset([free[0]])
    assert plain(target, [70, 71]).tokens == free
    assert plain(target, [70, 71], stop_token_ids=None).tokens == free[:1]
