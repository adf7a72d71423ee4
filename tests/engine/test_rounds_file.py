"""The Rounds table and its file: whole rows only, resumed without loss, never mixed with another run's."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest

from companion.rounds import Round, Rounds, RoundsWriter

PROVENANCE = {"target": {"name": "t"}, "seeds": (1, 2), "recorded_at": "2026-01-01", "system": {"cores": 2}}


def row(request, number, *, ended=None, prompt_id="p", **changes):
    return Round(
        **{
            "request": request,
            "round": number,
            "position": 10 + number,
            "drafted": 3,
            "verified": 2,
            "accepted": 1,
            "rejected": ended is None,
            "bonus": ended is None,
            "tokens": [5, 6] if ended is None else [5],
            "phases": ["think", "output"] if ended is None else ["think"],
            "ended": ended,
            "entropy": [0.1, 1 / 3, 2.0],
            "max_p": [0.9, 0.5, 0.2],
            "confidence": [0.5, 0.25, 0.1],
            "prompt_id": prompt_id,
        }
        | changes
    )


def response(request, rounds=3, **changes):
    return [row(request, n, ended="stop" if n == rounds else None, **changes) for n in range(1, rounds + 1)]


def test_a_table_comes_back_as_it_was(tmp_path):
    table = Rounds([*response(0), *response(1, domain="math", mode="think")], PROVENANCE)
    table.save(tmp_path / "deep" / "rounds.jsonl")
    back = Rounds.load(tmp_path / "deep" / "rounds.jsonl")
    assert back.rows == table.rows
    assert back.provenance["target"] == {"name": "t"}
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["rounds.jsonl"], "a temporary file was left behind"


def test_rows_are_selected_and_sliced():
    table = Rounds([*response(0, domain="math"), *response(1, domain="code")], PROVENANCE)
    assert {r.request for r in table.where(domain="code")} == {1}
    assert table[1:3].rows == table.rows[1:3]
    assert table[1:3].provenance == table.provenance
    assert (len(table), table[-1]) == (6, table.rows[-1])
    frame = table.to_frame()
    assert list(frame["domain"]) == ["math"] * 3 + ["code"] * 3


def test_a_slot_is_reached_when_all_before_it_were_accepted():
    rejected = row(0, 1, accepted=1, verified=3)
    assert [rejected.reached(k) for k in (1, 2, 3)] == [True, True, False]
    cut = row(0, 1, accepted=1, verified=3, rejected=False, bonus=False, ended="stop", tokens=[5], phases=["think"])
    assert [cut.reached(k) for k in (1, 2, 3)] == [True, False, False]
    assert cut.committed == 1


def test_a_file_cut_in_the_middle_of_a_row_is_refused_and_can_be_resumed(tmp_path):
    path = tmp_path / "rounds.jsonl"
    Rounds([*response(0), *response(1)], PROVENANCE).save(path)
    whole = path.read_bytes()
    for keep in (len(whole) - 1, len(whole) - 30):  # the last newline missing; half a row
        path.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"ends in the middle of row 6.*resume that run"):
            Rounds.load(path)
        with RoundsWriter(path, PROVENANCE) as writer:
            assert writer.done == {("p", 0)}
            writer.extend(response(1))
        assert path.read_bytes() == whole


def test_a_response_cut_between_two_rows_is_decoded_again(tmp_path):
    """Whole rows, but not the last one of the response: it may not count as done, nor its rows be there twice."""
    path = tmp_path / "rounds.jsonl"
    Rounds([*response(0), *response(1)], PROVENANCE).save(path)
    whole = path.read_bytes()
    path.write_bytes(b"\n".join(whole.split(b"\n")[:6]) + b"\n")
    with RoundsWriter(path, PROVENANCE) as writer:
        assert writer.done == {("p", 0)}
        assert writer.rows == response(0)
        writer.extend(response(1))
    assert path.read_bytes() == whole


def test_a_finished_file_is_resumed_with_nothing_to_do(tmp_path):
    path = tmp_path / "rounds.jsonl"
    Rounds(response(0), PROVENANCE).save(path)
    before = path.read_bytes()
    with RoundsWriter(path, PROVENANCE) as writer:
        assert writer.done == {("p", 0)}
    assert path.read_bytes() == before


KILLED = """
import sys
from pathlib import Path
from companion.rounds import RoundsWriter
from engine.test_rounds_file import PROVENANCE, response
with RoundsWriter(Path(sys.argv[1]), PROVENANCE) as writer:
    for request in range(10_000):
        if ("p", request) not in writer.done:
            writer.extend(response(request, rounds=5))
        if request == 20:
            print("under way", flush=True)
"""


def test_a_killed_writer_loses_at_most_one_response(tmp_path):
    path = tmp_path / "rounds.jsonl"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "under way\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with RoundsWriter(path, PROVENANCE) as writer:
        done = len(writer.done)
        assert done >= 21
        assert writer.rows == [r for request in range(done) for r in response(request, rounds=5)]
        writer.extend(response(done, rounds=5))
    assert Rounds.load(path).rows == [r for request in range(done + 1) for r in response(request, rounds=5)]


def test_another_runs_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "rounds.jsonl"
    Rounds(response(0), PROVENANCE).save(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="other settings; give another file, or remove it"):
        RoundsWriter(path, PROVENANCE | {"seeds": (1, 3)})
    with pytest.raises(ValueError, match="other settings"):
        RoundsWriter(path, None)
    assert path.read_bytes() == before


def test_when_and_where_a_run_happened_does_not_matter_to_resume_it(tmp_path):
    path = tmp_path / "rounds.jsonl"
    Rounds(response(0), PROVENANCE).save(path)
    later = PROVENANCE | {"recorded_at": "2027-02-02", "system": {"cores": 64}, "harness": {"commit": "x"}}
    with RoundsWriter(path, later) as writer:
        assert writer.done == {("p", 0)}


def test_one_table_has_one_provenance():
    one, other = Rounds(response(0), PROVENANCE), Rounds(response(1), PROVENANCE | {"seeds": [9]})
    assert len(Rounds.concat([one, one])) == 6
    with pytest.raises(ValueError, match="one provenance cannot speak for all"):
        Rounds.concat([one, other])
    assert Rounds.concat([]).rows == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a rounds file"),
        (b"hello\n", "is not a rounds file"),
        (b'{"format": "other/1", "provenance": null}\n', "is not a rounds file"),
        (b'{"format": "companion.rounds/1", "provenance": null}', "is not a rounds file"),
        (b'{"format": "companion.rounds/1", "provenance": null}\n{"request": 1}\n', "line 2 is not a round"),
        (b'{"format": "companion.rounds/1", "provenance": null}\nnonsense\n', "line 2 is not a round"),
    ],
)
def test_other_files_are_refused(tmp_path, content, words):
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        Rounds.load(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot read the rounds file"):
        Rounds.load(tmp_path / "none.jsonl")


def test_nan_is_not_written(tmp_path):
    """JSON has no NaN, and a table with one would not be read back the same everywhere."""
    with (
        RoundsWriter(tmp_path / "rounds.jsonl", None) as writer,
        pytest.raises(ValueError, match="not JSON compliant"),
    ):
        writer.extend([row(0, 1, entropy=[float("nan")])])
    assert json.loads(json.dumps(asdict(row(0, 1)))) == asdict(row(0, 1))
