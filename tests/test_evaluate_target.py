"""The evaluation of the target: what it counts, that it resumes, and that too few responses prove nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from companion.experiments import evaluate_target as experiment
from companion.experiments.bars import verdict
from companion.experiments.model_card import write_target_card
from companion.experiments.stored import append_rows, resume_rows
from companion.experiments.target_report import Proportion, bars, cells, entropies, newcombe
from companion.experiments.target_rows import Response
from companion.training.corpus import DOMAINS, MODES, Domain, Mode

SMALL = experiment.Config(samples=4, other_samples=2, max_new_tokens=600, max_batch=16)


def _row(
    index: int,
    domain: Domain = "math",
    mode: Mode = "think",
    right: bool | None = True,
    temperature: float = 0.7,
    span_ok: bool = True,
    ended: bool = True,
    think_tokens: int = 120,
) -> Response:
    return Response(
        index=index,
        temperature=temperature,
        domain=domain,
        mode=mode,
        kind="standard",
        family="add",
        right=None if domain == "chat" else right,
        span_ok=span_ok,
        ended=ended,
        tokens=150,
        think_tokens=think_tokens,
        entropy_think=[0.0, 0.5, 1.5, 2.5] if temperature == 1.0 and mode == "think" else [],
    )


def _all_good(n: int) -> list[Response]:
    return [
        _row(i, d, m, temperature=t, right=m == "think")
        for t in (0.7, 1.0)
        for d in DOMAINS
        for m in MODES
        for i in range(n)
    ]


def test_all_good_responses_hold_and_each_fault_fails_its_bar() -> None:
    rows = _all_good(100)
    assert verdict(bars(rows, 100)) == "holds"
    faults = {
        "right, math, thinking, T 0.7": {"right": False},
        "span opened and closed, math, think, T 0.7": {"span_ok": False},
        "ends by itself, math, think, T 0.7": {"ended": False},
    }
    for name, change in faults.items():
        bad = [
            r.model_copy(update=change) if r.cell == (0.7, "math", "think", "standard") and r.index < 10 else r
            for r in rows
        ]
        assert [b.name for b in bars(bad, 100) if b.verdict == "fails"] == [name]
    lazy = [r.model_copy(update={"right": True}) if r.domain == "math" else r for r in rows]
    assert [b.name for b in bars(lazy, 100) if b.verdict == "fails"] == ["thinking pays, math, T 0.7"]


def test_too_few_responses_are_inconclusive() -> None:
    assert verdict(bars(_all_good(5), 1000)) == "inconclusive"
    assert verdict(bars([], 1)) == "inconclusive"


def test_cells_count_families_and_long_spans() -> None:
    rows = [_row(i, right=i % 2 == 0, think_tokens=90 + i) for i in range(20)]
    (cell,) = cells(rows)
    assert cell.right is not None
    assert (cell.right.hits, cell.right.trials) == (10, 20)
    assert cell.families["add"].value == 0.5
    assert cell.long_spans is not None
    assert cell.long_spans.hits == 10
    assert cell.mean_think_tokens == pytest.approx(99.5)


def test_entropies_are_summed_up_by_phase_at_temperature_one() -> None:
    (summary,) = entropies([_row(0, temperature=1.0), _row(1, temperature=0.7), _row(2, temperature=1.0)])
    assert (summary.tokens, summary.phase) == (8, "think")
    assert (summary.below_005, summary.above_1, summary.above_2) == (0.25, 0.5, 0.25)
    assert summary.mean == pytest.approx(1.125)
    assert summary.maximum == 2.5


def test_the_interval_of_a_difference_is_newcombes() -> None:
    # Newcombe (1998), example (a) of table II: 56/70 - 48/80, method 10 gives [0.0524, 0.3339]
    gain, low, high = newcombe(Proportion.of([True] * 56 + [False] * 14), Proportion.of([True] * 48 + [False] * 32))
    assert gain == pytest.approx(0.2)
    assert (low, high) == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4))


def test_rows_survive_a_cut_and_refuse_other_settings(tmp_path: Path) -> None:
    path, header = tmp_path / "rows.jsonl", {"config": 1}
    assert resume_rows(path, header, Response) == []
    append_rows(path, [_row(0), _row(1)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert resume_rows(path, header, Response) == [_row(0)]
    append_rows(path, [_row(1)])
    assert path.read_bytes() == whole
    with pytest.raises(ValueError, match="other weights, settings or another machine"):
        resume_rows(path, {"config": 2}, Response)
    path.write_bytes(whole + "\N{CHECK MARK}".encode()[:2])  # cut off within a character
    assert resume_rows(path, header, Response) == [_row(0), _row(1)]
    assert path.read_bytes() == whole
    for other in (whole.replace(b'"index":0', b'"index":"x"'), b"\xff\xfe\n", b"a note of one line"):
        path.write_bytes(other)
        with pytest.raises(ValueError, match="damaged"):
            resume_rows(path, header, Response)
        assert path.read_bytes() == other, "somebody's file was written over"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, experiment.TargetEvaluation]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("evaluation")
    return folder, experiment.run(SMALL, folder / "result.json", folder / "rows.jsonl")


def test_the_embedded_target_keeps_its_format(evaluated: tuple[Path, experiment.TargetEvaluation]) -> None:
    folder, result = evaluated
    assert result.verdict in ("holds", "fails")  # 4 of 4 wanted: judged, whatever the outcome
    standard = [c for c in result.cells if c.kind == "standard"]
    assert len(standard) == 12
    assert sum(c.span_ok.hits for c in standard) >= 0.9 * sum(c.span_ok.trials for c in standard)
    thinking = [c.right for c in standard if c.mode == "think" and c.domain != "chat" and c.right is not None]
    assert sum(r.hits for r in thinking) >= 0.6 * sum(r.trials for r in thinking)
    assert {(e.domain, e.phase) for e in result.entropy} == {(d, p) for d in DOMAINS for p in ("think", "output")}
    assert all(0 <= e.below_005 <= 1 and math.isfinite(e.maximum) for e in result.entropy)
    stored = json.loads((folder / "result.json").read_text())
    assert stored["provenance"]["target"]["name"] == "tiny-qwen3"
    experiment.show(result)


def test_a_killed_evaluation_ends_with_the_same_numbers(
    evaluated: tuple[Path, experiment.TargetEvaluation], tmp_path: Path
) -> None:
    folder, result = evaluated
    rows = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(rows[:-7]) + rows[-7][:30])
    again = experiment.run(SMALL, None, tmp_path / "rows.jsonl", workers=2)
    assert (tmp_path / "rows.jsonl").read_text() == "".join(rows)
    assert again.cells == result.cells
    assert again.bars == result.bars


def test_the_card_refuses_an_evaluation_of_other_weights(
    evaluated: tuple[Path, experiment.TargetEvaluation], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(ValueError, match="evaluate again"):
        write_target_card(tmp_path, evaluated[1])
