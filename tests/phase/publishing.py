"""What a type checker must refuse, beside what it must let through; `test_claim` reads both from its output."""

from companion.phase.claim import Claim
from companion.phase.ledger import Ledger
from companion.phase.origin import Measured, Synthetic
from companion.phase.rates import MeasuredRates
from companion.phase.report import Report


def publish_measured(run: Measured) -> Claim:
    return Claim(Report(Ledger(run)), 0.0)


def plan_measured(run: Measured) -> MeasuredRates:
    return MeasuredRates.from_report(Report(Ledger(run)))


def publish_synthetic(report: Report[Synthetic]) -> Claim:
    return Claim(report, 0.0)  # refused


def plan_synthetic(report: Report[Synthetic]) -> MeasuredRates:
    return MeasuredRates.from_report(report)  # refused


def publish_either(report: Report[Measured | Synthetic]) -> Claim:
    return Claim(report, 0.0)  # refused


def publish_nothing(report: Report[Measured]) -> Claim:
    return Claim(report.think, 0.0)  # refused
