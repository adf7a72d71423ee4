"""Serving under load: recorded drafts replayed against a capacity curve, with the policies that the engine runs."""

from .arrivals import Arrivals
from .foresight import Foresight, Oracle, SameStep
from .measures import Fairness, Load, Window
from .replay import Replay, workload
from .roofline_table import AnalyticTable, roofline_table
from .simulator import Log, Served, SimulatedRound, Step, simulate

__all__ = [
    "AnalyticTable",
    "Arrivals",
    "Fairness",
    "Foresight",
    "Load",
    "Log",
    "Oracle",
    "Replay",
    "SameStep",
    "Served",
    "SimulatedRound",
    "Step",
    "Window",
    "roofline_table",
    "simulate",
    "workload",
]
