"""The policies that are put under load, by name; -raw takes the drafter's confidences as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from companion.calibration import Temperatures, fit
from companion.experiments import calibration_blocks as blocks
from companion.protocols import Policy
from companion.scheduling.capacity import CapacityTable
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.goodput import Goodput
from companion.scheduling.lagged import LaggedTopK
from companion.scheduling.lagged_threshold import LaggedThreshold
from companion.scheduling.prefix import PrefixScheduler
from companion.scheduling.ranking import Calibrate, as_drafted
from companion.scheduling.threshold import Threshold

PLAIN, DEPLOYED, LIMITED = "plain", "lagged", "lagged-threshold"  # the deployed form as the paper has it, and ours
JUDGED = (DEPLOYED, LIMITED)  # against the best static depth
RAW = "-raw"
BAR = 0.5  # of all thresholds
STATIC = ("fixed-1", "fixed-2", "fixed-3", "fixed-4", "fixed-5", "fixed-6", "fixed-7")
ADAPTIVE = ("slot", "prefix-threshold", "rejection", "prefix", "prefix-raw", DEPLOYED, "lagged-raw", LIMITED, "goodput")
POLICIES = (PLAIN, *STATIC, *ADAPTIVE)
METHOD = "sts"


def make(name: str, capacity: CapacityTable, calibrate: Calibrate, max_depth: int) -> Policy:
    """A new policy. ValueError for a name that is none, or a depth that the drafter does not have."""
    calibrate = as_drafted if name.endswith(RAW) else calibrate
    kind = name.removesuffix(RAW)
    if kind == PLAIN:
        return FixedDepth(0)
    if kind.startswith("fixed-") and kind[6:].isdigit() and 1 <= int(kind[6:]) <= max_depth:
        return FixedDepth(int(kind[6:]))
    if kind == "slot":
        return Threshold(BAR, "slot", calibrate)
    if kind == "prefix-threshold":
        return Threshold(BAR, "prefix", calibrate)
    if kind == "rejection":
        return Threshold(BAR, "rejection", calibrate)
    if kind == "prefix":
        return PrefixScheduler(capacity, calibrate)
    if kind == DEPLOYED:
        return LaggedTopK(capacity, calibrate)
    if kind == LIMITED:
        return LaggedThreshold(capacity, calibrate)
    if kind == "goodput":
        return Goodput(capacity, max_depth)
    raise ValueError(
        f"there is no policy {name!r} for a drafter of depth {max_depth}: choose of "
        f"{', '.join((PLAIN, *(f'fixed-{d}' for d in range(1, max_depth + 1)), *ADAPTIVE))}"
    )


def static_depth(policy: str) -> int | None:
    """The depth of a policy that always verifies the same, plain decoding included."""
    return 0 if policy == PLAIN else int(policy[6:]) if policy.startswith("fixed-") else None


def fitted(folder: Path, drafter: Mapping[str, Any], sampling: str, thinking: bool) -> Temperatures:
    """Temperatures of the paper's method from stored blocks of this drafter: at that sampling, thinking off alone, or
    everything of responses with thinking on. ValueError where there are none, or they are another drafter's."""
    found, known = blocks.load(folder)
    if known[0]["drafter"]["weights_sha256"] != drafter["weights_sha256"]:
        raise ValueError(
            f"the blocks in {folder} are of drafter {known[0]['drafter']['name']}, not of the weights of "
            f"{drafter['name']}; record its own, or leave the calibration out"
        )
    if sampling not in found:
        raise ValueError(f"the blocks in {folder} are of the samplings {', '.join(found)}, not of {sampling}")
    judged = found[sampling]
    phases = [blocks.PHASES.index(p) for p in (("span", "after") if thinking else ("off",))]
    rows = judged.where(np.isin(judged.phase, phases))
    return fit(METHOD, rows.logits, rows.accepted, rows.judged, drafter=drafter)
