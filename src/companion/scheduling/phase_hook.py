r"""The note's scheduler hook: how deep to draft, from the phase and from the newest known row (its section 6).

    depth = argmax over g in [min, max] of  E[tokens | g] / time(g),   the smallest on ties.

**What is planned with.** Measured rates of the phase, if there are any, else a ceiling from the entropy of the newest
known row; a ceiling below the measured rate caps it. With neither: the operator's baseline, untouched. Uncalibrated the
hook only shrinks: min(depth, baseline). Every decision says what it rests on (`Basis`) and carries no number that
nothing justifies.

**The ceiling** (`companion.scheduling.row_ceiling`) binds deterministic proposals only, so a hook for a drafter that
samples never looks at entropy. It speaks of the row that the anchor was drawn from, which is not the row that judges
the first drafted slot: a forecast. A wrong one costs speed and never correctness, since a depth is fixed before
anything is drafted and from the past alone; the output's law is the target's whatever the depth. At temperature 0 it
says nothing, and what a view tells of the served row is used first, of the model's own distribution second.

**Planners.** ``iid``: tau(a, g). ``certified``: 1 + g a, all that is proven where a bounds the first slot. ``curve``:
the measured position curve itself, 1 + S_1 + .. + S_g with S_k = c_1 .. c_k, no deeper than it is known; a ceiling
below c_1 replaces c_1 and leaves the later c_k.

**Measured rates** come with the run that they were measured in and are refused elsewhere: other models are refused
when the hook is built, another sampling when a request with it is planned for. The conservative end of their interval
plans, which is the one that changes less: the hook drafts deeper than the baseline only as far as the low end demands,
shallower only as far as the high end does, and stays at the baseline while the two disagree about it. Rates of few
responses have wide intervals and change nothing.

**Depth 0** switches speculation off, if ``min_depth`` is 0. Nothing is learnt on the way, so there is nothing that the
hook could unlearn: rates were measured offline, and the phase alone, which is tracked on every committed token, decides
when drafting goes on. What the drafter has not read by then it reads with its first draft.

**Time** is the note's line with its placeholders (`companion.planning.CostModel`), or a measured capacity, in which a
depth-0 step pays for no drafting; only the latter knows where plain decoding is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from companion.phase.rates import MeasuredRates, PhaseRate
from companion.planning import F64, CostModel, Cycle, best_index, expected_tokens
from companion.protocols import Frontier, Outcome, Phase, RequestView, Sampling
from companion.resampling import Interval
from companion.scheduling.capacity import Capacity, CapacityTable, mean_context
from companion.scheduling.fixed import admit_all
from companion.scheduling.row_ceiling import model_ceiling, served_ceiling
from companion.scheduling.step_cycle import StepCycle

Planner = Literal["iid", "certified", "curve"]
Stage = Phase | Literal["prefill", "complete"]  # only think and output decode
Basis = Literal["not_decoding", "baseline", "entropy_ceiling", "measured_prior", "measured_prior_capped_by_entropy"]
End = Literal["low", "high", "value"]
ENDS: tuple[End, ...] = ("low", "high", "value")  # in the order in which they are asked
REMEMBERED = 1 << 14  # decisions; they repeat from round to round


@dataclass(frozen=True, slots=True)
class Decision:
    """A depth and what it rests on; ``rate`` and ``tau`` are None where nothing justifies a number.

    ``rate`` is the acceptance planned with, of the first slot where a curve plans. ``tau`` is the expected number of
    tokens of such a round, or the most that may come where the planner is ``certified``.
    """

    depth: int
    basis: Basis
    rate: float | None = None
    tau: float | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """What a hook decides for, by the names and revisions that measured rates are kept under."""

    target: str
    drafter: str
    target_revision: str | None = None
    drafter_revision: str | None = None


def survivals(curve: Sequence[Interval], end: End) -> F64:  # [g] of c_k -> [g]
    """An end of the interval of every prefix survival S_k = c_1 .. c_k, from those of the conditional acceptances.

    ln S_k is a sum of terms that rest on different slots, so their errors add in squares: with e_i the end of c_i,
    ln S_k -+ sqrt(sum of (ln e_i - ln c_i)^2). The product of the ends would take every position to be at its worst at
    once. 0 from an end of 0 on; an end stands for a c_i of 0, which has no logarithm.
    """
    log, square, found = 0.0, 0.0, np.zeros(len(curve))
    for k, c in enumerate(curve):
        edge = getattr(c, end)
        if edge == 0.0:
            break
        centre = c.value or edge
        log += math.log(centre)
        square += math.log(edge / centre) ** 2
        found[k] = min(1.0, math.exp(log + (square**0.5 if end == "high" else -(square**0.5))))
    return np.minimum.accumulate(found)


class PhaseHook:
    """``deterministic`` is the drafter's own word (`Drafter.deterministic`), ``costs`` is None for the note's.

    ValueError for bounds that are none, for rates without ``serving`` or of other models, and for a curve that is not
    there.
    """

    def __init__(
        self,
        baseline: int = 7,
        *,
        deterministic: bool,
        min_depth: int = 1,
        max_depth: int = 7,
        vocab_size: int = 151_936,
        use_entropy_ceiling: bool = True,
        planner: Planner = "iid",
        costs: CostModel | Capacity | CapacityTable | None = None,
        rates: MeasuredRates | None = None,
        serving: Serving | None = None,
    ) -> None:
        if not 0 <= min_depth <= baseline <= max_depth:
            raise ValueError(f"expected 0 <= min <= baseline <= max, got {min_depth}, {baseline} and {max_depth}")
        if vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2, got {vocab_size}")
        if planner not in get_args(Planner):
            raise ValueError(f"unknown planner {planner!r}; choose one of {', '.join(get_args(Planner))}")
        if rates is not None and serving is None:
            raise ValueError("measured rates are used only where they were measured: say what is served (serving=)")
        if planner == "curve":
            for phase in get_args(Phase):
                curve = None if rates is None else rates.of(phase).curve
                if not curve or len(curve) < max(1, min_depth):
                    raise ValueError(
                        f"the curve planner needs a measured position curve of at least {max(1, min_depth)} "
                        f"positions, and there is none for the phase {phase!r}: measure one, or plan with iid"
                    )
        self.baseline, self.min_depth, self.max_depth = int(baseline), int(min_depth), int(max_depth)
        self.vocab_size, self.planner, self.costs = vocab_size, planner, costs or CostModel()
        self.ceiling_binds = deterministic and use_entropy_ceiling
        self.rates, self.serving = rates, serving
        if rates is not None:
            self._check(rates.origin.sampling)
        self.name = f"phase-hook-{planner}-{'uncalibrated' if rates is None else rates.definition}"
        self._samplings: set[Sampling] = set()  # for which the rates were checked
        self._known: dict[tuple[Phase, float | None, int, float], Decision] = {}

    def _check(self, sampling: Sampling) -> None:
        assert self.rates is not None
        assert self.serving is not None
        self.rates.check(
            target=self.serving.target,
            drafter=self.serving.drafter,
            target_revision=self.serving.target_revision,
            drafter_revision=self.serving.drafter_revision,
            sampling=sampling,
            depth=self.max_depth,
        )

    def ceiling(self, view: RequestView) -> float | None:
        """What the newest known row says of a deterministic drafter's acceptance; None where nothing is said."""
        if not self.ceiling_binds:
            return None
        if view.last_served_entropy is not None:
            return served_ceiling(view.last_served_entropy, self.vocab_size, view.sampling)
        if view.last_entropy is None:
            return None
        return model_ceiling(view.last_entropy, self.vocab_size, view.sampling)

    def decide(self, stage: Stage, ceiling: float | None = None, cycle: Cycle | None = None) -> Decision:
        """The rule, for a request in ``stage`` whose acceptance has this ``ceiling`` (None: no signal).

        ``cycle`` is what rounds take; None: the costs that the hook was given, for one request.
        """
        if stage not in get_args(Phase):
            return Decision(self.baseline, "not_decoding")
        measured = None if self.rates is None else self.rates.of(stage)  # type: ignore[arg-type]
        cycle = cycle or self._cycle(1, 0)
        if measured is not None:
            return self._calibrated(measured, ceiling, cycle)
        if ceiling is None:
            return Decision(self.baseline, "baseline")
        tokens = self._of_rate(ceiling)
        depth = min(self._best(tokens, cycle), self.baseline)
        return Decision(depth, "entropy_ceiling", ceiling, float(tokens[depth - self.min_depth]))

    def _calibrated(self, measured: PhaseRate, ceiling: float | None, cycle: Cycle) -> Decision:
        """From the end of the interval that changes the baseline less."""
        for end in ENDS:
            first, tokens = self._expected(measured, end, ceiling)
            baseline = min(self.baseline, self.min_depth + len(tokens) - 1)  # a curve may not be known that far
            depth = baseline if end == "value" else self._best(tokens, cycle)
            if end == "value" or (depth >= baseline if end == "low" else depth <= baseline):
                break
        capped = ceiling is not None and ceiling < first
        basis: Basis = "measured_prior_capped_by_entropy" if capped else "measured_prior"
        rate = ceiling if ceiling is not None and capped else first
        return Decision(depth, basis, rate, float(tokens[depth - self.min_depth]))

    def _best(self, tokens: F64, cycle: Cycle) -> int:
        depths = self.min_depth + np.arange(len(tokens))
        return int(depths[best_index(tokens / cycle.cycle_us(depths))])

    def _of_rate(self, rate: float) -> F64:
        """Tokens of a round at every depth from ``min_depth`` on, where one number plans."""
        assert self.planner != "curve"
        return expected_tokens(rate, np.arange(self.min_depth, self.max_depth + 1), self.planner)

    def _expected(self, measured: PhaseRate, end: End, ceiling: float | None) -> tuple[float, F64]:
        """The measured acceptance that a ceiling is held against, and the tokens of a round with the lower of both."""
        most = 1.0 if ceiling is None else ceiling
        if self.planner != "curve":
            first = float(getattr(measured.rate, end))
            return first, self._of_rate(min(first, most))
        assert measured.curve is not None
        survival = survivals(measured.curve[: self.max_depth], end)
        first = float(survival[0])
        scale = most / first if first > most else 1.0
        return first, np.append(1.0, 1.0 + scale * np.cumsum(survival))[self.min_depth :]

    def _cycle(self, requests: int, context: float) -> Cycle:
        return self.costs if isinstance(self.costs, CostModel) else StepCycle(self.costs.at(context), requests)

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        if not requests:
            return []
        flat = isinstance(self.costs, CostModel)
        place = (1, 0.0) if flat else (len(requests), mean_context(requests))
        return [self._recalled(view, place).depth for view in requests]

    def _recalled(self, view: RequestView, place: tuple[int, float]) -> Decision:
        """The decision, from what was decided alike before where that is known."""
        if self.rates is not None and view.sampling not in self._samplings:
            self._check(view.sampling)
            self._samplings.add(view.sampling)
        key = view.phase, self.ceiling(view), *place
        if key not in self._known:
            if len(self._known) == REMEMBERED:
                self._known.clear()
            self._known[key] = self.decide(view.phase, key[1], self._cycle(*place))
        return self._known[key]

    def admit(self, frontier: Frontier) -> None:
        admit_all(frontier)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing is learnt: rates are measured offline."""
