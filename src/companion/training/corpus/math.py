"""Mathematics: sums, differences, products, chains of two, and word problems of two steps."""

from __future__ import annotations

import random

from .arithmetic import WORK, apply, small_step
from .sample import Kind, Mode, Sample, is_held_out, zipf
from .word_problems import WordProblem, word_problem

WEIGHTS = {"add": 16, "sub": 18, "mul": 12, "chain": 16, "word": 32, "fact": 6}

ASK = (  # {e} is the expression; the last two are never used in training
    "What is {e}?",
    "Compute {e}.",
    "Calculate {e}.",
    "Please work out {e}.",
    "{e} = ?",
    "Can you find {e} for me?",
    "I need the value of {e}.",
    "How much is {e}?",
    "Solve {e}.",
    "Give me the result of {e}.",
    "Hey, could you tell me what {e} comes to?",
    "Evaluate the expression {e} and report the value.",
)
UNSEEN_ASK = 2

OPEN = (
    "Okay, let me work this out.",
    "Let me think.",
    "Alright, step by step.",
    "Hmm, let me do this carefully.",
    "The user wants a number, so I should be careful.",
    "Let me see.",
    "First I write the numbers down.",
    "This looks simple, but I will go slowly.",
)
DETOUR = ("Wait, let me check that.", "Hmm, let me look again.", "Let me double check.", "Is that right?")
AGREE = ("Yes, that is right.", "Good, it holds.", "Okay, it fits.", "That matches.")
CLOSE = ("Now I can answer.", "That is the answer.", "I am done.", "I can write it down.")
ANSWER = ("{e} = {r}.", "The answer is {r}.", "The result is **{r}**.", "{e} equals {r}.", "So the answer is **{r}**.")
POLITE = ("", "Sure! ", "Of course! ", "Here you go. ", "No problem! ", "Certainly. ", "Happy to help. ")


def _number(rng: random.Random, longest: int) -> int:
    n_digits = rng.choices((longest - 1, longest), (1, 2))[0]
    return rng.randrange(10 ** (n_digits - 1), 10**n_digits)


def _steps(rng: random.Random, family: str, longer: bool) -> tuple[str, list[tuple[str, int, int]]]:
    """The expression and its binary steps (op, left, right) in order; ``longer`` adds one digit."""
    size = 4 if longer else 3

    def number() -> int:
        return rng.randrange(1000, 10000) if longer else _number(rng, size)

    if family == "add":
        a, b = number(), number()
        return f"{a} + {b}", [("+", a, b)]
    if family == "sub":
        a, b = sorted((number(), number()), reverse=True)
        return f"{a} - {b}", [("-", a, b)]
    if family == "mul":
        a, b = number(), rng.randrange(2, 10)
        return f"{a} * {b}", [("*", a, b)]
    if family == "fact":
        op = rng.choice("+-*")
        a, b = sorted((rng.randrange(2, 21 if op != "*" else 10), rng.randrange(2, 10)), reverse=True)
        return f"{a} {op} {b}", [(op, a, b)]
    a, b = number(), number()
    first = rng.choice("+-")
    if first == "-" and a < b:
        a, b = b, a
    middle = apply(first, a, b)
    c = number()
    second = rng.choice("+-") if c <= middle else "+"
    return f"{a} {first} {b} {second} {c}", [(first, a, b), (second, middle, c)]


def _check(rng: random.Random, op: str, a: int, b: int) -> str:
    """A detour that looks back at the last digit of one step."""
    x, y = a % 10, b % 10
    if op == "+":
        seen = f"The ones are {x} + {y} = {x + y}, and {a + b} ends in {(a + b) % 10}."
    elif op == "-":
        seen = f"Back again, {(a - b) % 10} + {y} = {(a - b) % 10 + y}, and {a} ends in {x}."
    else:
        seen = f"The ones are {x} * {b} = {x * b}, and {a * b} ends in {a * b % 10}."
    return f"{zipf(rng, DETOUR)} {seen} {zipf(rng, AGREE)}"


def _working(rng: random.Random, steps: list[tuple[str, int, int]], small: bool) -> list[str]:
    lines = []
    for i, (op, a, b) in enumerate(steps):
        if len(steps) > 1:
            lines.append(f"{'First' if i == 0 else 'Then' if i == 1 else 'Last'} {a} {op} {b}.")
        lines += [f"{small_step(a, op, b)}."] if small else WORK[op](a, b)
    return lines


def _think(rng: random.Random, plan: str, steps: list[tuple[str, int, int]], small: bool) -> str:
    lines = [f"{zipf(rng, OPEN)} {plan}", *_working(rng, steps, small)]
    if rng.random() < 0.35:
        lines.append(_check(rng, *steps[-1]))
    lines.append(zipf(rng, CLOSE))
    return "\n".join(lines)


def _block(expression: str, steps: list[tuple[str, int, int]], result: int) -> str:
    op, a, b = steps[0]
    if len(steps) > 1:
        return f"```\n{expression} = {result}\n```\n"
    width = max(len(str(a)), len(str(b)) + 2, len(str(result)))
    return f"```\n{a:>{width}}\n{op} {b:>{width - 2}}\n{'-' * width}\n{result:>{width}}\n```\n"


def _direct(rng: random.Random, expression: str, steps: list[tuple[str, int, int]], result: int) -> str:
    line = zipf(rng, ANSWER).format(e=expression, r=result)
    if rng.random() < 0.45:
        return f"{zipf(rng, POLITE)}Here is the calculation:\n{_block(expression, steps, result)}{line}"
    return f"{zipf(rng, POLITE)}{line}"


def math_sample(rng: random.Random, mode: Mode, held_out: bool, kind: Kind, overlap: float) -> Sample:
    """A mathematics sample; ``overlap`` is the share of answers without thinking that are written as working."""
    while True:
        family = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind == "longer" and family == "fact":
            continue
        problem: WordProblem | None = None
        if family == "word":
            problem = word_problem(rng, longer=kind == "longer", unseen=kind == "wording")
            expression, steps = problem.expression, problem.steps
        else:
            expression, steps = _steps(rng, family, kind == "longer")
        if is_held_out(f"{family}/{expression}") == held_out:
            break
    op, a, b = steps[-1]
    result = apply(op, a, b)
    if problem is None:
        templates = ASK[-UNSEEN_ASK:] if kind == "wording" else ASK[:-UNSEEN_ASK]
        prompt, plan = rng.choice(templates).format(e=expression), f"I need {expression}."
        closing = zipf(rng, ANSWER).format(e=expression, r=result)
    else:
        prompt, plan, closing = problem.text, problem.plan, problem.closing(rng, result)
    small = family == "fact"
    thinking = ""
    if mode == "think":
        thinking, answer = _think(rng, plan, steps, small), closing
    elif rng.random() < overlap:
        answer = "\n".join([plan, *_working(rng, steps, small), closing])
    elif problem is None:
        answer = _direct(rng, expression, steps, result)
    else:
        answer = problem.direct(rng, result)
    return Sample("math", mode, family, prompt, thinking, answer, str(result), held_out, kind)
