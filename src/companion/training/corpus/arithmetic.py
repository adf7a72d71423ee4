"""Written working for +, - and * in steps that are each locally decidable: a copy, or a fact about single digits."""

from __future__ import annotations

PLACES = ("ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands")


def digits(n: int) -> list[int]:
    """Decimal digits of ``n``, ones first."""
    return [int(c) for c in reversed(str(n))]


def spell(n: int) -> str:
    """``347: ones 7, tens 4, hundreds 3.``"""
    return f"{n}: " + ", ".join(f"{PLACES[i]} {d}" for i, d in enumerate(digits(n))) + "."


def _columns(a: int, b: int) -> list[tuple[str, int, int]]:
    x, y = digits(a), digits(b)
    width = max(len(x), len(y))
    x, y = x + [0] * (width - len(x)), y + [0] * (width - len(y))
    return [(PLACES[i].capitalize(), x[i], y[i]) for i in range(width)]


def add(a: int, b: int) -> list[str]:
    """Column addition; both digits are written before their sum, and the carry comes on top."""
    lines, carry = [f"{spell(a)} {spell(b)}"], 0
    columns = _columns(a, b)
    for place, x, y in columns:
        total = x + y + carry
        lines.append(f"{place}: {x}+{y}={x + y}, +{carry}={total}, write {total % 10}, carry {total // 10}.")
        carry = total // 10
    if carry:
        lines.append(f"{PLACES[len(columns)].capitalize()}: write {carry}.")
    lines.append(f"So {a} + {b} = {a + b}.")
    return lines


def subtract(a: int, b: int) -> list[str]:
    """Column subtraction (a >= b): what must be taken is summed first, then compared, then borrowed for."""
    lines, borrow, written = [f"{spell(a)} {spell(b)}"], 0, ""
    for place, x, y in _columns(a, b):
        take = y + borrow
        if x < take:
            verdict, top, borrow_next = "too small", x + 10, 1
        else:
            verdict, top, borrow_next = "enough", x, 0
        left = top - take
        lines.append(f"{place}: {x} take {y}+{borrow}={take}, {verdict}, {top}-{take}={left}, borrow {borrow_next}.")
        borrow, written = borrow_next, f"{left}{written}"
    lines.append(f"Written down: {written}. So {a} - {b} = {a - b}.")
    return lines


def multiply(a: int, b: int) -> list[str]:
    """Product of ``a`` and the single digit ``b``, digit by digit with carries."""
    if a < 10:
        return [f"So {a} * {b} = {a * b}."]
    lines, carry = [spell(a)], 0
    for i, x in enumerate(digits(a)):
        product, total = x * b, x * b + carry
        lines.append(
            f"{PLACES[i].capitalize()}: {x}*{b}={product}, {product % 10}+{carry}={product % 10 + carry}, "
            f"makes {total}, write {total % 10}, carry {total // 10}."
        )
        carry = total // 10
    if carry:
        lines.append(f"{PLACES[len(digits(a))].capitalize()}: write {carry}.")
    lines.append(f"So {a} * {b} = {a * b}.")
    return lines


def small_step(a: int, op: str, k: int) -> str:
    """``a op k`` for a single digit ``k`` in one sentence without its full stop: the last digits first."""
    result, last = apply(op, a, k), a % 10
    whole = f"{a} {op} {k} = {result}"
    if op == "*":
        return whole
    if op == "+":
        return f"{last}+{k}={last + k}, so {whole}"
    verdict, top = ("too small", last + 10) if last < k else ("enough", last)
    return f"{last} take {k}, {verdict}, {top}-{k}={top - k}, so {whole}"


def compare(a: int, sign: str, b: int) -> str:
    """``a < b`` or ``a > b`` for two-digit numbers without a full stop: the tens decide, or else the ones.

    The sign that was asked for stands just before the one that was found, so the verdict is whether two signs agree.
    """
    found, steps = "=", []
    for x, y in zip(reversed(digits(a)), reversed(digits(b)), strict=True):
        found = ">" if x > y else "<" if x < y else "="
        steps.append(f"{x} {found} {y}")
        if found != "=":
            break
    return f"{a} {sign} {b}? {', '.join(steps)}, so {'yes' if found == sign else 'no'}"


WORK = {"+": add, "-": subtract, "*": multiply}


def apply(op: str, a: int, b: int) -> int:
    """The value of ``a op b``."""
    return {"+": a + b, "-": a - b, "*": a * b}[op]
