"""Verification lengths of a simulated step: through the engine's Frontier, or faster where the answer is the same.

A `Frontier` reveals one slot at a time, which keeps a policy honest and makes large batches slow in Python. For the
policies of ours whose answer on whole arrays is known to be equal it is taken from there; the tests hold the two
against each other. Any other policy, and any calibration inside of one, goes through the Frontier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from companion.engine.frontier import DraftFrontier, verification_lengths
from companion.protocols import Draft, Policy, RequestView
from companion.scheduling.capacity import mean_context
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.goodput import Goodput
from companion.scheduling.lagged import LaggedTopK
from companion.scheduling.lagged_threshold import LaggedThreshold
from companion.scheduling.prefix import PrefixScheduler, prefix_lengths
from companion.scheduling.ranking import as_drafted, ranked, survival
from companion.scheduling.retrospective import confidence_table


def lengths_of(policy: Policy, views: Sequence[RequestView], drafts: Sequence[Draft]) -> list[int]:
    """What `verification_lengths` gives. ValueError for a policy that wants confidences of drafts without any."""
    if type(policy) in (FixedDepth, Goodput):
        return [len(draft) for draft in drafts]
    if type(policy) is PrefixScheduler and policy.calibrate is as_drafted:
        capacity = policy.capacity.at(mean_context(views))
        return prefix_lengths(_table(drafts), capacity).tolist()
    if type(policy) is LaggedTopK and policy.calibrate is as_drafted:
        rows, _ = ranked(survival(_table(drafts)))
        return np.bincount(rows[: policy.slots(DraftFrontier(views, drafts))], minlength=len(drafts)).tolist()
    if type(policy) is LaggedThreshold and policy.calibrate.calibrate is as_drafted:
        table, factors = _table(drafts), policy.calibrate.factors
        known = min(len(factors), table.shape[1])
        table[:, :known] = np.minimum(table[:, :known] * factors[:known], 1.0)
        over = (survival(table) >= policy.bar).sum(1).tolist()
        return [min(count, len(draft)) for count, draft in zip(over, drafts, strict=True)]
    return verification_lengths(policy, views, drafts)


def _table(drafts: Sequence[Draft]) -> np.ndarray:  # -> [R, deepest]
    return confidence_table(drafts, max(map(len, drafts)))
