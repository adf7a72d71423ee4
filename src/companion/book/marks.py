"""The mark ⟨...⟩ around what only holds for the machine and the run that printed it.

A notebook's stored outputs are compared on every test run. Timings, memory and throughput differ from run to run, and
a pattern that hides every "1.2 s" would one day hide a result. So nothing is hidden by its shape: an author marks a
number, the page shows it, and the comparison (notebooks/nbval_sanitize.cfg) and the stored copy leave out what is
between the brackets, and nothing else.
"""

import re

MARK = re.compile(r"⟨[^⟨⟩]*⟩")  # the first rule of notebooks/nbval_sanitize.cfg; a test keeps the two equal
BLANK = "⟨measured⟩"


def measured(value: float | str, unit: str = "", digits: int = 3) -> str:
    """``value`` to ``digits`` significant digits with its unit, marked as belonging to this run.

    >>> measured(5.4132, "ms")
    '⟨5.41 ms⟩'
    """
    text = value if isinstance(value, str) else _significant(value, digits)
    return f"⟨{text} {unit}⟩" if unit else f"⟨{text}⟩"


def blank(text: str) -> str:
    """``text`` with the content of every mark left out."""
    return MARK.sub(BLANK, text)


def _significant(value: float, digits: int) -> str:
    """Fixed notation, never an exponent: 1234.5 -> 1,234 and 0.00123 -> 0.00123."""
    rounded = float(f"{value:.{digits}g}")
    if rounded == 0 or rounded != rounded or abs(rounded) == float("inf"):
        return f"{rounded:g}"
    decimals = max(0, digits - 1 - int(f"{rounded:e}".split("e")[1]))
    return f"{value:,.{decimals}f}"
