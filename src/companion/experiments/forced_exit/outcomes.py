"""What a rule would have done to the recorded responses, and how well: sums over prompts and their intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from companion.experiments.forced_exit.recording import Row
from companion.phase.exit_rules import Exit, ExitRule, replay
from companion.resampling import F64, Interval, prompt_weights
from companion.training.corpus import DOMAINS


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of every response under one rule, in the order of the rows."""

    right: F64  # [N] 0 or 1
    think: F64  # [N] tokens of the span, its end included
    total: F64  # [N] with those of the answer
    exits: list[Exit | None]

    def reasons(self, members: NDArray[np.bool_]) -> dict[str, int]:
        """How often each reason fired."""
        fired = [e.reason for e, own in zip(self.exits, members, strict=True) if own and e is not None]
        return dict(sorted(Counter(fired).items()))


class Table:
    """The rows of one split, and resamples of their prompts, each with all its seeds, inside their domains."""

    def __init__(self, rows: Sequence[Row], every: int, resamples: int, seed: int = 0) -> None:
        self.rows, self.every = list(rows), every
        self.samples = [row.samples(every) for row in self.rows]
        names = sorted({(DOMAINS.index(r.domain), r.index) for r in self.rows})
        place = {name: i for i, name in enumerate(names)}
        self.prompt = np.array([place[DOMAINS.index(r.domain), r.index] for r in self.rows])
        self.strata = np.array([domain for domain, _ in names])
        self.weights = prompt_weights(self.strata, resamples, np.random.default_rng(seed))  # [B, P]

    def members(self, domain: str) -> NDArray[np.bool_]:  # -> [N]
        """Responses of a domain, or of "all"."""
        return np.array([domain in ("all", r.domain) for r in self.rows])

    def scopes(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        for domain in ("all", *DOMAINS):
            if (members := self.members(domain)).any():
                yield domain, members

    def outcome(self, rule: ExitRule) -> Outcome:
        """Replay ``rule`` and look up the answers behind its exits."""
        exits, right, think, total = [], [], [], []
        for row, samples in zip(self.rows, self.samples, strict=True):
            # an exit where no answer was recorded is beyond the last place: the response ends as it did
            found = replay(rule, samples, row.last_choice) if row.exit_right else None
            place = None if found is None else found.think_tokens // self.every
            if found is not None and found.think_tokens % self.every:
                raise ValueError(
                    f"rule {rule.name!r} leaves a span after {found.think_tokens} tokens, and answers were recorded "
                    f"every {self.every}: choose lengths and caps that are multiples of it"
                )
            if found is None or place is None or place >= len(row.exit_right):
                used, answer, good, found = row.think_tokens + row.closed, row.answer_tokens, row.right, None
            else:
                used, answer, good = found.used, row.exit_tokens[place], row.exit_right[place]
            exits.append(found)
            right.append(good)
            think.append(used)
            total.append(used + answer)
        numbers = np.array([right, think, total], dtype=float)
        return Outcome(numbers[0], numbers[1], numbers[2], exits)

    def mean(self, values: F64, members: NDArray[np.bool_]) -> tuple[float, F64]:  # [N] -> value, [B]
        """Over the members' responses, and over those of every resample."""
        sums, counts = self._by_prompt(values * members), self._by_prompt(members.astype(float))
        return float(values[members].mean()), (self.weights @ sums) / (self.weights @ counts)

    def interval(self, values: F64, members: NDArray[np.bool_]) -> Interval:
        return Interval.of(*self.mean(values, members))

    def _by_prompt(self, values: F64) -> F64:  # [N] -> [P]
        return np.bincount(self.prompt, values, minlength=len(self.strata)).astype(float)


class Foil:
    """Accuracy of exits at a fixed length as a curve over mean think length, on the same responses and resamples."""

    def __init__(self, table: Table, outcomes: Sequence[Outcome]) -> None:
        self.table, self.outcomes = table, outcomes

    @cached_property
    def _curves(self) -> dict[str, tuple[F64, F64]]:
        """Of each scope, mean think tokens and accuracy [1 + B, lengths]: of the data, then of the resamples."""
        found = {}
        for domain, members in self.table.scopes():
            columns = []
            for which in ("think", "right"):
                made = [self.table.mean(getattr(o, which), members) for o in self.outcomes]
                columns.append(np.array([[value, *draws] for value, draws in made]).T)
            found[domain] = (columns[0], columns[1])
        return found

    def gain(self, outcome: Outcome, domain: str) -> Interval:
        """Accuracy of ``outcome`` minus that of the curve at its own mean length, between two lengths by a mixture."""
        members = self.table.members(domain)
        lengths, rights = self._curves[domain]
        (think, thinks), (right, draws) = (self.table.mean(v, members) for v in (outcome.think, outcome.right))
        at = [np.interp(x, own, y) for x, own, y in zip((think, *thinks), lengths, rights, strict=True)]
        return Interval.of(right - float(at[0]), draws - np.array(at[1:]))


def settled_from(row: Row) -> int | None:
    """The first recorded place from which every answer is right, the response's own included; None if it is wrong."""
    if not row.right or not row.exit_right:
        return None
    place = len(row.exit_right)
    while place and row.exit_right[place - 1]:
        place -= 1
    return place
