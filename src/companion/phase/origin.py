"""Where a trace comes from, as a type: a run that is described in full, or a fixture that measures nothing.

Everything downstream is generic in its origin (`Ledger[O]`, `Report[O]`). A claim and a planner's rates take
`Measured` only, so that no synthetic number gets there: the type checker refuses the line, and the constructor refuses
the value.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from typing import Any, TypeVar, final

from companion.protocols import Sampling

_SHA256 = re.compile(r"[0-9a-f]{64}")


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """The run that a number was measured in. A blank, or a field that is not what it should be, is a ValueError.

    A revision is the hub's commit or a hash of the weights; ``prompt_set`` is `companion.provenance.prompt_hash` of the
    prompts; ``depth`` the tokens that a full draft holds; ``untrimmed`` that whatever was drafted was verified, so that
    acceptance was seen to its end.
    """

    harness: str
    target: str
    target_revision: str
    drafter: str
    drafter_revision: str
    thinking: bool
    sampling: Sampling
    seeds: tuple[int, ...]
    prompt_set: str
    hardware: str
    recorded_on: date
    depth: int
    untrimmed: bool

    def __post_init__(self) -> None:
        for name in ("harness", "target", "target_revision", "drafter", "drafter_revision", "hardware"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} must name what was measured, got {value!r}; a blank describes no run")
        for name in ("thinking", "untrimmed"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not isinstance(self.sampling, Sampling):
            raise ValueError(f"sampling must be a Sampling, got {self.sampling!r}")
        if not self.seeds or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in self.seeds):
            raise ValueError(f"seeds must be the whole numbers that the run was keyed by, got {self.seeds!r}")
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if not isinstance(self.prompt_set, str) or not _SHA256.fullmatch(self.prompt_set):
            raise ValueError(
                f"prompt_set must be the sha256 of the prompts (64 hexadecimal digits, as prompt_hash of "
                f"companion.provenance gives it), got {self.prompt_set!r}"
            )
        if type(self.recorded_on) is not date:
            raise ValueError(f"recorded_on must be a date such as 2026-08-07, got {self.recorded_on!r}")
        if not isinstance(self.depth, int) or isinstance(self.depth, bool) or self.depth < 1:
            raise ValueError(f"depth must be the drafted tokens of a round, at least 1, got {self.depth!r}")

    @property
    def banner(self) -> str:
        mode = "ON" if self.thinking else "OFF"
        return f"MEASURED - {self.harness}, {self.drafter} vs {self.target}, thinking-mode {mode}, {self.recorded_on}"

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Measured:
        """From the record that `companion.provenance.collect` makes, with ``depth`` and ``untrimmed`` among its
        settings. ValueError names what the record lacks."""
        try:
            harness, settings, system = record["harness"], record["settings"], record["system"]
            return cls(
                harness=" ".join(filter(None, (harness["name"], harness["version"], harness.get("commit")))),
                target=record["target"]["name"],
                target_revision=revision(record["target"]),
                drafter=record["drafter"]["name"],
                drafter_revision=revision(record["drafter"]),
                thinking=record["thinking"],
                sampling=Sampling(**record["sampling"]),
                seeds=tuple(record["seeds"]),
                prompt_set=record["prompt_set"],
                hardware=system.get("gpu") or system["processor"],
                recorded_on=date.fromisoformat(record["recorded_at"][:10]),
                depth=settings["depth"],
                untrimmed=settings["untrimmed"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"the record does not describe a measured run ({type(error).__name__}: {error}); it needs harness, "
                "recorded_at, target, drafter, thinking, sampling, seeds, prompt_set, system, and depth and untrimmed "
                "in its settings"
            ) from error


@final
@dataclass(frozen=True, slots=True)
class Synthetic:
    """A trace that somebody made up, by the name of what made it."""

    fixture: str

    def __post_init__(self) -> None:
        if not isinstance(self.fixture, str) or not self.fixture.strip():
            raise ValueError(f"fixture must name what made the trace, got {self.fixture!r}")

    @property
    def banner(self) -> str:
        return f"SYNTHETIC TRACE ({self.fixture}) - NOT A MEASUREMENT"


O_co = TypeVar("O_co", bound=Measured | Synthetic, covariant=True)


def differences(one: Measured | Synthetic, other: Measured | Synthetic) -> list[str]:
    """Names of the fields in which two origins differ; "origin" when one is measured and one is not."""
    if type(one) is not type(other):
        return ["origin"]
    return [f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)]


def require_measured(origin: object, purpose: str) -> Measured:
    """The origin, if it is a measured run. TypeError otherwise, however plausible the numbers are."""
    if type(origin) is not Measured:
        described = origin.banner if isinstance(origin, Synthetic) else repr(origin)
        raise TypeError(f"only a measured run can become {purpose}, and this is none: {described}")
    return origin


def revision(model: Mapping[str, Any]) -> str:
    """Of a model that `describe` of a model folder describes: the hub's revision, or one hash over those of its weight
    files. KeyError for a description without either, ValueError for weights that were drawn at random."""
    if model.get("random_weights"):
        raise ValueError(f"{model.get('name')} measures nothing but time and memory: load the model's own weights")
    if model.get("revision"):
        return str(model["revision"])
    hashes = sorted(model["weights_sha256"].items())
    return hashlib.sha256(repr(hashes).encode()).hexdigest()
