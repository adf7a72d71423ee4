"""H1 by the note's rules: every recording and domain by itself, its gap, its verdict, and where it can, its claim.

The primary contrast is within responses: steps inside the span against steps behind it, thinking on. Beside it stand
the same prompts with thinking off, and both sides' steps at matched positions of the sequence. All intervals but the
note's own are over prompts, since steps of one response, and responses to one prompt, depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from companion.experiments.phase_gap.design import RESPONSES, STEPS
from companion.phase.claim import Claim
from companion.phase.estimate import Estimate, equivalence
from companion.phase.ledger import Ledger, Step
from companion.phase.origin import Measured
from companion.phase.positions import matched_positions
from companion.phase.report import Arm, Report, between_domain_gap
from companion.phase.sources import steps_of_rounds
from companion.phase.straddle import StraddlePolicy
from companion.phase.verdict import INCONCLUSIVE, Verdict
from companion.rounds import Rounds
from companion.training.corpus import Mode

WIDTH, PROMPTS = 32, 5  # tokens of a bin of positions, and the prompts that both sides need in it
MARGIN = 0.25  # tokens a round: a gap that lies within it on both sides is none that would matter


class Contrast(BaseModel):
    """A difference of mean accepted lengths with its 95 % interval over prompts; None where a side is empty."""

    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, estimate: Estimate | None) -> Contrast:
        interval = None if estimate is None else estimate.interval()
        if estimate is None or interval is None:
            return cls(value=None, low=None, high=None)
        return cls(value=rounded(estimate.value), low=rounded(interval.low), high=rounded(interval.high))


class Side(BaseModel):
    """One side of a contrast: mean accepted length, token acceptance rate and the solved i.i.d. rate."""

    steps: float
    responses: int
    length: Contrast
    sd: float | None  # over steps
    token_acceptance: float | None
    solved: Contrast


class Matched(BaseModel):
    """At matched positions; the shares say how much of either side had steps of the other beside it."""

    difference: Contrast
    bins: int
    first_covered: float
    second_covered: float


class Gap(BaseModel):
    """One recording and domain. ``gap`` is inside minus outside, thinking on; ``note_*`` take steps as independent."""

    drafter: str
    seed: int
    think_share: float | None
    sampling: dict[str, Any]
    sampling_seed: int
    domain: str
    think: Side
    output: Side
    off: Side  # the same prompts, thinking off
    gap: Contrast
    note_low: float | None
    note_high: float | None
    p: float | None
    cohens_d: float | None
    between_domain_gap: float | None
    straddling: int
    straddle_rate: float | None
    straddle_token_rate: float | None
    verdict: Verdict  # by prompts
    note_verdict: Verdict  # by steps
    equivalent: bool | None  # within MARGIN
    think_minus_off: Contrast
    output_minus_off: Contrast
    output_matched: Matched | None  # output steps, thinking on minus off
    think_matched: Matched | None  # steps inside the span minus steps with thinking off
    cut: int  # responses that the cap ended
    unclosed: int  # responses with thinking on that never left the span
    short: list[str]  # what the protocol asks for and this has not
    claim: str | None


def rounded(value: float, digits: int = 5) -> float:
    return round(float(value), digits)


def gaps(table: Rounds, straddle: StraddlePolicy = "exclude") -> Iterator[Gap]:
    """Of every domain of one recording."""
    known = table.provenance or {}
    on = ledger(table, "think", straddle)
    off = ledger(table, "no_think", straddle)
    ended = {mode: _ends(table, mode) for mode in ("think", "no_think")}
    try:
        spread: float | None = between_domain_gap(on)
    except ValueError:  # one domain alone has no spread, and without it no verdict
        spread = None
    for domain in known["settings"]["prompts"]:
        report, beside = Report(on.domain(domain)), Report(off.domain(domain))
        yield _gap(known, domain, report, beside, spread, ended)


def ledger(table: Rounds, mode: Mode, straddle: StraddlePolicy = "exclude") -> Ledger[Measured]:
    """The steps of one condition. Clusters are prompts, so that those of both conditions are paired."""
    rows = (replace(r, prompt_id=f"{r.domain}/{str(r.prompt_id).rpartition('/')[2]}") for r in table if r.mode == mode)
    origin = Measured.of((table.provenance or {}) | {"thinking": mode == "think"})
    return Ledger(origin, tuple(steps_of_rounds(rows)), straddle)


def _ends(table: Rounds, mode: str) -> Mapping[str, tuple[int, int]]:
    """Of each domain: responses that the cap ended, and responses that ended inside the span."""
    found: dict[str, tuple[int, int]] = {}
    for row in table:
        if row.mode == mode and row.ended:
            cut, unclosed = found.get(str(row.domain), (0, 0))
            found[str(row.domain)] = cut + (row.ended == "length"), unclosed + (row.phases[-1] == "think")
    return found


def _gap(
    known: Mapping[str, Any],
    domain: str,
    report: Report[Measured],
    beside: Report[Measured],
    spread: float | None,
    ended: Mapping[str, Mapping[str, tuple[int, int]]],
) -> Gap:
    settings, test, straddles = known["settings"], report.test, report.straddles
    judged: tuple[Verdict, Verdict] = "insufficient_data", "insufficient_data"
    if spread is not None:
        judged = report.verdict(spread, "responses"), report.verdict(spread)
    claim = None
    if spread is not None and judged[1] not in INCONCLUSIVE:
        claim = "\n".join(str(Claim(report, spread)).splitlines()[:3])
    off = Arm("output", tuple((step, 1.0) for step in beside.ledger.steps))  # whatever phases it has
    inside, outside = ([s for s, _ in arm.weighted] for arm in (report.think, report.output))
    close = equivalence(report.gap, MARGIN) if report.gap else None
    sides = {"think": _side(report.think), "output": _side(report.output), "off": _side(off)}
    cut, unclosed = ended["think"].get(domain, (0, 0))
    return Gap(
        drafter=settings["drafter_name"],
        seed=settings["drafter_seed"],
        think_share=settings["think_share"],
        sampling=known["sampling"],
        sampling_seed=known["seeds"][0],
        domain=domain,
        **sides,
        gap=Contrast.of(report.gap),
        note_low=None if test is None else rounded(test.low),
        note_high=None if test is None else rounded(test.high),
        p=None if test is None else test.p,
        cohens_d=None if test is None else rounded(test.cohens_d),
        between_domain_gap=None if spread is None else rounded(spread),
        straddling=straddles.straddling,
        straddle_rate=None if straddles.rate is None else rounded(straddles.rate),
        straddle_token_rate=None if straddles.token_rate is None else rounded(straddles.token_rate),
        verdict=judged[0],
        note_verdict=judged[1],
        equivalent=None if close is None else close.equivalent,
        think_minus_off=Contrast.of(_minus(report.think.mean_length, off.mean_length)),
        output_minus_off=Contrast.of(_minus(report.output.mean_length, off.mean_length)),
        output_matched=_matched(outside, beside.ledger.steps),
        think_matched=_matched(inside, beside.ledger.steps),
        cut=cut + ended["no_think"].get(domain, (0, 0))[0],
        unclosed=unclosed,
        short=_short(settings["prompts"][domain], sides),
        claim=claim,
    )


def _side(arm: Arm) -> Side:
    acceptance = arm.token_acceptance
    return Side(
        steps=arm.steps,
        responses=arm.responses,
        length=Contrast.of(arm.mean_length),
        sd=None if arm.standard_deviation is None else rounded(arm.standard_deviation),
        token_acceptance=None if acceptance is None else rounded(acceptance.value),
        solved=Contrast.of(arm.solved_rate),
    )


def _minus(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    return None if one is None or other is None else one - other


def _matched(first: Sequence[Step], second: Sequence[Step]) -> Matched | None:
    """None where no bin of positions has steps of ``PROMPTS`` prompts on both sides."""
    found = matched_positions(first, second, width=WIDTH, clusters=PROMPTS)
    if found is None:
        return None
    return Matched(
        difference=Contrast.of(found.difference),
        bins=found.bins,
        first_covered=rounded(found.first_covered),
        second_covered=rounded(found.second_covered),
    )


def _short(responses: int, sides: Mapping[str, Side]) -> list[str]:
    """What the protocol asks for and this recording has not."""
    found = [] if responses >= RESPONSES else [f"{responses} responses a condition, not {RESPONSES}"]
    return found + [f"{side.steps:g} steps {name}, not {STEPS:,}" for name, side in sides.items() if side.steps < STEPS]
