r"""The i.i.d. acceptance rate that reproduces a mean accepted length, over drafts of any lengths.

The note's token acceptance rate is tau / (gamma + 1) when every step proposes gamma, not the a of tau(a, gamma): for
a = 0.8 and gamma = 7 it is 0.52. A planner wants the a that solves

    sum_i tau(a, g_i) = sum_i L_i          (step i proposed g_i and committed L_i)

which rises in a, so that the root is unique. Steps that a stop token or the cap cut short are left out: how far they
would have gone is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq

from companion.accepted_length import tau
from companion.phase.estimate import Estimate, from_residuals
from companion.phase.ledger import Step


def solved_rate(weighted: Sequence[tuple[Step, float]]) -> Estimate | None:
    """The a in [0, 1] with its uncertainty by cluster (an M-estimate's sandwich).

    None where no whole step proposed anything: a rate of drafts needs drafts.
    """
    used = [(step, weight) for step, weight in weighted if step.whole and step.proposed]
    if not used:
        return None
    by_depth: defaultdict[int, float] = defaultdict(float)
    for step, weight in used:
        by_depth[step.proposed] += weight
    depths, weights = np.array(list(by_depth), dtype=float), np.array(list(by_depth.values()))
    tokens = sum(weight * step.length for step, weight in used)

    def excess(a: float) -> float:
        return float((weights * tau(np.full_like(depths, a), depths)).sum()) - tokens

    if excess(0.0) >= 0.0:
        rate = 0.0
    elif excess(1.0) <= 0.0:
        rate = 1.0
    else:
        rate = float(brentq(excess, 0.0, 1.0, xtol=1e-14, rtol=8.9e-16))
    slope = sum(w * _slope(rate, int(g)) for g, w in by_depth.items())
    expected = {g: float(tau(rate, g)) for g in by_depth}
    residuals: defaultdict[str, float] = defaultdict(float)
    for step, weight in used:
        residuals[step.cluster] += weight * (step.length - expected[step.proposed]) / slope
    return from_residuals(rate, residuals)


def _slope(a: float, gamma: int) -> float:
    """d tau / d a = sum_k k a^(k-1); at least 1."""
    return float(sum(k * a ** (k - 1) for k in range(1, gamma + 1)))
