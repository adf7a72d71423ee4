"""The ledger: verification steps of one run, their origin, and the policy for steps that straddle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, final

from companion.phase.origin import Measured, O_co, Synthetic, differences
from companion.phase.straddle import POLICIES, StraddlePolicy
from companion.protocols import Phase

O = TypeVar("O", bound=Measured | Synthetic)  # noqa: E741  # an origin; the letter is the type variable's usual name


@dataclass(frozen=True, slots=True)
class Step:
    """One verification step as committed: nothing after a stop token, nothing past the cap.

    The first token after the prefill belongs to no step. ``cluster`` names what makes steps depend on each other: the
    prompt where it has an id, otherwise the response.
    """

    cluster: str
    phases: tuple[Phase, ...]  # of each committed token
    proposed: int  # drafted tokens that were verified
    accepted: int  # committed drafts
    position: int = 0  # of the first committed token, counted from the prompt's first
    domain: str | None = None

    def __post_init__(self) -> None:
        if not self.phases or not 0 <= self.accepted <= self.proposed or self.accepted < len(self.phases) - 1:
            raise ValueError(
                f"a step commits its accepted drafts and at most one token more, and at least one in all; got "
                f"{len(self.phases)} committed, {self.accepted} accepted of {self.proposed} proposed"
            )
        if self.accepted > len(self.phases):
            raise ValueError(f"{self.accepted} drafts accepted, but only {len(self.phases)} tokens committed")

    @property
    def length(self) -> int:
        """Accepted length: committed tokens, the target-made one included."""
        return len(self.phases)

    @property
    def whole(self) -> bool:
        """Ran to its end: the target's own token came last, and no stop token or cap cut it before."""
        return self.length == self.accepted + 1

    @property
    def judged(self) -> int:
        """Draft slots whose fate is known: the accepted ones, and the one that was turned down."""
        return self.accepted + (self.whole and self.accepted < self.proposed)


@final
@dataclass(frozen=True)
class Ledger(Generic[O_co]):
    """Steps with the run or fixture they come from; ``discarded`` counts steps outside decoding, which are not kept."""

    origin: O_co
    steps: tuple[Step, ...] = ()
    straddle: StraddlePolicy = "exclude"
    discarded: int = 0

    def __post_init__(self) -> None:
        if type(self.origin) not in (Measured, Synthetic):
            raise TypeError(f"a ledger's origin is Measured or Synthetic, got {self.origin!r}")
        if self.straddle not in POLICIES:
            raise ValueError(f"the straddle policy is one of {', '.join(POLICIES)}, not {self.straddle!r}")
        object.__setattr__(self, "steps", tuple(self.steps))

    def record(self, steps: Iterable[Step], discarded: int = 0) -> Ledger[O_co]:
        """A ledger with more steps of the same origin."""
        return replace(self, steps=(*self.steps, *steps), discarded=self.discarded + discarded)

    def domain(self, name: str) -> Ledger[O_co]:
        """The steps of one domain; discarded ones belong to none."""
        return replace(self, steps=tuple(s for s in self.steps if s.domain == name), discarded=0)

    @property
    def domains(self) -> list[str]:
        return sorted({step.domain for step in self.steps if step.domain is not None})


def merge(ledgers: Sequence[Ledger[O]]) -> Ledger[O]:
    """One ledger of all steps. ValueError unless all have the same origin and the same straddle policy."""
    if not ledgers:
        raise ValueError("there is no ledger to merge")
    first = ledgers[0]
    for other in ledgers[1:]:
        if names := differences(first.origin, other.origin):
            raise ValueError(f"ledgers of different runs cannot be merged; these differ in {', '.join(names)}")
        if other.straddle != first.straddle:
            raise ValueError(
                f"ledgers with different straddle policies cannot be merged: {first.straddle} and {other.straddle}"
            )
    return Ledger(
        first.origin,
        tuple(step for ledger in ledgers for step in ledger.steps),
        first.straddle,
        sum(ledger.discarded for ledger in ledgers),
    )
