"""Code: a small Python function and what it returns, or a short program and what it prints."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .arithmetic import apply, compare, small_step
from .sample import Kind, Mode, Sample, is_held_out, zipf

WEIGHTS = {"compose": 14, "loop": 14, "sum": 10, "extreme": 12, "count": 12, "map": 18, "filter": 14, "reverse": 6}

FUNCTIONS = ("f", "g", "solve", "work", "convert", "change", "apply_rule", "process", "step", "compute", "run", "build")
LISTS = ("xs", "items", "values", "numbers", "data", "row")
ITEMS = ("x", "v", "n", "item")
TOTALS = ("out", "result", "acc", "res")
ASK = (  # {s} what it does, {c} the call; the last two are never used in training
    "Write a Python function {f} that {s}. What does {c} return?",
    "Please write a Python function {f} which {s}, and give me {c}.",
    "I need a function {f} in Python. It {s}. Show me {c}.",
    "Define {f} so that it {s}. What is {c}?",
    "Can you code a function {f} that {s}? Then evaluate {c}.",
    "Python: {f} {s}. Code and value of {c}, please.",
    "In Python, implement {f}: it {s}. Afterwards tell me the value of {c}.",
    "A function called {f} {s}. Write it down and run {c} in your head.",
)
ASK_PROGRAM = (
    "What does this program print?\n{p}",
    "Please run this in your head and tell me the output.\n{p}",
    "Which value is printed here?\n{p}",
    "Read the program and give its output.\n{p}",
    "Look at these lines. What appears on the screen?\n{p}",
    "Predict the printed value.\n{p}",
)
UNSEEN = 2
OPEN = (
    "Okay, let me trace it.",
    "Let me go through it.",
    "Alright, one item after another.",
    "Let me think.",
    "Hmm, let me run it in my head.",
    "The user wants code and a value.",
    "First the code, then the value.",
    "I should trace this carefully.",
)
CLOSE = ("Now I write the answer.", "That is the value.", "Done.", "I can answer now.", "The code is short.")
LEAD = (
    "",
    "Sure! Here is the code:\n",
    "Of course! This does it:\n",
    "Here you go:\n",
    "No problem:\n",
    "One way to do it:\n",
)


@dataclass(frozen=True, slots=True)
class Task:
    key: str  # operands
    code: str  # the body of the Markdown block
    trace: list[str]
    result: str
    call: str = ""  # empty: a program that prints
    does: str = ""
    function: str = ""


def _show(values: list[int]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


def _brief(values: list[int]) -> str:
    return "[" + ",".join(map(str, values)) + "]"


def _names(rng: random.Random) -> tuple[str, str, str, str]:
    return zipf(rng, FUNCTIONS), zipf(rng, LISTS), zipf(rng, ITEMS), zipf(rng, TOTALS)


def _walk(values: list[int], note: Callable[[int], str]) -> list[str]:
    """One line per item: the item, what is left, and ``note``'s remark; the rest list makes each step a plain copy."""
    lines = []
    for i, v in enumerate(values):
        lines.append(f"Take {v}, left {_brief(values[i + 1 :])}. {note(v)}")
    return lines


def _end(result: object) -> str:
    return f"Nothing is left, so {result}."


def _items(rng: random.Random, longer: bool, low: int, high: int) -> list[int]:
    size = 6 if longer else rng.choice((3, 4, 4, 5, 5))
    return [rng.randrange(low, high) for _ in range(size)]


def _operation(rng: random.Random, value: int) -> tuple[str, int]:
    choices = ["+", "-", "*"] if value < 10 else ["+", "-"]
    op = rng.choice([o for o in choices if o != "-" or value > 2])
    return op, rng.randrange(2, min(10, value + 1) if op == "-" else 10)


_VERB = {"+": "adds {k}", "-": "subtracts {k}", "*": "multiplies by {k}"}


def _compose(rng: random.Random, longer: bool) -> Task:
    f, _, x, _ = _names(rng)
    start = rng.randrange(2, 10) if rng.random() < 0.4 else rng.randrange(10, 60)
    ops, value, lines = [], start, [f"Start with {start}."]
    for _ in range(4 if longer else rng.choice((2, 3))):
        op, k = _operation(rng, value)
        new = apply(op, value, k)
        lines.append(f"{_VERB[op].format(k=k).capitalize()}: {small_step(value, op, k)}.")
        ops.append((op, k))
        value = new
    body = "".join(f"    {x} = {x} {op} {k}\n" for op, k in ops)
    does = ", then ".join(_VERB[op].format(k=k) for op, k in ops)
    code = f"def {f}({x}):\n{body}    return {x}"
    return Task(f"{start}{ops}", code, [*lines, f"It returns {value}."], str(value), f"{f}({start})", does, f)


def _loop(rng: random.Random, longer: bool) -> Task:
    _, _, x, _ = _names(rng)
    n, start = (6 if longer else rng.choice((3, 4, 5))), rng.randrange(1, 20)
    op, k = rng.choice("+-"), rng.randrange(2, 10)
    if op == "-":
        start += n * k
    value, lines = start, [f"{x} is {start}, the loop runs {n} times, each time {op} {k}."]
    for i in range(n):
        new = apply(op, value, k)
        lines.append(f"Round {i + 1}, left {n - i - 1}: {small_step(value, op, k)}.")
        value = new
    code = f"{x} = {start}\nfor i in range({n}):\n    {x} = {x} {op} {k}\nprint({x})"
    return Task(f"{start}{op}{k}x{n}", code, [*lines, f"It prints {value}."], str(value))


def _sum(rng: random.Random, longer: bool) -> Task:
    f, xs, x, out = _names(rng)
    values, total = _items(rng, longer, 1, 10), 0

    def note(v: int) -> str:
        nonlocal total
        total += v
        return f"{small_step(total - v, '+', v)}."

    lines = [f"Go through {_brief(values)}, total 0.", *_walk(values, note), _end(total)]
    code = f"def {f}({xs}):\n    {out} = 0\n    for {x} in {xs}:\n        {out} += {x}\n    return {out}"
    return Task(_show(values), code, lines, str(total), f"{f}({_show(values)})", "adds up a list", f)


def _extreme(rng: random.Random, longer: bool) -> Task:
    f, xs, x, out = _names(rng)
    values = _items(rng, longer, 10, 100)
    word, sign = rng.choice((("largest", ">"), ("smallest", "<")))
    best = values[0]

    def note(v: int) -> str:
        nonlocal best
        wins = v > best if sign == ">" else v < best
        remark = f"{compare(v, sign, best)}, "
        best = v if wins else best
        return f"{remark}best {best}."

    lines = [f"Go through {_brief(values)}, best {best}.", *_walk(values, note), _end(best)]
    does = f"finds the {word} item of a list"
    code = (
        f"def {f}({xs}):\n    {out} = {xs}[0]\n    for {x} in {xs}:\n        if {x} {sign} {out}:\n"
        f"            {out} = {x}\n    return {out}"
    )
    return Task(f"{word}{values}", code, lines, str(best), f"{f}({_show(values)})", does, f)


def _test(rng: random.Random) -> tuple[str, str, Callable[[int], bool], Callable[[int], str]]:
    """A condition: its words, its Python (with {x}), the predicate, and the remark that decides it."""
    if rng.random() < 0.5:
        word, rest = rng.choice((("even", 0), ("odd", 1)))
        return (
            f"that are {word}",
            f"{{x}} % 2 == {rest}",
            lambda v: v % 2 == rest,
            lambda v: f"{v} {word}? It is {'odd' if v % 2 else 'even'}, so {'yes' if v % 2 == rest else 'no'}",
        )
    k, sign = rng.randrange(15, 85), rng.choice("<>")

    def holds(v: int) -> bool:
        return v > k if sign == ">" else v < k

    word = "greater" if sign == ">" else "smaller"
    return f"{word} than {k}", f"{{x}} {sign} {k}", holds, lambda v: compare(v, sign, k)


def _count(rng: random.Random, longer: bool) -> Task:
    f, xs, x, out = _names(rng)
    values, n = _items(rng, longer, 10, 100), 0
    words, test, holds, remark = _test(rng)

    def note(v: int) -> str:
        nonlocal n
        n += holds(v)
        return f"{remark(v)}, {'count' if holds(v) else 'skip'}, now {n}."

    lines = [f"Go through {_brief(values)} for items {words}, count 0.", *_walk(values, note), _end(n)]
    code = (
        f"def {f}({xs}):\n    {out} = 0\n    for {x} in {xs}:\n        if {test.format(x=x)}:\n"
        f"            {out} += 1\n    return {out}"
    )
    return Task(f"{words}{values}", code, lines, str(n), f"{f}({_show(values)})", f"counts the items {words}", f)


def _filter(rng: random.Random, longer: bool) -> Task:
    f, xs, x, _ = _names(rng)
    values, kept = _items(rng, longer, 10, 100), []
    words, test, holds, remark = _test(rng)

    def note(v: int) -> str:
        if holds(v):
            kept.append(v)
        return f"{remark(v)}, {'keep' if holds(v) else 'skip'}, now {_brief(kept)}."

    lines = [f"Go through {_brief(values)} for items {words}.", *_walk(values, note), _end(_brief(kept))]
    code = f"def {f}({xs}):\n    return [{x} for {x} in {xs} if {test.format(x=x)}]"
    return Task(f"{words}{values}", code, lines, _show(kept), f"{f}({_show(values)})", f"keeps the items {words}", f)


def _map(rng: random.Random, longer: bool) -> Task:
    f, xs, x, _ = _names(rng)
    op, k = rng.choice("+*-"), rng.randrange(2, 10)
    values = _items(rng, longer, *((1, 10) if op == "*" else (10, 100)))
    made: list[int] = []

    def note(v: int) -> str:
        made.append(apply(op, v, k))
        return f"{small_step(v, op, k)}, now {_brief(made)}."

    does = {"+": f"adds {k} to", "-": f"subtracts {k} from", "*": f"multiplies by {k}"}[op] + " each item of a list"
    lines = [f"Go through {_brief(values)}, each {op} {k}.", *_walk(values, note), _end(_brief(made))]
    code = f"def {f}({xs}):\n    return [{x} {op} {k} for {x} in {xs}]"
    return Task(f"{op}{k}{values}", code, lines, _show(made), f"{f}({_show(values)})", does, f)


def _reverse(rng: random.Random, longer: bool) -> Task:
    f, xs, _, _ = _names(rng)
    values = _items(rng, longer, 10, 100)
    made: list[int] = []

    def note(v: int) -> str:
        made.insert(0, v)
        return f"Put it in front: {_brief(made)}."

    lines = [f"Go through {_brief(values)}.", *_walk(values, note), _end(_brief(made))]
    code = f"def {f}({xs}):\n    return {xs}[::-1]"
    return Task(_show(values), code, lines, _show(made), f"{f}({_show(values)})", "reverses a list", f)


FAMILIES: dict[str, Callable[[random.Random, bool], Task]] = {
    "compose": _compose,
    "loop": _loop,
    "sum": _sum,
    "extreme": _extreme,
    "count": _count,
    "map": _map,
    "filter": _filter,
    "reverse": _reverse,
}


def _closing(rng: random.Random, task: Task) -> str:
    if not task.call:
        return zipf(rng, ("It prints {r}.", "The output is {r}.", "The program prints `{r}`.")).format(r=task.result)
    return zipf(rng, ("{c} returns {r}.", "`{c}` is {r}.", "{c} gives {r}.", "The value of {c} is {r}.")).format(
        c=task.call, r=task.result
    )


def code_sample(rng: random.Random, mode: Mode, held_out: bool, kind: Kind, overlap: float) -> Sample:
    """A code sample; ``overlap`` is the share of answers without thinking that carry the trace as working."""
    while True:
        family = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        task = FAMILIES[family](rng, kind == "longer")
        if is_held_out(f"{family}/{task.key}") == held_out:
            break
    block = f"```python\n{task.code}\n```"
    templates = ASK if task.call else ASK_PROGRAM
    template = rng.choice(templates[-UNSEEN:] if kind == "wording" else templates[:-UNSEEN])
    prompt = template.format(f=task.function, s=task.does, c=task.call, p=block)
    closing = _closing(rng, task)
    program = "" if not task.call else f"{block}\n"
    trace = "\n".join(task.trace)
    thinking = ""
    if mode == "think":
        thinking = f"{zipf(rng, OPEN)}\n{trace}\n{zipf(rng, CLOSE)}"
        answer = f"{zipf(rng, LEAD) if program else ''}{program}{closing}"
    elif rng.random() < overlap:
        answer = f"{program}{trace}\n{closing}"
    else:
        answer = f"{zipf(rng, LEAD) if program else ''}{program}{closing}"
    return Sample("code", mode, family, prompt, thinking, answer, task.result, held_out, kind)
