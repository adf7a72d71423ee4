"""The procedural corpus: right answers, locally decidable working, held-out sets that never meet training."""

from __future__ import annotations

import ast
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.training.corpus import (
    DOMAINS,
    KINDS,
    MODES,
    Domain,
    Kind,
    Sample,
    arithmetic,
    chat,
    chat_prompts,
    code,
    extract_final,
    held_out_samples,
    is_held_out,
    is_right,
    training_sample,
)
from companion.training.corpus import math as maths
from companion.training.corpus.sample import HELD_OUT_ONE_IN, SOFT_SWITCH, zipf

TRAINING = [training_sample(0, i) for i in range(3000)]


def test_a_sample_is_a_function_of_seed_and_index() -> None:
    assert [training_sample(3, i) for i in range(20)] == [training_sample(3, i) for i in range(20)]
    assert [training_sample(3, i) for i in range(20)] != [training_sample(4, i) for i in range(20)]


def test_every_checkable_sample_passes_its_own_check_and_a_changed_result_fails() -> None:
    for s in TRAINING:
        if s.final is None:
            assert s.domain == "chat"
            continue
        assert is_right(s.final, s.response), s
        wrong = "[0, 0, 0, 0, 0, 0, 0]" if s.final.startswith("[") else str(int(s.final) + 1)
        assert not is_right(wrong, s.response), s


def _value(prompt: str) -> str | None:
    expression = re.search(r"\d+(?: [-+*/] \d+)+", prompt)
    if expression is None:
        return None
    return str(int(eval(compile(ast.parse(expression.group(), mode="eval"), "prompt", "eval"), {"__builtins__": {}})))


def test_mathematics_agrees_with_python() -> None:
    checked = 0
    for s in TRAINING:
        if s.domain == "math" and s.family != "word" and (value := _value(s.prompt)) is not None:
            assert value == s.final, s.prompt
            checked += 1
    assert checked > 500


def test_code_agrees_with_python() -> None:
    checked = 0
    for s in TRAINING:
        if s.domain != "code":
            continue
        source = re.search(r"```python\n(.*?)\n```", s.prompt + "\n" + s.answer, re.DOTALL)
        assert source is not None
        printed: list[object] = []
        scope: dict[str, object] = {"print": printed.append}
        exec(source.group(1), scope)
        if not printed:
            call = re.findall(r"\w+\((?:\d+|\[[\d, ]*\])\)", s.prompt)[-1]
            printed.append(eval(call, scope))
        assert str(printed[0]) == s.final, s.prompt
        checked += 1
    assert checked > 500


@given(st.integers(0, 99_999), st.integers(0, 99_999))
def test_column_working_ends_with_the_right_result(a: int, b: int) -> None:
    a, b = max(a, b), min(a, b)
    assert arithmetic.add(a, b)[-1] == f"So {a} + {b} = {a + b}."
    assert arithmetic.subtract(a, b)[-1].endswith(f"So {a} - {b} = {a - b}.")
    for line in arithmetic.add(a, b) + arithmetic.subtract(a, b):
        for left, right in re.findall(r"(\d+[+-]\d+)=(\d+)", line):
            assert _evaluate(left) == int(right) <= 19, line


@given(st.integers(10, 9_999), st.integers(2, 9))
def test_products_and_small_steps_work_digit_by_digit(a: int, b: int) -> None:
    assert arithmetic.multiply(a, b)[-1] == f"So {a} * {b} = {a * b}."
    steps = [arithmetic.small_step(a, op, b) for op in "+-"]
    assert steps[0].endswith(f"so {a} + {b} = {a + b}")
    assert steps[1].endswith(f"so {a} - {b} = {a - b}")
    for line in arithmetic.multiply(a, b) + steps:
        facts = re.findall(r"(\d+[+*-]\d+)=(\d+)", line)
        assert facts or line.startswith((f"{a}: ", "So", "Tens: write", "Hundreds: write", "Thousands: write", "Ten "))
        for left, right in facts:
            assert _evaluate(left) == int(right) <= 81, line  # facts about single digits only


@given(st.integers(10, 99), st.integers(10, 99), st.sampled_from("<>"))
def test_comparisons_are_decided_by_the_first_digits_that_differ(a: int, b: int, sign: str) -> None:
    said = arithmetic.compare(a, sign, b)
    assert said.startswith(f"{a} {sign} {b}? ")
    assert said.endswith(f"so {'yes' if _evaluate(f'{a} {sign} {b}') else 'no'}")
    facts = re.findall(r"(\d) ([<=>]) (\d)(?=,)", said)
    assert facts
    for x, found, y in facts:
        assert found == (">" if x > y else "<" if x < y else "=")


def _evaluate(expression: str) -> int:
    return int(eval(expression, {"__builtins__": {}}))


def test_written_digits_of_a_subtraction_keep_their_leading_zeros() -> None:
    assert arithmetic.subtract(134, 121)[-1] == "Written down: 013. So 134 - 121 = 13."


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("domain", DOMAINS)
def test_held_out_prompts_never_occur_in_training(domain: Domain, kind: Kind) -> None:
    if (domain, kind) == ("chat", "longer"):
        with pytest.raises(ValueError, match="no kind 'longer'"):
            held_out_samples("chat", "think", 5, kind=kind)
        return
    trained = {s.prompt.removesuffix(SOFT_SWITCH) for s in TRAINING}
    for mode in MODES:
        samples = held_out_samples(domain, mode, 200, kind=kind)
        assert len({s.prompt for s in samples}) == 200
        assert all(s.held_out and s.kind == kind and s.mode == mode for s in samples)
        assert not trained & {s.prompt for s in samples}


def test_the_hash_holds_out_one_in_eight() -> None:
    share = sum(is_held_out(f"add/{i} + {i + 1}") for i in range(8000)) / 8000
    assert abs(share - 1 / HELD_OUT_ONE_IN) < 0.02
    assert is_held_out("add/347 + 285") == is_held_out("add/347 + 285")


def test_unseen_wordings_are_unseen() -> None:
    for templates, unseen in ((maths.ASK, maths.UNSEEN_ASK), (code.ASK, code.UNSEEN), (chat.ASK, chat.UNSEEN)):
        for template in templates[-unseen:]:
            opening = template.split("{")[0]
            assert len(opening) > 3
            assert not any(s.prompt.startswith(opening) for s in TRAINING), opening


def test_longer_numbers_are_longer_than_any_trained_ones() -> None:
    def longest(samples: list[Sample], family: str) -> int:
        return max(len(n) for s in samples if s.family == family for n in re.findall(r"\d+", s.prompt))

    longer = held_out_samples("math", "think", 200, kind="longer")
    for family in ("add", "sub", "mul"):
        assert longest(TRAINING, family) == 3
        assert min(max(map(len, re.findall(r"\d+", s.prompt))) for s in longer if s.family == family) == 4


def test_chat_has_thousands_of_prompts_and_enough_held_out() -> None:
    prompts = chat_prompts()
    assert len(set(prompts)) == len(prompts) > 2000
    assert sum(is_held_out(f"chat/{p}") for p in prompts) >= 1000


def test_overlap_sets_the_share_of_answers_with_working() -> None:
    def share(overlap: float) -> float:
        shares: dict[Domain, float] = {"math": 1, "code": 0, "chat": 0}
        made = [training_sample(5, i, think_share=0.0, overlap=overlap, shares=shares) for i in range(400)]
        answers = [s.answer for s in made if s.family != "word"]
        return sum(a.startswith("I need") for a in answers) / len(answers)

    assert share(0.0) == 0
    assert share(1.0) == 1
    assert 0.15 < share(0.25) < 0.35


def test_only_thinking_samples_have_spans() -> None:
    for s in TRAINING:
        assert (s.mode == "think") == bool(s.thinking) == s.response.startswith("<think>\n")
        assert "<think>" not in s.answer
        assert "</think>" not in s.thinking


@pytest.mark.parametrize(
    ("response", "final"),
    [
        ("<think>\n1\n</think>\n\nThe answer is **42**.", "42"),
        ("<think>\n7", None),
        ("f([1, 2]) returns [3, 4].", "[3,4]"),
        ("No number here.", None),
        ("It is [].", "[]"),
    ],
)
def test_the_final_answer_is_read_after_the_span(response: str, final: str | None) -> None:
    assert extract_final(response) == final


def test_zipf_prefers_early_options() -> None:
    rng = random.Random(0)
    drawn = [zipf(rng, "abcd", 1.0) for _ in range(4000)]
    expected = [12 / 25, 6 / 25, 4 / 25, 3 / 25]
    assert all(abs(drawn.count(c) / 4000 - p) < 0.03 for c, p in zip("abcd", expected, strict=True))
