r"""What the entropy of one row says of its largest *served* probability, and so of a deterministic drafter (Cor. 5).

c* = p(x) <= max p speaks of the distribution p that verification uses, after temperature and filters. Which entropy is
at hand decides how much it says.

**The served row's own entropy H_s.** p has at most K tokens, K = k under top-k and V otherwise (of top-p only this is
known beforehand), so max p <= p*(H_s, K). At H_s = 2 that is 0.554 for K = 20 where V = 151,936 gives 0.866.

**The model's entropy H_1**, at temperature 1 and unfiltered, for where H_s was not kept. Let M be its largest
probability, M <= m = p*(H_1, V), and let the others be t = (1 - m)/(V - 1) each: the spike over an even tail.

* temperature T <= 1: with a = 1/T >= 1, sum of the others' p^a is least where they are even, so
  M_T = M^a / sum p^a <= m^a / (m^a + (V - 1) t^a). Under top-k the K - 1 likeliest others have at least their average,
  (K - 1)/(V - 1) of that sum, and V - 1 becomes K - 1. Attained by the spike.
* T > 1 flattens: over the same kept tokens the mode never rises with T, so the bound of T = 1 stays one.
* top-p keeps a mass of at least ``top_p``: divide by it.
* min-p drops at most K - 1 tokens, each below min_p M: divide by max(M, 1 - (K - 1) min_p M).
* T = 0: one-hot, nothing is said.

So a filter makes this ceiling looser and not tighter: it may have cut off the very tail that the entropy came from.
At T = 0.6 with top-k 20, which Qwen3 recommends, and V = 151,936 it is above 0.999 for every H_1 up to 11.8 nats.

Both are statements on the row whose entropy it is. When a draft is planned the newest such row is the one that the
anchor was drawn from, one step before the first drafted slot; for that slot the ceiling is a forecast and no proof.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from companion.ceiling import entropy_ceiling
from companion.protocols import Sampling

PER_NAT = 256  # entropies are rounded down to so many steps a nat, which leaves a ceiling one


def kept_tokens(vocab_size: int, sampling: Sampling) -> int:
    """K: the most tokens that may have probability in a served row."""
    return 1 if sampling.greedy else min(sampling.top_k or vocab_size, vocab_size)


def served_ceiling(entropy: float, vocab_size: int, sampling: Sampling) -> float | None:
    """The largest served probability at most, from the served row's own entropy. None: nothing is said, since the row
    is one-hot at temperature 0, or the entropy is no number."""
    return _at(entropy, vocab_size, sampling, True)


def model_ceiling(entropy: float, vocab_size: int, sampling: Sampling) -> float | None:
    """The largest served probability at most, from the row's entropy at temperature 1, unfiltered. None as above."""
    return _at(entropy, vocab_size, sampling, False)


def _at(entropy: float, vocab_size: int, sampling: Sampling, served: bool) -> float | None:
    if sampling.greedy or not math.isfinite(entropy):
        return None
    known = _table(vocab_size, sampling, served)
    return known[min(max(0, int(entropy * PER_NAT)), len(known) - 1)]


@lru_cache(maxsize=64)
def _table(vocab_size: int, sampling: Sampling, served: bool) -> tuple[float, ...]:
    """The ceiling at every step of entropy: solving for one takes a tenth of a millisecond, which every round would."""
    if vocab_size < 2:
        raise ValueError(f"vocab_size must be at least 2, got {vocab_size}")
    kept = kept_tokens(vocab_size, sampling)
    top = kept if served else vocab_size
    entropies = np.arange(int(math.log(top) * PER_NAT) + 1) / PER_NAT if top > 1 else np.zeros(1)
    mode = np.asarray(entropy_ceiling(entropies, top), dtype=np.float64)
    return tuple((mode if served else _serve_spike(mode, vocab_size, kept, sampling)).tolist())


def _serve_spike(mode: NDArray[np.float64], vocab_size: int, kept: int, sampling: Sampling) -> NDArray[np.float64]:
    """``mode`` [n] over an even tail of ``vocab_size - 1`` tokens, after temperature, top-k, top-p and min-p."""
    odds = ((1.0 - mode) / (vocab_size - 1) / mode) ** max(1.0, 1.0 / sampling.temperature)
    found = 1.0 / (1.0 + (kept - 1) * odds)
    found = np.minimum(found / sampling.top_p, 1.0)
    return np.asarray(found / np.maximum(found, 1.0 - (kept - 1) * sampling.min_p * found))
