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
when the hook is built, another sampling when a request with it is planned for. Planning takes the low end of their
interval, of a curve that of each S_k (`survival_low`). Drafts that are not worth it are what the hook is there to
avoid, so it drafts where even the low end pays; rates of few responses have wide intervals and plan too shallow.

**Depth 0** switches speculation off, if ``min_depth`` is 0. Nothing is learnt on the way, so there is nothing that the
hook could unlearn: rates were measured offline, and the phase alone, which is tracked on every committed token, decides
when drafting goes on. What the drafter has not read by then it reads with its first draft.

**Time** is the note's line with its placeholders (`companion.planning.CostModel`), or a measured capacity, in which a
depth-0 step pays for no drafting; only the latter knows where plain decoding is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from companion.accepted_length import survival_from_conditional
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


def survival_low(curve: Sequence[Interval]) -> F64:  # [g] of c_k -> [g]
    """The low end of every prefix survival S_k = c_1 .. c_k, from the low ends of the conditional acceptances.

    ln S_k is a sum of terms that rest on different slots, so their errors add in squares:
    ln S_k - sqrt(sum of (ln c_i - ln low_i)^2). The product of the low ends would take every position to be at its
    worst at once. 0 from a c_k on whose low end is 0.
    """
    value, low = (np.array([getattr(c, end) for c in curve], dtype=np.float64) for end in ("value", "low"))
    known = np.cumprod(low > 0.0) > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        drop = np.sqrt(np.cumsum(np.where(known, np.log(value / low), 0.0) ** 2))
    return np.minimum.accumulate(np.where(known, survival_from_conditional(value) * np.exp(-drop), 0.0))


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
        if measured is None and ceiling is None:
            return Decision(self.baseline, "baseline")
        rate, tokens = self._expected(measured, ceiling)
        best = int(best_index(tokens / (cycle or self._cycle(1, 0)).cycle_us(self.min_depth + np.arange(len(tokens)))))
        if measured is None:
            best = min(best, self.baseline - self.min_depth)
        capped = measured is not None and ceiling is not None and ceiling < self._first(measured)
        basis: Basis = (
            "entropy_ceiling"
            if measured is None
            else "measured_prior_capped_by_entropy"
            if capped
            else "measured_prior"
        )
        return Decision(self.min_depth + best, basis, rate, float(tokens[best]))

    def _first(self, measured: PhaseRate) -> float:
        """The measured acceptance that a ceiling is held against."""
        one = measured.rate if self.planner != "curve" else measured.curve[0]  # type: ignore[index]
        return one.low

    def _expected(self, measured: PhaseRate | None, ceiling: float | None) -> tuple[float, F64]:
        """The acceptance planned with, and the tokens of a round at every depth from ``min_depth`` on."""
        bounds = [rate for rate in (ceiling, None if measured is None else self._first(measured)) if rate is not None]
        rate = min(bounds)
        if self.planner != "curve":
            return rate, expected_tokens(rate, np.arange(self.min_depth, self.max_depth + 1), self.planner)
        assert measured is not None
        assert measured.curve is not None
        survival = survival_low(measured.curve[: self.max_depth])
        scale = rate / survival[0] if survival[0] > rate else 1.0
        return rate, np.append(1.0, 1.0 + scale * np.cumsum(survival))[self.min_depth :]

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
