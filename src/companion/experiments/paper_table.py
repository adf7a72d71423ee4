"""The paper's Table 1, recomputed: which averages give the gains that its text states, and which do not.

The numbers are the paper's (data/paper), measured by its authors on Qwen3 and Gemma4. Nothing here is a measurement of
this project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.engine.load import data_folder

F64 = NDArray[np.float64]

DOMAINS = {
    "math": ("GSM8K", "MATH500", "AIME25"),
    "code": ("MBPP", "HumanEval", "LiveCodeBench"),
    "chat": ("MT-Bench", "Alpaca", "Arena-Hard"),
}
BENCHMARKS = tuple(name for names in DOMAINS.values() for name in names)
ROUNDING = 0.005  # the table prints two decimals

# percent more accepted length of DSpark, as the paper's text states them
STATED = {
    ("Qwen3-4B", "Eagle3"): 30.9,
    ("Qwen3-8B", "Eagle3"): 26.7,
    ("Qwen3-14B", "Eagle3"): 30.0,
    ("Qwen3-4B", "DFlash"): 16.3,
    ("Qwen3-8B", "DFlash"): 18.4,
    ("Qwen3-14B", "DFlash"): 18.3,
}

# each takes two rows [9] and gives one ratio; all rise with every entry of the first and fall with the second's
AVERAGES: dict[str, Callable[[F64, F64], float]] = {
    "ratio of means": lambda new, old: float(new.mean() / old.mean()),
    "mean of ratios": lambda new, old: float((new / old).mean()),
    "geometric mean of ratios": lambda new, old: float(np.exp(np.log(new / old).mean())),
    "ratio of harmonic means": lambda new, old: float((1 / old).mean() / (1 / new).mean()),
    "mean of the domains' ratios": lambda new, old: float(np.mean(_domains(new) / _domains(old))),
    "ratio of means, bonus token left out": lambda new, old: float((new.mean() - 1) / (old.mean() - 1)),
}


def load(path: Path | None = None) -> pd.DataFrame:
    """tau by (target, drafter) and benchmark. ValueError when the file is not the table."""
    path = path or data_folder() / "paper" / "table_1.csv"
    try:
        table = pd.read_csv(path, index_col=["target", "drafter"])
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not the paper's Table 1 ({error}); restore it from the repository") from error
    if tuple(table.columns) != BENCHMARKS or table.isna().any(axis=None) or not table.index.is_unique:
        raise ValueError(f"{path} is not the paper's Table 1: expected a row a drafter and {', '.join(BENCHMARKS)}")
    return table


@dataclass(frozen=True, slots=True)
class Gain:
    """How much longer DSpark's accepted length is, in percent, and between which values rounding leaves it."""

    value: float
    low: float
    high: float

    def prints(self, stated: float) -> bool:
        """Whether the table as printed gives the stated number, to one decimal."""
        return bool(abs(self.value - stated) <= 0.05 + 1e-9)

    def can_print(self, stated: float) -> bool:
        """Whether some unrounded table behind the printed one gives it."""
        return bool(self.low - 0.05 <= stated <= self.high + 0.05)


def gain(table: pd.DataFrame, target: str, over: str, average: str, drafter: str = "DSpark") -> Gain:
    """The gain of ``drafter`` over ``over`` by one of `AVERAGES`; ValueError for names that are not there."""
    if average not in AVERAGES:
        raise ValueError(f"no average is called {average!r}; there are {', '.join(AVERAGES)}")
    rows = []
    for name in (drafter, over):
        if (target, name) not in table.index:
            raise ValueError(f"the table has no row for {name} on {target}")
        rows.append(table.loc[[(target, name)]].to_numpy(np.float64)[0])
    new, old = rows
    by = AVERAGES[average]
    value, low, high = by(new, old), by(new - ROUNDING, old + ROUNDING), by(new + ROUNDING, old - ROUNDING)
    return Gain(*(100 * (ratio - 1) for ratio in (value, low, high)))


def ratios(table: pd.DataFrame, over: str, drafter: str = "DSpark") -> pd.DataFrame:
    """tau of ``drafter`` over tau of ``over``, by target and benchmark."""
    by_drafter = {name: rows.droplevel("drafter") for name, rows in table.groupby("drafter")}
    return by_drafter[drafter] / by_drafter[over]


def domain_means(table: pd.DataFrame) -> pd.DataFrame:
    """Means over the three benchmarks of each domain."""
    return pd.DataFrame({domain: table[list(names)].mean(axis=1) for domain, names in DOMAINS.items()})


def _domains(row: F64) -> F64:  # [9] -> [3]
    return row.reshape(3, 3).mean(1)
