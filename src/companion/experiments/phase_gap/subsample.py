"""The verdict as a function of how many prompts were asked: what too small a study would have said."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from companion.experiments.phase_gap.contrasts import sampling_name
from companion.experiments.phase_gap.gaps import Contrast, ledger
from companion.phase.report import Report, between_domain_gap
from companion.phase.straddle import StraddlePolicy
from companion.phase.verdict import Verdict
from companion.rounds import Rounds

SIZES = (2, 3, 5, 10, 20, 50)


class Subsample(BaseModel):
    """Of the first ``prompts`` of every domain; ``verdict`` by prompts, ``note_verdict`` by steps."""

    drafter: str
    seed: int
    sampling: str
    domain: str
    prompts: int
    gap: Contrast
    verdict: Verdict
    note_verdict: Verdict


def subsamples(table: Rounds, straddle: StraddlePolicy = "exclude") -> Iterator[Subsample]:
    """Of one recording with two domains at least, at every size below its own."""
    known = table.provenance or {}
    settings = known["settings"]
    if len(settings["prompts"]) < 2:
        return
    for size in (s for s in SIZES if s < min(settings["prompts"].values())):
        first = Rounds([r for r in table if int(str(r.prompt_id).rpartition("/")[2]) < size], table.provenance)
        on = ledger(first, "think", straddle)
        spread = between_domain_gap(on)
        for domain in settings["prompts"]:
            report = Report(on.domain(domain))
            yield Subsample(
                drafter=settings["drafter_name"],
                seed=settings["drafter_seed"],
                sampling=sampling_name(known["sampling"]),
                domain=domain,
                prompts=size,
                gap=Contrast.of(report.gap),
                verdict=report.verdict(spread, "responses"),
                note_verdict=report.verdict(spread),
            )
