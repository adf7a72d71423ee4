"""The simulated loads as a study: intervals, curves, bars, questions, and the real runs it is held against."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from typer.testing import CliRunner

from companion import figures_serving
from companion.cli import app
from companion.engine.load import data_folder
from companion.experiments.anchor_recording import Recording
from companion.experiments.load import design
from companion.experiments.load import study as real_load
from companion.experiments.load.summary import Cell
from companion.experiments.simulation import frontier, study, tables
from companion.experiments.simulation.points import Estimate, Point, Served, estimate, loads
from companion.experiments.simulation.replays import replays
from companion.experiments.simulation.validation import bars, validate
from companion.scheduling.capacity_file import FORMAT
from companion.serving import Replay
from companion.training.corpus import DOMAINS

SMALL = study.Config(
    temperatures=(0.0,),
    policies=study.FEW,
    cpu=(1, 2),
    gpu=(1, 4),
    threads=(1,),
    asked_at=(2,),
    asked_at_gpu=(4,),
    seeds=2,
)


def capacity_record() -> dict[str, Any]:
    """Drafting takes 1 ms and 0.1 ms a token of depth; a forward 2 ms and 0.2 ms a token."""
    sizes, requests = [1, 2, 4, 8, 16], [1, 2]
    drafting = [[[1e-3 + 1e-4 * d + 1e-6 * at] * 2 for d in range(1, 8)] for at in (50, 200)]
    table = {
        "threads": 1,
        "contexts": [50, 200],
        "sizes": sizes,
        "verify": [[2e-3 + 2e-4 * b for b in sizes]] * 2,
        "reads": [1e-4, 4e-4],
        "draft": {"requests": requests, "seconds": drafting},
    }
    return {"format": FORMAT, "tables": [table], "provenance": {"system": {}, "settings": {}}}


@pytest.fixture(scope="module")
def capacity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capacity") / "capacity.json"
    path.write_text(json.dumps(capacity_record()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The shortest of the book's recorded responses: a folder of both drafters, and one of DSpark alone."""
    folders = tmp_path_factory.mktemp("anchors"), tmp_path_factory.mktemp("calibration")
    for drafter in ("dspark", "dflash"):
        whole = Recording.load(data_folder() / "results" / "anchors" / f"{drafter}-0-T0.npz")
        by_length = sorted((r for r in whole.responses if r.mode == "no_think"), key=lambda r: len(r.tokens))
        short = [r for d in DOMAINS for r in [r for r in by_length if r.domain == d][:4]]
        for folder in folders[: 2 if drafter == "dspark" else 1]:
            replace(whole, responses=short).save(folder / f"{drafter}-0-T0.npz")
    return folders


@pytest.fixture(scope="module")
def result(capacity: Path, recordings: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> study.Result:
    folder, (anchors, calibration) = tmp_path_factory.mktemp("study"), recordings
    options = {"anchors": anchors, "capacity": capacity, "calibration": calibration, "real": folder / "none.json"}
    found = study.run(folder / "result.json", SMALL, **options)
    assert study.load(folder / "result.json") == found
    return found


def test_what_is_arithmetic_says_so(result: study.Result) -> None:
    measured = {name: table["measured"] for name, table in result.tables.items()}
    assert measured == {"measured CPU, 1 thread": True, "analytic H200": False, "analytic H200, tiles of 128": False}
    assert all("not measured" in table["kind"] for table in result.tables.values() if not table["measured"])


def test_every_policy_at_every_load(result: study.Result) -> None:
    names = {*study.FEW, "same-step", "oracle"}
    places = {(p.table, p.concurrency, p.policy) for p in result.points}
    assert places == {
        (table, users, name)
        for table, at in (("measured CPU, 1 thread", SMALL.cpu), ("analytic H200", SMALL.gpu))
        for users in at
        for name in names
    }
    for p in result.points:
        assert p.budget == pytest.approx(1 + p.verified, rel=1e-5)  # results hold six digits
        assert p.wasted == pytest.approx(p.verified - p.accepted, abs=2e-5)
        assert p.policy != "oracle" or p.wasted < 0.05  # what the text's end cuts off
        assert p.policy != "plain" or p.budget == 1.0
        assert p.over_static is None or p.over_static.value > 0.2


def test_a_gain_is_the_product_of_its_parts(result: study.Result) -> None:
    for table, parts in (("measured CPU, 1 thread", 5), ("analytic H200", 6)):
        own = {p.part: p.factor.value for p in result.parts if p.table == table}
        assert len(own) == parts
        assert own["total"] == pytest.approx(np.prod([v for k, v in own.items() if k != "total"]), rel=0.02)
        assert own["whole block"] <= 1.0, "drafting more than is verified was said to save time"


def test_one_user_alone(result: study.Result) -> None:
    for e in result.empty:
        assert e.everything_accepted / e.whole_block.value == pytest.approx(8 / e.tau, rel=0.01)
        assert e.free_drafting > e.whole_block.value > e.plain * 0.5
    gpu = next(e for e in result.empty if e.table == "analytic H200")
    assert gpu.scheduled_over_whole.value == pytest.approx(1.0, abs=1e-6), "an empty GPU verifies all of the block"
    assert gpu.oracle_over_whole.value == pytest.approx(1.0, abs=1e-6)


def test_shares(result: study.Result) -> None:
    own = {s.what: s.share for s in result.shares}
    assert own["weights of its own, Qwen3-4B by arithmetic"] == pytest.approx(
        (5 * 100_925_440 * 2 + 2 * 256 * 151_936 * 2) / (2 * (36 * 100_925_440 + 151_936 * 2560)), rel=1e-5
    )
    assert own["time of a step, 1 at once, measured CPU, 1 thread"] == pytest.approx(
        1.7e-3 / (2e-3 + 2e-4 * 8 + 1e-4 + 2e-4 * 100 / 150 * 1.5), rel=0.1
    )


def test_pictures(result: study.Result) -> None:
    mpl.use("Agg")
    tables = ["measured CPU, 1 thread", "analytic H200"]
    figures_serving.frontier(result, tables)
    figures_serving.budgets(result, tables)
    figures_serving.parts(result)
    figures_serving.gaps(result)
    figures_serving.fairness(result, "analytic H200")
    with pytest.raises(ValueError, match="nothing was validated"):
        figures_serving.validation(result)
    with pytest.raises(ValueError, match="not among the tables"):
        figures_serving.frontier(result, ["another"])
    study.show(result)


# --- parts of it by hand --------------------------------------------------------------------------------------------


def test_an_interval_over_seeds() -> None:
    found = estimate(np.array([1.0, 2.0, 3.0]))
    assert found.low is not None
    assert found.high is not None
    assert (found.value, round(found.low, 3), round(found.high, 3)) == (2.0, 2.0 - 4.303, 2.0 + 4.303)
    assert estimate(np.array([1.0])).low is None


def point(policy: str, concurrency: int, throughput: float, speed: float) -> Point:
    given = {"throughput": throughput, "speed": speed}
    zeros = dict.fromkeys(("p10_speed", "budget", "drafted", "verified", "accepted", "wasted", "tau"), 0.0)
    return Point(
        table="t",
        temperature=0.0,
        concurrency=concurrency,
        policy=policy,
        **{k: Estimate(value=v, low=None, high=None) for k, v in given.items()},
        **zeros,
        step_seconds=1.0,
        drafting_share=0.0,
        over_plain=None,
        over_mtp=None,
        over_static=None,
    )


def test_a_frontier_read_off_by_hand() -> None:
    curve = [point("lagged", 1, 100, 100), point("lagged", 4, 300, 75), point("lagged", 8, 280, 35)]
    assert frontier.throughput_at(curve, 100) == 100
    assert frontier.throughput_at(curve, 101) is None
    assert frontier.throughput_at(curve, 87.5) == 200  # half way
    assert frontier.throughput_at(curve, 55) == 300, "more users would be slower and no more throughput"
    assert frontier.speed_at(curve, 290) == 77.5 - 1.25  # on the rising side
    assert frontier.speed_at(curve, 301) is None
    mtp = [point("fixed-1", 1, 60, 60), point("fixed-1", 4, 160, 40)]
    plain = [point("plain", 1, 40, 40), point("plain", 4, 120, 30)]
    found = {(a.policy, a.times_plain): a for a in frontier.agreements([*curve, *mtp, *plain])}
    assert found["lagged", 1.0].over_mtp == 300 / 160
    assert found["lagged", 2.0].throughput == pytest.approx(100 + 200 * 20 / 25)
    assert found["lagged", 2.0].over_mtp is None, "a ratio over what is not to be had"
    assert found["fixed-1", 2.0].throughput is None


def test_a_static_depth_drafts_less(capacity: Path) -> None:
    clock = tables.cpu(capacity, 1)
    assert [clock.capacity.at(125).drafting(1, d) for d in (1, 7)] == pytest.approx([1.225e-3, 1.825e-3])
    assert [clock.whole_block().capacity.at(125).drafting(1, d) for d in (0, 1, 7)] == pytest.approx(
        [0, 1.825e-3, 1.825e-3]
    )
    pool = [Replay.of(np.zeros((30, 7)), np.zeros((30, 7)), np.full((30, 7), 0.5), prompt_length=5)] * 4
    shares = {
        name: loads([name], clock, Served(pool, pool, 0.0), 1, [0])[name][0].drafting_share
        for name in ("plain", "fixed-1", "fixed-7", "lagged")
    }
    assert shares["plain"] == 0.0 < shares["fixed-1"] / (1 - shares["fixed-1"]) * 2.6e-3 < 1.3e-3
    gpu, dflash = (tables.gpu(rank).capacity.at(0) for rank in (256, 0))
    assert gpu.drafting(1, 1) < gpu.drafting(1, 7)
    assert dflash.drafting(1, 7) < gpu.drafting(1, 7)
    assert gpu.drafting(1, 1) > 5 * 2 * 100_925_440 / 4.8e12, "the whole block goes through the layers at any depth"


def test_validation_sees_a_table_that_is_wrong(capacity: Path, recordings: tuple[Path, Path]) -> None:
    raw = replays(Recording.load(recordings[1] / "dspark-0-T0.npz"))
    clock, served = tables.cpu(capacity, 1), Served(raw, raw, 0.0)
    found = loads(["plain", "fixed-3"], clock, served, 2, [0, 1])
    cells = [
        Cell.model_construct(
            setting="greedy",
            threads=1,
            concurrency=2,
            policy=name,
            tokens_per_second=float(np.mean([load.throughput for load in runs])),
            budget=float(np.mean([load.budget for load in runs])),
            tau=float(np.mean([load.committed for load in runs])),
            seconds=float(np.mean([load.step_seconds for load in runs])),
            steps=1,
            policy_share=0.01,
            yardstick=None,
        )
        for name, runs in found.items()
    ]
    setting = design.GREEDY.model_copy(update={"concurrency": (2,)})
    real = real_load.Result.model_construct(config=design.Config(settings=(setting,)), cells=cells)
    same = list(validate(real, lambda threads: clock, lambda name: served, [0, 1]))
    assert [v.policy for v in same] == ["plain", "fixed-3"]
    assert all(max(map(abs, (v.error, v.step_error, v.tau_error, v.budget_error))) < 1e-9 for v in same)
    assert max(abs(v.relative_error) for v in same) < 1e-9
    assert [b.verdict for b in bars(same)] == ["holds", "inconclusive", "holds"]
    cells[0].tokens_per_second *= 1.3
    wrong = list(validate(real, lambda threads: clock, lambda name: served, [0, 1]))
    assert [b.verdict for b in bars(wrong)] == ["fails", "inconclusive", "fails"]
    cells[1].tokens_per_second *= 1.3
    mood = list(validate(real, lambda threads: clock, lambda name: served, [0, 1]))
    assert [b.verdict for b in bars(mood)] == ["fails", "inconclusive", "holds"], "another hour favours no policy"
    clock.capacity.provenance["yardstick"] = 1.3e-3
    for cell in cells:
        cell.yardstick = 1e-3  # the machine was faster by as much as the runs were
    hour = list(validate(real, lambda threads: clock, lambda name: served, [0, 1]))
    assert [b.verdict for b in bars(hour)] == ["fails", "holds", "holds"]
    assert [b.verdict for b in bars([])] == ["inconclusive"] * 3
    assert not list(validate(real, lambda threads: clock, lambda name: None, [0, 1]))


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"seeds": 1}, "at least 2 for an interval"), ({"gpu": ()}, "gpu needs"), ({"cpu": (0,)}, "cpu needs")],
)
def test_settings_that_simulate_nothing(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        study.run(None, SMALL.model_copy(update=change))


def test_the_command_refuses_in_one_sentence(tmp_path: Path) -> None:
    broken, zeros = tmp_path / "capacity.json", capacity_record()
    zeros["tables"][0]["verify"][0][2] = 0.0
    real = data_folder() / "results" / "load_cpu.json"
    for arguments, record, sentence in (
        (["--anchors", str(tmp_path)], {}, "experiment anchors"),
        (["--capacity", str(broken)], capacity_record() | {"tables": []}, "holds no table"),
        (["--capacity", str(broken)], zeros, "positive and finite"),
        (["--capacity", str(tmp_path / "none.json")], {}, "there is no file"),
        (["--real", str(tmp_path)], {}, "there is no file"),
        (["--real", str(broken)], {}, "no result of"),
        (["--capacity", str(broken), "--real", str(real), "--quick"], capacity_record(), "went by another table"),
        (["--output", str(tmp_path)], {}, "cannot write"),
    ):
        broken.write_text(json.dumps(record), encoding="utf-8")
        found = CliRunner().invoke(app, ["experiment", "load-simulation", *arguments])
        assert found.exit_code == 1
        assert isinstance(found.exception, ValueError)
        assert sentence in str(found.exception)
    with pytest.raises(ValueError, match="no result of"):
        study.load(broken)
