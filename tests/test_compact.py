"""The compact file of a Rounds table: what it keeps, what it refuses, and that metrics do not notice."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion import metrics
from companion.compact import load_compact, load_provenance, save_compact
from companion.protocols import Phase
from companion.rounds import Round, Rounds

PROVENANCE = {"target": {"name": "t"}, "seeds": [3]}


def response(
    request: int, accepted: list[int], depth: int = 4, *, scored: bool = True, cut: bool = False
) -> list[Round]:
    """Consecutive rounds that accept so many of ``depth``; ``cut``: the last ends on a stop token among its drafts."""
    rows, position = [], 20 + request
    for number, a in enumerate(accepted, start=1):
        last = number == len(accepted)
        stopped = cut and last
        tokens = list(range(a if stopped else a + 1))
        phases: list[Phase] = ["think" if number == 1 and i == 0 else "output" for i in range(len(tokens))]
        rows.append(
            Round(
                request=request,
                round=number,
                position=position,
                drafted=depth,
                verified=depth,
                accepted=a,
                rejected=not stopped and a < depth,
                bonus=not stopped,
                tokens=tokens,
                phases=phases,
                ended=None if not last else "stop" if cut else "length",
                entropy=[0.1234567 * (k + number) for k in range(depth + 1)],
                max_p=[0.5] * (depth + 1),
                confidence=[1 / (k + 1.5) for k in range(depth)] if scored else None,
                batch=2,
                prompt_id=f"math/no_think/{request}",
                domain="math",
                mode="no_think",
            )
        )
        position += len(tokens)
    return rows


def test_a_table_comes_back_as_it_was_but_for_what_is_left_out(tmp_path: Path) -> None:
    rows = response(0, [4, 0, 2]) + response(1, [3], cut=True) + response(2, [1, 1], scored=False)
    save_compact(Rounds(rows, PROVENANCE), tmp_path / "x.npz")
    back = load_compact(tmp_path / "x.npz")
    assert back.provenance == load_provenance(tmp_path / "x.npz") == PROVENANCE
    for new, old in zip(back, rows, strict=True):
        assert new.entropy == [round(h, 3) for h in old.entropy[: old.committed]]
        assert new.confidence == (None if old.confidence is None else [round(c, 3) for c in old.confidence])
        assert replace(new, entropy=[], confidence=None) == replace(
            old, entropy=[], confidence=None, tokens=[], max_p=[]
        )


@settings(max_examples=30)
@given(st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.booleans()), max_size=5))
def test_every_metric_is_the_same_before_and_after(responses: list[tuple[list[int], bool]]) -> None:
    rows = [
        row
        for request, (accepted, cut) in enumerate(responses)
        for row in response(request, accepted, cut=cut and accepted[-1] > 0)
    ]
    with tempfile.TemporaryDirectory() as folder:
        save_compact(Rounds(rows), Path(folder) / "x.npz")
        back = load_compact(Path(folder) / "x.npz")
    for metric in (metrics.committed_per_round, metrics.accepted_per_drafted, metrics.straddle_rate):
        assert metric(back) == metric(rows) or (not rows and np.isnan(metric(back)))
    assert metrics.conditional_by_position(back) == metrics.conditional_by_position(rows)
    assert metrics.survival_by_position(back) == metrics.survival_by_position(rows)
    assert metrics.phase_counts(back) == metrics.phase_counts(rows)
    assert len(metrics.by_prompt(back)) == len(responses)


def test_equal_tables_give_equal_bytes_and_interleaved_responses_are_put_in_order(tmp_path: Path) -> None:
    a, b = response(0, [4, 0, 2]), response(1, [3, 1, 1])
    save_compact(Rounds(a + b), tmp_path / "x.npz")
    save_compact(Rounds([row for pair in zip(a, b, strict=True) for row in pair]), tmp_path / "y.npz")
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "y.npz").read_bytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["x.npz", "y.npz"]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    rows = response(0, [4, 0, 2])
    with pytest.raises(ValueError, match="a round is missing"):
        save_compact(Rounds([rows[0], rows[2]]), tmp_path / "x.npz")
    with pytest.raises(ValueError, match="runs from 4 to 300"):
        save_compact(Rounds([replace(rows[0], drafted=300), *rows[1:]]), tmp_path / "x.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 10, 900])
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.npz"
    save_compact(Rounds(response(0, [4, 0, 2]), PROVENANCE), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="not a whole compact rounds file"):
        load_compact(path)
    with pytest.raises(ValueError, match="cannot read"):
        load_compact(tmp_path / "absent.npz")


def test_what_is_no_archive_is_not_said_to_be_a_pickle(tmp_path: Path) -> None:
    for name, content in (("notes.json", b"{}"), ("x.npz", b"\xff\xfe\x00"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="it is no npz archive"):
            load_compact(tmp_path / name)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", header=np.frombuffer(b'{"format": "other"}', dtype=np.uint8))
    with pytest.raises(ValueError, match="another format"):
        load_compact(tmp_path / "x.npz")
