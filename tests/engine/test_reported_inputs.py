"""What users of other libraries fed in and were surprised by: prompts, stops, streams, templates, folders.

Each test names the public report whose kind of failure it guards against.
"""

import numpy as np
import pytest
import torch
from engine.models import byte_tokenizer, text_target

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
