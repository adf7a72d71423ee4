"""The command line: `companion VERB --help` is enough to use each verb.

Exit codes: 0 done or holds, 1 fails or bad input, 2 usage, 3 inconclusive (nothing was compared).
"""

from __future__ import annotations

import io
import sys

import typer
from rich.console import Console
from rich.markup import escape

from companion.cli.common import EXIT
from companion.cli.decode import ceiling, generate, plan, reproduce
from companion.cli.forced_exit import forced_exit
from companion.cli.load import profile
from companion.cli.measure import bench, evaluate, experiment
from companion.cli.phase_gap import phase_gap, phase_rates, phase_signals
from companion.cli.phase_hook import phase_hook
from companion.cli.simulation import load_simulation
from companion.cli.train import train
from companion.cli.vllm import vllm

__all__ = ["EXIT", "app", "main"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for verb in (generate, ceiling, plan, reproduce, profile):
    app.command()(verb)
experiment.command("forced-exit")(forced_exit)
experiment.command("load-simulation")(load_simulation)
experiment.command("phase-gap")(phase_gap)
experiment.command("phase-hook")(phase_hook)
experiment.command("phase-rates")(phase_rates)
experiment.command("phase-signals")(phase_signals)
app.add_typer(train, name="train")
app.add_typer(evaluate, name="evaluate")
app.add_typer(bench, name="bench")
app.add_typer(experiment, name="experiment")
app.add_typer(vllm, name="vllm")


def main() -> None:
    """Entry point: a user's mistake is one sentence on standard error, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console without the character shows a question mark
    try:
        app()
    except (ValueError, OSError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
