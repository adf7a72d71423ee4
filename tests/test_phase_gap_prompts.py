"""Prompt sets of Phase 1: the same prompts for both conditions, and one sentence for whatever cannot be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from companion.experiments.phase_gap.prompts import HELD_OUT, load_prompts
from companion.training.corpus import DOMAINS, held_out_samples


def write(path: Path, *records: Any) -> str:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return str(path)


def lines(domain: str, count: int) -> list[dict[str, str]]:
    return [{"domain": domain, "prompt": f"{domain} question {i}"} for i in range(count)]


def test_the_held_out_domains_stand_in_the_place_of_the_protocols() -> None:
    found = load_prompts([HELD_OUT], 5, seed=3)
    assert found.counts == dict.fromkeys(DOMAINS, 5)
    assert [p.text for p in found.of("code")] == [s.prompt for s in held_out_samples("code", "think", 5, seed=3)]
    assert found.hash == load_prompts([HELD_OUT], 5, seed=3).hash != load_prompts([HELD_OUT], 5, seed=4).hash


def test_a_file_gives_its_domains_in_order_and_no_more_than_was_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", *lines("b", 3), "", *lines("a", 4), {"domain": "b", "prompt": "b late"})
    found = load_prompts([path], 3)
    assert found.counts == {"b": 3, "a": 3}
    assert [p.number for p in found.of("a")] == [0, 1, 2]
    assert found.source == "p.jsonl"  # and not where it lies
    moved = load_prompts([write(tmp_path / "q.jsonl", *lines("b", 2), *lines("c", 3))], 3)
    assert moved.hash != found.hash


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([*lines("a", 2), '{"domain": "a", "prom'], r"p.jsonl, line 3 is not JSON"),
        ([*lines("a", 2), {"domain": "a"}], "line 3 has no prompt"),
        ([{"prompt": "x"}], "line 1 has no domain"),
        ([{"prompt": "x", "domain": 3}], "line 1 has no domain"),
        ([{"prompt": "  ", "domain": "a"}], "line 1 has no prompt"),
        (["[1, 2]"], "line 1 has no prompt"),
        ([*lines("a", 3), *lines("b", 1)], "1 prompt.s. of domain 'b'; at least 2"),
        ([], "0 prompt.s. of any domain"),
        ([*lines("a", 2), lines("a", 1)[0]], "'a question 0' twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, records: list[Any], message: str) -> None:
    path = write(tmp_path / "p.jsonl", *records)
    with pytest.raises(ValueError, match=message) as refused:
        load_prompts([path], 10)
    assert "\n" not in str(refused.value)


def test_what_is_no_prompt_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read the prompts in .*none.jsonl"):
        load_prompts([str(tmp_path / "none.jsonl")], 10)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_prompts([str(tmp_path / "binary.jsonl")], 10)
    with pytest.raises(ValueError, match="there are no prompts 'gsm9k'"):
        load_prompts(["gsm9k"], 10)
    with pytest.raises(ValueError, match="at least 2 for each domain"):
        load_prompts([HELD_OUT], 1)
    with pytest.raises(ValueError, match="there are no prompts: give"):
        load_prompts([], 5)


# --- data sets of the hub, without the hub -------------------------------------------------------------------------


def with_datasets(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> list[tuple[Any, ...]]:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, split: str | None = None) -> Any:
        asked.append((name, config, split))
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_without_the_package_datasets_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="needs the package datasets"):
        load_prompts(["gsm8k"], 5)


def test_the_protocols_sets_are_read_by_their_own_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = with_datasets(monkeypatch, [{"question": f"q{i}", "domain": "other"} for i in range(4)])
    found = load_prompts(["gsm8k"], 3)
    assert asked == [("openai/gsm8k", "main", "test")]
    assert found.counts == {"gsm8k": 3}
    with_datasets(monkeypatch, [{"prompt": [f"first {i}", "second"]} for i in range(3)])
    assert [p.text for p in load_prompts(["mt-bench"], 2).prompts] == ["first 0", "first 1"]  # of each its first turn


def test_another_set_gives_its_test_split_and_its_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"instruction": f"i{i}", "domain": "ab"[i % 2]} for i in range(6)]
    with_datasets(monkeypatch, {"train": [], "test": rows})
    assert load_prompts(["someone/set"], 5).counts == {"a": 3, "b": 3}
    with_datasets(monkeypatch, {"train": rows, "validation": rows})
    with pytest.raises(ValueError, match="the splits train, validation and no test split"):
        load_prompts(["someone/set"], 5)
    with_datasets(monkeypatch, {"train": [{"text": "x"}] * 3})
    with pytest.raises(ValueError, match="row 0 of someone/set has the columns text and none of"):
        load_prompts(["someone/set"], 5)
    with_datasets(monkeypatch, ConnectionError("no route\nlong story"))
    with pytest.raises(ValueError, match=r"cannot get the data set 'someone/set' \(no route\)"):
        load_prompts(["someone/set"], 5)


def test_topics_of_one_domain_can_be_domains() -> None:
    found = load_prompts(["held-out/chat"], 4, seed=1)
    known = {s.prompt: s.family for s in held_out_samples("chat", "think", 32, seed=1)}
    assert len(found.domains) >= 3
    assert set(found.counts.values()) == {4}
    assert all(known[p.text] == p.domain for p in found.prompts)
