"""Turns: what is compared interleaves, each is told of, and nothing is stepped once it is done."""

import random

from companion.experiments import turns
from companion.experiments.turns import take_turns


def served(monkeypatch, turn, length=30):
    monkeypatch.setattr(turns, "TURN", turn)
    monkeypatch.setattr(turns, "PAUSE", 0.0)
    left, trace, announced = {"a": length, "b": length}, [], []

    def step(key):
        assert left[key] > 0, "stepped after it was done"
        left[key] -= 1
        trace.append(key)

    take_turns(left, step, lambda key: left[key] == 0, random.Random(0), announced.append)
    return "".join(trace), announced


def test_a_turn_ends_when_its_time_is_over(monkeypatch):
    trace, announced = served(monkeypatch, 0.0)
    assert sorted(trace) == sorted("a" * 30 + "b" * 30)
    assert trace == "".join(announced), "one step a turn, each announced"
    assert "aaa" not in trace, "between two turns of one lies a turn of the other"
    assert {trace[i : i + 2] for i in range(0, 60, 2)} == {"ab", "ba"}, "the order is drawn anew"


def test_a_long_turn_runs_to_the_end(monkeypatch):
    trace, announced = served(monkeypatch, 1000.0)
    assert trace == announced[0] * 30 + announced[1] * 30
    assert len(announced) == 2
