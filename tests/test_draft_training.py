"""From the target's own output to a draft model: traces resume and need no luck with processes; the recipe runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import companion
from companion.parallel import ordered_map
from companion.training.draft import OUTPUT, DraftConfig, train_draft
from companion.training.loop import Schedule
from companion.training.regenerate import Regeneration, read_traces, regenerate
from companion.training.target import Architecture

FEW = Regeneration(samples=7, max_new_tokens=24, temperatures=(0.7, 1.0))


def test_traces_resume_after_a_cut_and_are_the_same_in_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("companion.training.regenerate.CHUNK", 3)
    whole = regenerate(FEW, tmp_path / "whole")
    assert len(whole) == 7
    assert all(t.prompt and 1 <= len(t.response) <= 24 for t in whole)
    text = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(text[: text.index(b"\n") + 40])
    assert regenerate(FEW, tmp_path / "cut", workers=2) == whole
    assert (tmp_path / "cut").read_bytes() == text
    assert regenerate(replace(FEW, samples=4), tmp_path / "cut") == whole[:4]
    target = companion.load_target("tiny-qwen3")
    text_of = [target.decode(t.response) for t in whole]
    assert any("<think>" in t for t in text_of)
    assert not all("<think>" in t for t in text_of)
    # the odd prompts were answered at temperature 1: the same prompt, seed and temperature give the same tokens
    again = companion.generate(target, None, whole[1].prompt, temperature=1.0, seed=FEW.seed, max_new_tokens=24)
    assert again.tokens == whole[1].response


def test_a_draft_model_is_trained_and_loads_as_a_drafter(tmp_path: Path) -> None:
    config = DraftConfig(
        architecture=Architecture(hidden=32, layers=1, mlp=48, heads=2, kv_heads=1, head_dim=32),
        schedule=Schedule(steps=3, warmup=1, log_every=1),
        traces=FEW,
        workers=1,
    )
    result = train_draft(config, tmp_path)
    assert result.finished
    assert len(read_traces(tmp_path / OUTPUT)) == FEW.samples
    target = companion.load_target("tiny-qwen3")
    drafter = companion.load_drafter(str(tmp_path / "model"), target)
    answer = companion.generate(target, drafter, "What is 2 + 3?", temperature=0.0, max_new_tokens=12)
    plain = companion.generate(target, None, "What is 2 + 3?", temperature=0.0, max_new_tokens=12)
    assert answer.tokens == plain.tokens
    with pytest.raises(ValueError, match="another recipe"):
        train_draft(replace(config, overlap_weight=0.1), tmp_path)


def test_a_map_keeps_order_and_refuses_no_workers() -> None:
    assert list(ordered_map(str, range(5), 2)) == list(ordered_map(str, range(5), 1)) == list("01234")
    with pytest.raises(ValueError, match="at least 1"):
        list(ordered_map(str, range(5), 0))
