"""A claim: a measured report with a verdict, whose text names what it speaks of and nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from companion.phase.origin import Measured, require_measured
from companion.phase.report import Report, brackets
from companion.phase.verdict import INCONCLUSIVE, Verdict


@final
@dataclass(frozen=True)
class Claim:
    """TypeError unless the report is measured, whatever it holds: thin data can be cured, a made-up trace cannot.

    ValueError for a report of several domains, which H1 never pools, and for one that is too thin, or too much of it
    across the boundary, for any of the four verdicts that say something.
    """

    report: Report[Measured]
    between_domain_gap: float

    def __post_init__(self) -> None:
        if type(self.report) is not Report:
            raise TypeError(f"a claim is made of a report, got {type(self.report).__name__}")
        require_measured(self.report.origin, "a claim")
        if len(self.report.ledger.domains) > 1:
            raise ValueError(
                f"the report pools {', '.join(self.report.ledger.domains)}; a claim speaks of one domain, since their "
                "spread is what it is held against"
            )
        if self.verdict in INCONCLUSIVE:
            raise ValueError(f"the data make no claim: {self.verdict}\n{self.report}")

    @property
    def verdict(self) -> Verdict:
        """As the note takes it, with steps for independent draws."""
        return self.report.verdict(self.between_domain_gap)

    def __str__(self) -> str:
        run, test = self.report.origin, self.report.test
        assert test is not None
        domain = next(iter(self.report.ledger.domains), "no domain named")
        sampling = f"temperature {run.sampling.temperature:g}"
        if not run.sampling.greedy:
            sampling += f", top-k {run.sampling.top_k or 'off'}, top-p {run.sampling.top_p:g}"
            sampling += f", min-p {run.sampling.min_p:g}"
        return "\n".join(
            [
                f"Scope: {run.target} (revision {run.target_revision}) with the drafter {run.drafter} (revision "
                f"{run.drafter_revision}), thinking {'on' if run.thinking else 'off'}, {sampling}, depth {run.depth}"
                f"{'' if run.untrimmed else ' (trimmed)'}, prompts {run.prompt_set} ({domain}), seeds "
                f"{', '.join(map(str, run.seeds))}; {run.harness} on {run.hardware}, {run.recorded_on}.",
                f"On {run.target} the mean accepted length inside the think span differs from that outside by "
                f"{test.difference:+.3f} tokens (95 % interval by steps {brackets(self.report.interval())}, by "
                f"responses {brackets(self.report.interval('responses'))}); domains differ by "
                f"{self.between_domain_gap:.3f}.",
                f"Verdict: {self.verdict} (by steps), {self.report.verdict(self.between_domain_gap, 'responses')} "
                f"(by responses). It is a statement about {run.target} with {run.drafter}, and about no other pair.",
                str(self.report),
            ]
        )
