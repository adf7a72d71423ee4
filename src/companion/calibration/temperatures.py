"""One temperature a position: c_k = sigmoid(logit_k / T_k), kept as a small file that knows whose logits it is for.

T > 1 pulls a confidence towards one half, T < 1 away from it. No T moves it across: a positive logit stays above one
half. Order is kept within a position, where one T divides every logit; cumulative products may change places.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from companion.calibration.forecasts import F64, probabilities
from companion.provenance import write_json

FORMAT = "companion.temperatures/1"


@dataclass(frozen=True, slots=True)
class Temperatures:
    """T_1 .. T_K, how they were fitted, the drafter whose confidences they are for (as `describe` gives it), and on
    what. ValueError for a temperature that is not a positive number."""

    method: str
    values: tuple[float, ...]
    drafter: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.values or not all(np.isfinite(t) and t > 0 for t in self.values):
            raise ValueError(f"temperatures must be positive numbers, at least one; got {list(self.values)}")

    @classmethod
    def ones(cls, positions: int) -> Temperatures:
        """Temperatures that change nothing."""
        return cls("none", (1.0,) * positions)

    @property
    def positions(self) -> int:
        return len(self.values)

    def of_logits(self, logits: ArrayLike) -> F64:  # [..., k] -> [..., k]
        """Calibrated confidences of the head's logits, k <= K of them a block; ValueError for more, and for NaN."""
        x = np.asarray(logits, dtype=np.float64)
        if np.isnan(x).any():
            raise ValueError(f"{np.isnan(x).sum()} confidence logits are NaN; look where they arise")
        return np.asarray(expit(x / self._first(x)))

    def apply(self, confidence: ArrayLike) -> F64:  # [..., k] -> [..., k]
        """Calibrated confidences of uncalibrated ones, k <= K of them a block, exactly the same where T = 1.

        A confidence of exactly 0 or 1 has no finite logit and stays what it is: it is either true or was rounded there,
        and no temperature can tell. A bf16 sigmoid is 1 from logit 6.25 on: prefer `of_logits`. ValueError for what is
        no probability, and for more than K.
        """
        c = probabilities(confidence)
        temperatures = self._first(c)
        return np.where(temperatures == 1, c, expit(logit(c) / temperatures))

    def one(self, slot: int, confidence: float) -> float:
        """`apply` to the confidence of one slot, counted from 1: quick, for schedulers that ask slot by slot.

        ValueError for a slot that has no temperature.
        """
        if not 1 <= slot <= len(self.values):
            raise ValueError(f"slot {slot} has none of these {self.positions} temperatures; fit them at the full depth")
        t = self.values[slot - 1]
        if t == 1 or not 0.0 < confidence < 1.0:  # what is no probability is left for the scheduler to refuse
            return confidence
        return 1.0 / (1.0 + math.exp(math.log((1.0 - confidence) / confidence) / t))

    def _first(self, x: F64) -> F64:
        """The temperatures of the positions that ``x`` has: drafts may be shorter than the deepest."""
        if x.ndim == 0 or x.shape[-1] > self.positions:
            found = "a single number" if x.ndim == 0 else f"{x.shape[-1]} positions"
            raise ValueError(f"got {found} for temperatures of {self.positions} positions; fit them at the full depth")
        return np.array(self.values[: x.shape[-1]])

    def save(self, path: Path) -> None:
        """Write the JSON file whole or not at all."""
        record = {"method": self.method, "values": list(self.values), "drafter": self.drafter}
        write_json(path, {"format": FORMAT, **record, "provenance": dict(self.provenance)})

    @classmethod
    def load(cls, path: Path, drafter: Mapping[str, Any] | None = None) -> Temperatures:
        """Read a file; ValueError when it is none, or not for ``drafter`` (compared by the hash of its weights)."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ValueError("another format")
            values = tuple(float(t) for t in record["values"])
            found = cls(record["method"], values, record["drafter"], record["provenance"])
        except OSError as error:
            raise ValueError(f"cannot read the temperatures in {path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a file of temperatures ({error}); fit them again") from error
        if drafter is not None:
            found.check_drafter(drafter)
        return found

    def check_drafter(self, drafter: Mapping[str, Any]) -> None:
        """ValueError unless these were fitted to this drafter's confidences."""
        own = self.drafter
        if own is None or own["weights_sha256"] != drafter["weights_sha256"]:
            name = "an unnamed drafter" if own is None else f"drafter {own['name']}"
            raise ValueError(
                f"these temperatures were fitted to {name}, not to the weights of {drafter['name']}; fit them to those"
            )
