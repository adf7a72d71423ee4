"""Interactive parts say everything without a script: what they show is what the package computes."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import companion
from companion.ceiling import entropy_ceiling, entropy_floor
from companion.interactive import bracket, decode_replay, schedule_steps
from companion.interactive.part import stepped
from companion.interactive.schedule import ADMITTED, JUDGED
from companion.scheduling.capacity import Capacity
from companion.scheduling.prefix import prefix_lengths

TWO, CURVE_TWO = [[0.9, 0.5], [0.6, 0.6]], Capacity.of_steps({2: 1.0, 3: 0.8, 4: 0.55, 5: 0.5, 6: 0.3})


class Placed(HTMLParser):
    """Text of the elements that appear at a step, in order: (kind, step, tag, text)."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, int, str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("data-at", "data-from"):
                self.found.append((name, int(value), tag, ""))
        if tag == "br":
            self.handle_data("\n")

    def handle_data(self, data):
        if self.found:
            kind, step, tag, text = self.found[-1]
            self.found[-1] = (kind, step, tag, text + data)


def captions(html: str) -> list[str]:
    found = re.search(r'data-captions="([^"]*)"', html)
    assert found is not None
    return json.loads(unescape(found[1]))


def test_the_bracket_has_the_bounds():
    part = bracket({"Qwen3's": 151_936, "two": 2})
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", part.html)
    assert {unescape(name) for name, *_ in rows} == {"Qwen3's", "two"}
    for name, h, floor, ceiling in rows:
        size = {"Qwen3's": 151_936, "two": 2}[unescape(name)]
        assert float(floor) == pytest.approx(entropy_floor(float(h)), abs=6e-7)
        assert float(ceiling) == pytest.approx(entropy_ceiling(float(h), size), abs=6e-7)
    assert part.text == repr(part) == "The entropy bracket, Qwen3's, two"
    with pytest.raises(ValueError, match="at least 2 tokens"):
        bracket({"one": 1})


def test_the_worked_trace_comes_out_as_in_the_text():
    part = schedule_steps(TWO, CURVE_TWO)
    told = captions(part.html)
    assert ["Θ = 2 × 1 = 2.0000" in told[0], "Θ = 2.9 × 0.8 = 2.3200" in told[1]] == [True, True]
    assert told[2].endswith("Θ = 3.5 × 0.55 = 1.9250, no more than before: the algorithm stops here.")
    assert len(told) == 3
    assert part.text == "Algorithm 1 step by step, 3 steps"


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4))
def test_steps_end_where_the_algorithm_does_and_show_nothing_it_may_not_see(seed, requests, slots):
    rng = np.random.default_rng(seed)
    values = rng.permutation(np.arange(1, 99))[: requests * slots] / 100  # all different, two digits each
    c = values.reshape(requests, slots)
    capacity = Capacity.of_steps(np.sort(rng.random(requests * (1 + slots)) + 0.05)[::-1].tolist())
    part = schedule_steps(c, capacity)
    tables = part.html.split('data-at="')[1:]
    assert len(tables) == len(captions(part.html))
    assert tables[-1].count(ADMITTED) == prefix_lengths(c, capacity).sum()
    assert [table.count(ADMITTED) for table in tables] == [0, *range(len(tables) - 1)][: len(tables)]
    assert all(table.count(JUDGED) == 1 for table in tables[1:-1])
    for table in tables:
        shown = set(re.findall(r">(0\.\d\d)</td>", table))
        assert len(shown) <= requests + table.count(ADMITTED), "more than the next slot of a request"


@pytest.mark.parametrize("name", ["lookup", "draft", "dspark"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_replay_holds_the_answer_and_every_refused_token(name, temperature):
    target = companion.load_target()
    drafter = companion.load_drafter(name, target, **({"max_depth": 5} if name != "dspark" else {}))
    options = {"temperature": temperature, "max_new_tokens": 120, "seed": 3}
    part = decode_replay(target, drafter, "Tell me about bread.", **options)
    result = companion.generate(target, drafter, "Tell me about bread.", **options)
    _, _, body = part.html.partition("</p>")
    placed = Placed(body).found
    kept = [(step, text) for kind, step, _, text in placed if kind == "data-from"]
    written = [target.decode([token], keep_special=True).replace("\n", "↵\n") for token in result.tokens]
    assert [text for _, text in kept] == written
    assert [step for step, _ in kept] == [0, *(n for n, row in enumerate(result.rounds, 1) for _ in row.tokens)]
    refused = [step for kind, step, tag, _ in placed if kind == "data-at" and tag == "s"]
    assert refused == [
        n for n, row in enumerate(result.rounds, 1) if row.bonus for _ in range(row.drafted - row.accepted)
    ]
    assert refused, "a case without a refused token tests little"
    told = captions(part.html)
    assert len(told) == 1 + len(result.rounds)
    assert [n for n, row in enumerate(result.rounds, 1) if len(set(row.phases)) == 2] == [
        n for n, line in enumerate(told) if "straddles" in line
    ]


def test_a_caption_cannot_close_its_attribute():
    part = stepped('a "name"', ['<b>"x"</b> & y'], "")
    assert captions(part.html) == ['<b>"x"</b> & y']
    assert part.html.count('"') == 8
    with pytest.raises(ValueError, match="nothing to step through"):
        stepped("a", [], "")
