r"""A number whose uncertainty comes from responses, since the steps of one response depend on each other.

A pooled ratio r = sum n_g / sum d_g over G clusters varies, to first order, as a sum of independent terms, one each:

    u_g = sqrt(G / (G - 1)) (n_g - r d_g) / sum d,      Var r = sum u_g^2      (linearised ratio; CR1 correction)

Sums and differences of estimates add these terms cluster by cluster, so that what two of them share (the same
responses in both phases, the same prompts under two drafters) is paired by itself. Intervals use Student's t with the
smallest G - 1 of what went in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from companion.resampling import Interval


@dataclass(frozen=True)
class Estimate:
    """``influence`` holds each cluster's term u_g; the value's variance is the sum of their squares."""

    value: float
    influence: Mapping[str, float]
    df: int  # G - 1; 0 where a single cluster leaves the spread unknown

    @property
    def clusters(self) -> int:
        return len(self.influence)

    @property
    def standard_error(self) -> float | None:
        return math.sqrt(sum(u * u for u in self.influence.values())) if self.df else None

    def __add__(self, other: Estimate) -> Estimate:
        names = self.influence.keys() | other.influence.keys()
        terms = {name: self.influence.get(name, 0.0) + other.influence.get(name, 0.0) for name in sorted(names)}
        return Estimate(self.value + other.value, terms, min(self.df, other.df))

    def __mul__(self, factor: float) -> Estimate:
        return Estimate(factor * self.value, {name: factor * u for name, u in self.influence.items()}, self.df)

    def __sub__(self, other: Estimate) -> Estimate:
        return self + other * -1.0

    def interval(self, level: float = 0.95) -> Interval | None:
        """value +- t se; None with a single cluster."""
        from scipy.stats import t

        error = self.standard_error
        if error is None:
            return None
        half = float(t.ppf((1 + level) / 2, self.df)) * error
        return Interval(self.value, self.value - half, self.value + half)

    def p_value(self, null: float = 0.0) -> float | None:
        """Two-sided; None with a single cluster or no spread."""
        from scipy.stats import t

        error = self.standard_error
        return 2.0 * float(t.sf(abs(self.value - null) / error, self.df)) if error else None


def ratio(parts: Iterable[tuple[str, float, float]]) -> Estimate | None:
    """Sum of numerators over sum of denominators from (cluster, numerator, denominator); None without any to divide by.

    A cluster may come in many parts; one whose denominators are all 0 has no say.
    """
    sums: dict[str, tuple[float, float]] = {}
    for cluster, numerator, denominator in parts:
        n, d = sums.get(cluster, (0.0, 0.0))
        sums[cluster] = n + numerator, d + denominator
    there = {cluster: nd for cluster, nd in sums.items() if nd[1] > 0}
    total = sum(d for _, d in there.values())
    if not total:
        return None
    value = sum(n for n, _ in there.values()) / total
    return from_residuals(value, {cluster: (n - value * d) / total for cluster, (n, d) in there.items()})


def from_residuals(value: float, residuals: Mapping[str, float]) -> Estimate:
    """An estimate from first-order terms without the correction for few clusters."""
    count = len(residuals)
    scale = math.sqrt(count / (count - 1)) if count > 1 else 0.0
    return Estimate(value, {cluster: scale * u for cluster, u in residuals.items()}, count - 1)


def combination(weighted: Iterable[tuple[float, Estimate]]) -> Estimate:
    """sum of weight x estimate, the weights taken as known. ValueError without any term."""
    terms = [estimate * weight for weight, estimate in weighted]
    if not terms:
        raise ValueError("there is no estimate to combine")
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def dose_response(by_dose: Mapping[float, Estimate]) -> Estimate:
    """Least-squares slope of an estimate in the dose, for each unit of it. ValueError with fewer than two doses.

    Only the responses' noise is in its interval; drafters of one dose also differ by their training seed.
    """
    if len(by_dose) < 2:
        raise ValueError(f"a slope needs at least two doses, got {sorted(by_dose)}")
    mean = sum(by_dose) / len(by_dose)
    spread = sum((dose - mean) ** 2 for dose in by_dose)
    return combination(((dose - mean) / spread, estimate) for dose, estimate in by_dose.items())


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Two one-sided tests: ``p`` is the larger, and the 1 - 2 alpha interval lies inside the margin iff p < alpha."""

    margin: float
    alpha: float
    p: float
    interval: Interval

    @property
    def equivalent(self) -> bool:
        return self.p < self.alpha


def equivalence(estimate: Estimate, margin: float, alpha: float = 0.05) -> Equivalence | None:
    """Whether the value is shown to lie within +- ``margin`` (TOST; Schuirmann 1987), clusters as the unit.

    Not finding a difference is no finding of equality; this is. None with a single cluster or no spread; ValueError
    unless the margin is a positive number, stated before the data were seen.
    """
    from scipy.stats import t

    if not 0 < margin < math.inf:
        raise ValueError(f"state the margin of equivalence as a positive number of tokens, got {margin}")
    error, inside = estimate.standard_error, estimate.interval(1 - 2 * alpha)
    if not error or inside is None:
        return None
    p = max(float(t.sf((margin + sign * estimate.value) / error, estimate.df)) for sign in (1, -1))
    return Equivalence(margin, alpha, p, inside)
