"""From a recording to the settings file of a hook: both phases' rates, with the run that they come from."""

from __future__ import annotations

from pathlib import Path

from companion.experiments.phase_gap.gaps import ledger
from companion.experiments.phase_gap.stored import load_arm
from companion.phase.rates import Definition, MeasuredRates
from companion.phase.report import Report
from companion.phase.settings import acceptance_prior


def hook_file(recording: Path, vocab_size: int, definition: Definition = "solved") -> str:
    """TOML that `companion.phase.settings.read_settings` reads. The hook may switch drafting off and go as deep as the
    recording did; the costs of a round are the note's placeholders.

    Domains are pooled, as a server meets them. ValueError for a broken recording, and for a phase with too little
    in it.
    """
    rates = MeasuredRates.from_report(Report(ledger(load_arm(recording), "think")), definition)
    depth = rates.origin.depth
    own = {
        "enabled": "true",
        "baseline_proposal_len": depth,
        "min_proposal_len": 0,
        "max_proposal_len": depth,
        "vocab_size": vocab_size,
    }
    return "\n".join(
        ["[speculation]", *(f"{key} = {value}" for key, value in own.items()), "", acceptance_prior(rates)]
    )
