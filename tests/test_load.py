"""Serving under load: what is counted is what the Rounds say, a killed run goes on, and policies change no output."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import companion
from companion import figures, figures_load
from companion.calibration import Temperatures
from companion.cli import app
from companion.engine.load import data_folder, find_model
from companion.experiments import turns
from companion.experiments.load import study, summary
from companion.experiments.load.design import GREEDY, MAIN, texts
from companion.experiments.load.policies import POLICIES, fitted, make, static_depth
from companion.experiments.load.serve import LoadedEngine, Run, RunKey, serve
from companion.protocols import Sampling
from companion.provenance import write_json
from companion.scheduling.capacity import CapacityTable, Curve
from companion.scheduling.capacity_file import FORMAT, engine_version
from companion.scheduling.ranking import as_drafted
from companion.training.corpus import DOMAINS, held_out_samples

TABLE = CapacityTable((64,), (Curve((1, 8, 64), (0.002, 0.003, 0.012)),), ((Curve((1, 8), (0.002, 0.006)),),))
SMALL = study.Config(
    settings=(
        GREEDY.model_copy(
            update={"concurrency": (2,), "policies": ("plain", "fixed-2", "fixed-3", "lagged"), "repeats": 2}
        ),
    ),
    window=30,
    window_each=5,
    max_new_tokens=60,
    resamples=50,
)


@pytest.fixture(scope="module")
def target():
    return companion.load_target()


@pytest.fixture(scope="module")
def capacity(tmp_path_factory):
    path = tmp_path_factory.mktemp("capacity") / "capacity.json"
    table = {"threads": 1, "contexts": [64], "sizes": [1, 8, 64], "verify": [[0.002, 0.003, 0.012]]}
    drafting = {"draft": {"requests": [1, 8], "seconds": [[[0.002, 0.006]]]}, "reads": [0.0]}
    here = {
        "system": companion.provenance.system(),
        "settings": {"engine_version": engine_version()},
        "target": {**find_model("tiny-qwen3").describe(), "dtype": "float32", "device": "cpu"},
        "drafter": find_model("dspark").describe(),
    }
    write_json(path, {"format": FORMAT, "tables": [table | drafting], "provenance": here})
    return path


@pytest.fixture(scope="module")
def result(capacity, tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    return study.run(folder / "load.json", folder / "rows.jsonl", SMALL, capacity), folder


def engine(target, policy="lagged", concurrency=2, temperature=1.0, window=60, max_new_tokens=40):
    drafter = None if policy == "plain" else companion.load_drafter("dspark", target)
    key = RunKey(setting="test", threads=1, concurrency=concurrency, policy=policy, repeat=0)
    prompts = [target.render(f"What is {n} plus {n + 2}?", thinking=False) for n in range(2, 7)]
    made = make(policy, TABLE, as_drafted, 7)
    options = {"sampling": Sampling(temperature), "max_new_tokens": max_new_tokens, "window": window, "seed": 0}
    return key, LoadedEngine(key, target, drafter, made, prompts, **options)


@pytest.mark.parametrize("policy", ["plain", "fixed-3", "lagged", "slot", "goodput"])
def test_counts_are_those_of_the_rounds(target, policy):
    key, made = engine(target, policy)
    seen = []
    step = made.step

    def watched():
        inside = made.measured.steps
        commits = step()
        if made.measured.steps > inside:
            seen.append(
                [(c, c.request.rounds[-1] if len(c.request.emitted) > len(c.tokens) else None) for c in commits]
            )
        return commits

    made.step = watched
    (run,) = serve({key: made})
    rounds = [row for commits in seen for _, row in commits if row is not None]
    assert run.steps == len(seen) > 3
    assert run.tokens == sum(len(c.tokens) for commits in seen for c, _ in commits) >= 60
    assert run.rounds == len(rounds)
    assert run.in_rounds == sum(r.committed for r in rounds)
    assert (run.drafted, run.verified, run.accepted) == tuple(
        sum(getattr(r, name) for r in rounds) for name in ("drafted", "verified", "accepted")
    )
    assert all(len(commits) == 2 for commits in seen), "the window holds a step in which a place was empty"
    assert run.verify_seconds + run.draft_seconds == pytest.approx(run.seconds)
    assert 0 <= run.policy_seconds < run.draft_seconds
    assert (run.verified == 0) == (policy == "plain")


def test_a_request_that_ends_makes_room_for_the_next_and_what_still_runs_is_given_up(target):
    key, made = engine(target, "fixed-3", concurrency=3, window=200)
    (run,) = serve({key: made})
    assert len(run.outputs) > 3
    assert run.prompt_tokens > 0
    assert run.speeds
    assert min(run.speeds) > 0
    assert not made._running
    assert made.cache.lengths == [0, 0, 0]
    assert len(made.drafter._unread) == 0, "the drafter still keeps what it was told of requests that were given up"


def test_other_engines_take_turns_and_are_not_counted(target, monkeypatch):
    monkeypatch.setattr(turns, "TURN", 0.0)  # after every step
    alone = [serve(dict([engine(target, policy, temperature=0.0)]))[0] for policy in ("plain", "fixed-3")]
    together = serve(dict(engine(target, policy, temperature=0.0) for policy in ("plain", "fixed-3")))
    for a, b in zip(alone, together, strict=True):
        assert (a.tokens, a.steps, a.outputs) == (b.tokens, b.steps, b.outputs)


def test_greedy_outputs_are_the_same_under_every_policy(target):
    runs = serve(dict(engine(target, policy, temperature=0.0, window=150) for policy in POLICIES))
    plain = runs[0].outputs
    for run in runs[1:]:
        both = plain.keys() & run.outputs.keys()
        assert len(both) >= 2
        assert all(plain[n] == run.outputs[n] for n in both), run.key.policy
    found = summary.identical(runs)
    assert all(same == compared > 0 for same, compared in found.values())
    runs[1].outputs[min(plain)] += 1
    assert summary.identical(runs)[runs[1].key.policy][0] == found[runs[1].key.policy][0] - 1


def test_a_whole_measurement(result):
    found, folder = result
    assert [c.policy for c in found.cells] == ["plain", "fixed-2", "fixed-3", "lagged"]
    for c in found.cells:
        assert c.tokens_per_second == pytest.approx(c.tokens / c.seconds)
        assert len(c.by_repeat) == 2
        assert 1 <= c.tau <= c.budget
        assert c.yardstick is not None
        assert 0 < c.yardstick < 1
        assert c.wasted_share == pytest.approx(1 - c.accepted / c.verified if c.verified else 0)
    assert {r.over for r in found.ratios} <= {"plain", "fixed-2", "fixed-3"}
    assert len(found.bars) == 1
    assert found.verdict == found.bars[0].verdict
    assert all(same == compared for same, compared in found.identical.values())
    assert study.load(folder / "load.json") == found
    study.show(found)


def test_a_killed_measurement_goes_on(result, capacity, monkeypatch):
    found, folder = result
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    cut = folder / "cut.jsonl"
    cut.write_text("".join(lines[:4]) + lines[4][:37])  # three runs, and a fourth that was being written
    served = []

    def watched(engines, *yardstick):
        served.append([key.policy for key in engines])
        return serve(engines, *yardstick)

    monkeypatch.setattr(study, "serve", watched)
    again = study.run(None, cut, SMALL, capacity)
    assert served[1:] == [["lagged"], ["plain", "fixed-2", "fixed-3", "lagged"]]  # the first one warms up
    assert [Run.model_validate_json(line).key for line in cut.read_text().splitlines()[1:4]] == [
        Run.model_validate_json(line).key for line in lines[1:4]
    ]
    assert {c.policy: c.by_repeat[0] for c in again.cells[:3]} == {c.policy: c.by_repeat[0] for c in found.cells[:3]}
    served.clear()
    assert study.run(None, folder / "rows.jsonl", SMALL, capacity).cells == found.cells
    assert not served


def test_rows_of_another_run_and_damaged_ones_are_refused(result, capacity, tmp_path):
    _, folder = result
    with pytest.raises(ValueError, match="other weights, settings or another machine"):
        study.run(None, folder / "rows.jsonl", SMALL.model_copy(update={"window": 31}), capacity)
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "broken.jsonl").write_text(lines[0] + "{}\n" + lines[2])
    with pytest.raises(ValueError, match="damaged"):
        study.run(None, tmp_path / "broken.jsonl", SMALL, capacity)
    with pytest.raises(ValueError, match="is no result of"):
        study.load(folder / "rows.jsonl")


def test_a_wrong_table_leaves_no_rows_behind(capacity, tmp_path):
    rows = tmp_path / "rows.jsonl"
    with pytest.raises(ValueError, match="cannot read the capacity table"):
        study.run(None, rows, SMALL, tmp_path / "none.json")
    two = SMALL.settings[0].model_copy(update={"threads": (1, 2)})
    with pytest.raises(ValueError, match="no table of 2 threads"):
        study.run(None, rows, SMALL.model_copy(update={"settings": (two,)}), capacity)
    assert not rows.exists()


def runs_of(policy, seconds, tokens=(100, 100, 100, 100)):
    return [
        Run(
            key=RunKey(setting="s", threads=1, concurrency=1, policy=policy, repeat=i),
            seconds=s,
            tokens=n,
            steps=1,
            rounds=1,
        )
        for i, (s, n) in enumerate(zip(seconds, tokens, strict=True))
    ]


def test_ratios_are_of_paired_repeats_and_over_the_fastest_depth():
    slow = np.array([1.0, 5.0, 1.0, 3.0])  # repeats that were slow for all
    runs = [
        *runs_of("plain", 2 * slow),
        *runs_of("fixed-1", slow),
        *runs_of("fixed-2", 1.25 * slow),
        *runs_of("lagged", slow / 0.98),
    ]
    found = {(r.policy, r.over): r for r in summary.ratios(runs, 200, 0)}
    assert ("lagged", "fixed-2") not in found
    one = found["lagged", "fixed-1"]
    assert (one.low, one.value, one.high) == pytest.approx((0.98,) * 3), "pairs were torn apart"
    assert found["lagged", "plain"].value == pytest.approx(1.96)
    (bar,) = summary.bars(list(found.values()), runs)
    assert bar.verdict == "holds"
    worse = [*runs[:12], *runs_of("lagged", slow / 0.96)]
    assert summary.bars(summary.ratios(worse, 200, 0), worse)[0].verdict == "fails"
    with pytest.raises(ValueError, match="same repeats"):
        summary.ratios(runs[:-1], 200, 0)


def test_policies_by_name():
    assert [static_depth(p) for p in ("plain", "fixed-3", "lagged")] == [0, 3, None]
    assert make("prefix-raw", TABLE, Temperatures.ones(7).one, 7).calibrate is as_drafted
    for name in POLICIES:
        assert make(name, TABLE, as_drafted, 7).name
    for name in ("fixed-8", "fixed-0", "fast"):
        with pytest.raises(ValueError, match=f"no policy '{name}'"):
            make(name, TABLE, as_drafted, 7)


def test_the_calibration_is_of_this_drafter_and_of_other_prompts():
    folder = data_folder() / "results" / "calibration"
    drafter = find_model("dspark").describe()
    assert fitted(folder, drafter, "1", False).values != fitted(folder, drafter, "1", True).values
    with pytest.raises(ValueError, match="not of the weights of dflash"):
        fitted(folder, find_model("dflash").describe(), "1", False)
    with pytest.raises(ValueError, match=r"not of 0\.3"):
        fitted(folder, drafter, "0.3", False)
    served = texts(MAIN, 0, 0)
    known = {p.prompt for d in DOMAINS for p in held_out_samples(d, "no_think", 60, seed=0)}
    assert len(served) > 60
    assert not known & set(served)
    assert served != texts(MAIN, 1, 0)


def test_one_confidence_is_calibrated_as_a_table_is():
    temperatures = Temperatures("x", (0.7, 1.0, 3.0))
    c = np.array([[0.0, 1e-9, 0.2], [0.5, 0.77, 0.999], [1.0, 1.0, 1.0]])
    one = [[temperatures.one(k + 1, float(v)) for k, v in enumerate(row)] for row in c]
    np.testing.assert_allclose(one, temperatures.apply(c), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"settings": ()}, "at least one setting"),
        ({"window": 0}, "at least one token"),
        ({"drafter": "none"}, "schedule by confidence"),
        ({"settings": (MAIN.model_copy(update={"repeats": 1}),)}, "at least 2"),
        ({"settings": (MAIN.model_copy(update={"concurrency": ()}),)}, "needs threads"),
    ],
)
def test_a_load_of_nothing_is_refused(change, sentence, tmp_path, capacity):
    with pytest.raises(ValueError, match=sentence):
        study.run(None, tmp_path / "rows.jsonl", SMALL.model_copy(update=change), capacity)


def test_figures(result):
    found, _ = result
    figures.use_style()
    drawn = figures_load.throughput(found, "greedy", 1, ("plain", "fixed-3", "lagged"))
    named = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert named == ["plain decoding", "depth 3", "deployed: two steps old, top K"]
    speeds = [line.get_ydata()[0] for line in drawn.axes[0].get_lines()]
    assert speeds == [c.tokens_per_second for c in found.cells if c.policy != "fixed-2"]
    spent = figures_load.budget(found, "greedy", 1)
    assert [line.get_ydata()[0] for line in spent.axes[0].get_lines()] == pytest.approx(
        [found.cells[2].budget, found.cells[3].budget]
    )
    with pytest.raises(ValueError, match="nothing was served in setting 'mixed'"):
        figures_load.throughput(found, "mixed", 1)


def test_the_command(capacity, tmp_path, monkeypatch):
    monkeypatch.setattr(study.Config, "quick", lambda self: SMALL)
    before = torch.get_num_threads()
    options = ["--quick", "--capacity", str(capacity), "--rows", str(tmp_path / "r.jsonl"), "--json"]
    answer = CliRunner().invoke(app, ["experiment", "load", *options])
    assert answer.exit_code in (0, 1)
    assert json.loads(answer.stdout)["verdict"] in ("holds", "fails")
    assert torch.get_num_threads() == before
