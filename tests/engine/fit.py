"""A chi-square test of sampled texts against their exact law, with its power stated beforehand.

With N texts, k cells and a false-alarm rate alpha, a law at total variation d (between the pooled cells) gives a
non-centrality of at least 4 N d^2, by Cauchy-Schwarz; so the power at 4 N d^2 is a lower bound whatever the deviation
looks like. Against one known alternative the non-centrality, and the power, are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
from scipy.stats import chi2, ncx2

ALPHA = 1e-4
REST = "all texts too rare for a cell of their own"


class Fit:
    """``count`` texts against ``expected``; texts expected fewer than five times share one cell."""

    def __init__(self, expected: Mapping[Hashable, float], count: int) -> None:
        self.count, self.support = count, set(expected)
        self.cells = {text: mass for text, mass in expected.items() if mass * count >= 5}
        rest = 1 - sum(self.cells.values())
        if rest * count > 1e-9:
            self.cells[REST] = rest
        self.freedom = len(self.cells) - 1
        self.critical = float(chi2.isf(ALPHA, self.freedom))

    def _shift(self, law: Mapping[Hashable, float]) -> float:
        """N sum (law - expected)^2 / expected over the cells."""
        pooled = {cell: law.get(cell, 0.0) for cell in self.cells}
        pooled[REST] = 1 - sum(mass for cell, mass in pooled.items() if cell != REST)
        return self.count * sum((pooled[c] - mass) ** 2 / mass for c, mass in self.cells.items())

    def statistic(self, texts: Iterable[Hashable]) -> float:
        seen = Counter(texts)
        assert seen.total() == self.count
        assert set(seen) <= self.support, "a text that plain sampling cannot produce"
        return self._shift({text: n / self.count for text, n in seen.items()})

    def power(self, alternative: Mapping[Hashable, float]) -> float:
        """How likely the test is to reject texts that follow ``alternative``."""
        return float(ncx2.sf(self.critical, self.freedom, self._shift(alternative)))

    def mean_statistic(self, alternative: Mapping[Hashable, float]) -> float:
        """What the statistic is around when the texts follow ``alternative``."""
        return self.freedom + self._shift(alternative)

    def detectable(self, power: float = 0.99) -> float:
        """The smallest total variation that is caught with at least this power, whatever the deviation looks like."""
        grid = np.linspace(0.001, 0.5, 500)
        return float(grid[np.argmax(ncx2.sf(self.critical, self.freedom, 4 * self.count * grid**2) >= power)])
