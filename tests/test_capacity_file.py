"""Capacity tables as files: broken ones are refused, those of another place named, measured ones come back."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import companion
from companion import figures_load
from companion.cli import app
from companion.engine.load import find_model
from companion.experiments import capacity_profile as study
from companion.experiments.capacity_tables import Cell, Quartiles, table_of_cells
from companion.provenance import system, write_json
from companion.scheduling import capacity_file
from companion.scheduling.capacity_file import PARTS, differences, engine_version, load_capacity

TARGET = {**find_model("tiny-qwen3").describe(), "dtype": "float32", "device": "cpu"}
DRAFTER = find_model("dspark").describe()


def record():
    """A file that was measured here, with one thread and with two."""
    return {
        "format": capacity_file.FORMAT,
        "tables": [
            {
                "threads": threads,
                "contexts": [64, 192],
                "sizes": [1, 4, 16],
                "verify": [[0.001 * threads, 0.002, 0.004], [0.002, 0.003, 0.006]],
                "reads": [0.0001, 0.0002],
                "draft": {"requests": [1, 4], "seconds": [[[0.0005, 0.001], [0.001, 0.002]], [[0.001, 0.002]] * 2]},
            }
            for threads in (1, 2)
        ],
        "provenance": {
            "system": system(),
            "settings": {"engine_version": engine_version()},
            "target": TARGET,
            "drafter": DRAFTER,
        },
    }


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def path(tmp_path, one_thread):
    write_json(tmp_path / "capacity.json", record())
    return tmp_path / "capacity.json"


@pytest.mark.filterwarnings("error")
def test_what_is_too_long_to_be_read_is_written_without_indentation(tmp_path):
    for record in ({"a": [1.5, "ü"]}, {"a": [0.1] * 40_000}):
        write_json(tmp_path / "one.json", record)
        text = (tmp_path / "one.json").read_text(encoding="utf-8")
        assert json.loads(text) == record
        assert (text.count("\n") > 1) == (len(record["a"]) == 2)


def test_a_table_of_this_place_comes_back_without_a_word(path):
    table = load_capacity(path, target=TARGET, drafter=DRAFTER)
    assert table.provenance["threads"] == 1
    assert float(table.at(64).seconds(4, 2)) == pytest.approx(0.002 + 2 * 0.0001 + 0.001 + 0.001 / 3)
    assert float(table.at(192).seconds(16, 1, drafted=0)) == pytest.approx(0.006 + 0.0002)


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("system", "processor"), "Another CPU", r"machine \(Another CPU\)"),
        (("system", "gpu"), "H200", r"machine \(H200\)"),
        (("settings", "engine_version"), "0" * 16, "version of the engine"),
        (("target", "weights_sha256"), {"model.safetensors": "0"}, r"target \(tiny-qwen3\)"),
        (("target", "dtype"), "bfloat16", r"target \(tiny-qwen3\)"),
        (("drafter", "weights_sha256"), {"model.safetensors": "0"}, r"drafter \(dspark\)"),
    ],
)
def test_a_table_of_another_place_is_used_with_one_warning(path, keys, value, said):
    changed = json.loads(json.dumps(record()))
    changed["provenance"][keys[0]][keys[1]] = value
    write_json(path, changed)
    with pytest.warns(UserWarning, match=f"measured with another {said}: its times may be wrong here") as caught:
        assert load_capacity(path, target=TARGET, drafter=DRAFTER).contexts == (64, 192)
    assert len(caught) == 1
    assert not any(w for w in caught if "\n" in str(w.message))


def test_the_version_of_the_engine_is_of_code_that_exists():
    root = Path(companion.__file__).parent
    for part in set(PARTS) - {"kernels"}:  # a package of its own folder
        assert (root / part).is_file() or any((root / part).rglob("*.py")), part


def test_another_thread_count_is_warned_of_and_a_demanded_one_refused(path):
    with pytest.warns(UserWarning, match=r"another number of threads \(2\)"):
        assert load_capacity(path, threads=2).at(64).verify.seconds[0] == 0.002
    with pytest.raises(ValueError, match=r"no table of 3 threads, only of \[1, 2\]"):
        load_capacity(path, threads=3)


@pytest.mark.filterwarnings("error")
def test_a_simulation_does_not_mind_where_a_table_is_from(path):
    changed = record()
    changed["provenance"]["system"]["processor"] = "Another CPU"
    write_json(path, changed)
    table = load_capacity(path, here=False)
    assert differences(table) == ["machine (Another CPU)"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r.update(format="companion.capacity/1"), "its format is not"),
        (lambda r: r.update(tables=[]), "it holds no table"),
        (lambda r: r.pop("provenance"), "lacks 'provenance'"),
        (lambda r: r["tables"][0].pop("verify"), "lacks 'verify'"),
        (lambda r: r["tables"][0].update(sizes=[4, 1, 16]), "that rise"),
        (lambda r: r["tables"][0].update(sizes=[0, 4, 16]), "from 1 on"),
        (lambda r: r["tables"][0].update(sizes=[1.0, 4, 16]), "whole numbers"),
        (lambda r: r["tables"][0]["verify"].__setitem__(0, [0.0, 0.1, 0.2]), "positive and finite"),
        (lambda r: r["tables"][0]["verify"].__setitem__(0, [-1, 0.1, 0.2]), "positive and finite"),
        (lambda r: r["tables"][0]["verify"].__setitem__(0, [0.1, 0.2]), "3 sizes and 2 times"),
        (lambda r: r["tables"][0]["verify"].__setitem__(0, ["fast", 0.1, 0.2]), "must be numbers"),
        (lambda r: r["tables"][0].update(verify=[]), "a curve for each"),
        (lambda r: r["tables"][0].update(contexts=[192, 64]), "rising contexts"),
        (lambda r: r["tables"][0].update(reads=[-0.1, 0.1]), "at least 0"),
        (lambda r: r["tables"][0]["draft"].update(requests=[]), "one of them at least"),
        (lambda r: r["tables"][0]["draft"]["seconds"].pop(), "every context needs drafting times"),
        (lambda r: r["tables"][0]["draft"].update(seconds=[0.001, 0.002]), "is no capacity table"),
        (lambda r: r["tables"][0]["draft"].update(seconds=[]), "no drafting times"),
        (lambda r: r["tables"][0].update(draft={}), "lacks 'requests'"),
        (lambda r: r["tables"][0].update(draft=0), "is no capacity table"),
        (lambda r: r["tables"][0].update(reads=0), "is no capacity table"),
        (lambda r: r["tables"][0].update(reads=[0.1, -0.1]), "at least 0"),
        (lambda r: r["tables"][0].update(reads=[10**400, 1]), "is no capacity table"),
        (lambda r: r["provenance"].update(system=["CPU"]), "is no capacity table"),
        (lambda r: r["provenance"].update(settings="all"), "is no capacity table"),
        (lambda r: r["provenance"].update(target="tiny"), "is no capacity table"),
    ],
)
def test_a_broken_table_is_refused_in_one_sentence(path, change, sentence):
    broken = record()
    change(broken)
    path.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=sentence) as caught:
        load_capacity(path, target=TARGET)
    assert "\n" not in str(caught.value)


def test_nan_and_what_is_no_json_are_refused(path):
    broken = record()
    broken["tables"][0]["verify"][0][1] = math.nan
    path.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match="positive and finite"):
        load_capacity(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is no capacity table"):
        load_capacity(path)
    path.write_text("[1, 2")
    with pytest.raises(ValueError, match="is no capacity table"):
        load_capacity(path)
    with pytest.raises(ValueError, match="cannot read the capacity table"):
        load_capacity(path.with_name("none.json"))


def test_one_size_one_context_and_gaps_are_fine(path):
    short = record()
    short["tables"] = [{"threads": 1, "contexts": [64], "sizes": [8], "verify": [[0.002]]}]
    write_json(path, short)
    capacity = load_capacity(path).at(500)
    assert [float(capacity.seconds(b, 3)) for b in (1, 8, 16)] == [0.002, 0.002, 0.004]


def cell(requests, depth, seconds, context=64):
    same = {"low": seconds, "median": seconds, "high": seconds}
    draft = Quartiles(low=0.001, median=0.001 * requests * (1 + depth), high=1.0)
    return Cell(
        threads=1,
        context=context,
        position=context,
        requests=requests,
        depth=depth,
        steps=3,
        draft=draft,
        verify=Quartiles(**same),
    )


def test_what_a_request_costs_is_told_from_what_its_tokens_cost():
    def seconds(b, r, context):
        return 0.002 + 0.0001 * b + (b % 3) * 0.0005 + r * 0.000001 * context

    grid = [(r, d, c) for r in (1, 2, 4, 8) for d in range(4) for c in (64, 192)]
    cells = [cell(r, d, seconds(r * (1 + d), r, c), c) for r, d, c in grid]
    table = table_of_cells(1, cells)
    assert table.reads == pytest.approx([0.000064, 0.000192])
    assert table.verify[0] == pytest.approx([seconds(b, 0, 64) for b in table.sizes]), "a jag was smoothed away"
    assert table.misfit < 1e-9
    by_depth = [[0.001 * r * (1 + d) for r in (1, 2, 4, 8)] for d in (1, 2, 3)]
    assert np.array(table.draft.seconds) == pytest.approx(np.array([by_depth] * 2))
    alone = table_of_cells(1, [cell(1, d, 0.001) for d in range(3)])
    assert alone.reads == [0.0], "one number of requests says nothing on what a request costs"


def test_one_disturbed_cell_does_not_decide_which_depth_is_quick():
    cells = [cell(2, d, 0.004) for d in range(8)]
    cells[3].draft.median = 0.1
    drafting = table_of_cells(1, cells).draft.seconds[0]
    assert [row[0] for row in drafting] == pytest.approx([0.002 * (1 + d) for d in range(1, 8)], rel=0.05)


def test_the_curve_of_another_context_is_off_by_what_it_leaves_out():
    cells = [cell(r, d, 0.002 * c / 64, c) for r in (1, 2) for d in range(2) for c in (64, 128)]
    errors = study.context_errors(table_of_cells(1, cells), cells)
    assert [(e.used, e.at) for e in errors] == [(64, 128), (128, 64)]
    assert errors[0].worst == pytest.approx(0.002 / 0.005)  # 2 ms of a step of 4 + 1
    assert errors[0].mean < 0 < errors[1].mean


def test_a_profile_is_measured_stored_and_read_again(tmp_path, one_thread):
    path = tmp_path / "cap.json"
    options = ["--threads", "1", "--requests", "1", "--requests", "2", "--contexts", "48", "--repeats", "3"]
    result = CliRunner().invoke(app, ["profile", *options, "--output", str(path), "--json"])
    assert result.exit_code == 0, result.output
    stored = study.Result.model_validate_json(path.read_text())
    assert {(c.requests, c.depth) for c in stored.cells} == {(r, d) for r in (1, 2) for d in range(8)}
    assert all(c.steps >= 3 and abs(c.position - 48) < study.GENERATED for c in stored.cells)
    assert stored.tables[0].sizes == sorted({r * (1 + d) for r in (1, 2) for d in range(8)})
    table = load_capacity(path, target=TARGET, drafter=DRAFTER)
    assert 0 < float(table.at(48).seconds(8, 1)) < 1
    assert 0 < table.provenance["yardstick"] == stored.tables[0].yardstick < 1
    drawn = figures_load.capacity(stored).axes[1].get_lines()[0]
    assert (
        drawn.get_ydata().tolist() == stored.tables[0].capacity.at(48).steps_per_second(drawn.get_xdata(), 2).tolist()
    )
    with pytest.raises(ValueError, match="nothing was measured on 2 threads"):
        figures_load.capacity(stored, 2)


def test_the_draft_model_is_described_before_it_is_timed(monkeypatch):
    monkeypatch.setattr(study, "measure", lambda *_: ([cell(1, d, 0.001) for d in range(3)], 0.001))
    assert study.run(study.Config(drafter="draft", threads=(1,))).provenance["drafter"]["name"] == "tiny-qwen3-draft"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"threads": ()}, "threads must be whole numbers"),
        ({"requests": (2, 1)}, "requests must be whole numbers"),
        ({"contexts": (8,)}, "contexts must exceed"),
        ({"repeats": 2}, "at least 3"),
        ({"drafter": "none"}, "measured with a drafter"),
        ({"drafter": "lookup"}, "no depth can be timed"),
        ({"contexts": (100_000,)}, "contexts may go up to"),
    ],
)
def test_a_profile_of_nothing_is_refused(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        study.run(study.Config(**config))
