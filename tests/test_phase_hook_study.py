"""The hook against the clock: time by phase, what rates and costs come from, bars, and a run that was killed."""

import json
import random
from itertools import groupby, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

import companion
from companion import figures_hook
from companion.cli import app
from companion.experiments.phase_hook import design, fit, race, study, summary
from companion.experiments.phase_hook.design import (
    AGAIN,
    CURVE,
    NOTE,
    OFF,
    ORACLE,
    PLAIN,
    SHIPPED,
    SHRUNK,
    SOLVED,
    Config,
)
from companion.experiments.phase_hook.race import Answer, Runner, Spent
from companion.experiments.settling import SETTLING, Settling
from companion.phase.rates import MeasuredRates
from companion.planning import CostModel
from companion.protocols import Sampling
from companion.scheduling.capacity import Capacity
from companion.scheduling.fixed import FixedDepth

SMALL = Config(drafters=("dspark",), temperatures=(0.0,), timed_rounds=3, max_new_tokens=240, resamples=50)
COSTS = fit.StepCosts(verify={1: 1.0, 8: 1.5}, draft=[0.3] * 7, other=0.0, rounds=24, busy=1.0)


def short(samples):
    """Chat answers are the shortest."""
    return [sample for sample in samples if sample.domain == "chat"]


@pytest.fixture(scope="module")
def target():
    return companion.load_target()


@pytest.fixture(scope="module")
def few():
    """Few prompts and arms, so that a whole study takes seconds."""
    prompts, arms = short(design.fitting(SMALL)), (PLAIN, OFF, SOLVED, CURVE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "fitting", lambda config: prompts)
        patch.setattr(study, "judging", lambda config: short(design.judging(config))[:2])
        patch.setattr(study, "arms", lambda deterministic, temperature: arms)
        yield patch


@pytest.fixture(scope="module")
def result(few, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hook")
    return study.run(folder / "hook.json", folder / "cases.jsonl", SMALL), folder


@pytest.fixture(scope="module")
def report(target):
    drafter, described = fit.load("dspark", target)
    samples = short(design.fitting(SMALL))
    return fit.full_drafts(target, drafter, described, samples, Sampling(0.0), max_new_tokens=240, seed=0)


def test_the_picture_holds_every_arm_that_was_measured(result):
    found, _ = result
    inside, outside = figures_hook.speeds(found, 0.0).axes
    labels = {line.get_label(): line for line in inside.lines}
    for arm in (OFF, SOLVED, CURVE):
        (ratio,) = (r for r in found.ratios if (r.arm, r.part, r.over) == (arm, "think", PLAIN))
        assert labels[arm].get_xdata().tolist() == [ratio.value]
    (ratio,) = (r for r in found.ratios if (r.arm, r.part, r.over) == (CURVE, "output", OFF))
    assert next(line for line in outside.lines if line.get_label() == CURVE).get_xdata().tolist() == [ratio.value]
    with pytest.raises(ValueError, match="nothing to draw"):
        figures_hook.speeds(found, 1.0)
    plt.close("all")


def test_a_whole_study(result):
    found, folder = result
    (case,) = found.cases
    assert [c.arm for c in found.cells] == [arm for arm in (PLAIN, OFF, SOLVED, CURVE) for _ in range(3)]
    assert {p.arm for p in case.planned} == {SOLVED, CURVE}
    assert {p.basis for p in case.planned} == {"measured_prior"}
    assert [c.tau for c in found.cells if c.arm == PLAIN] == [1.0] * 3
    assert all(c.depth == 0 for c in found.cells if c.arm == PLAIN)
    by_part = {(c.arm, c.part): c.tokens for c in found.cells}
    for arm in (PLAIN, OFF, SOLVED, CURVE):
        assert by_part[arm, "all"] == by_part[arm, "think"] + by_part[arm, "output"] == by_part[PLAIN, "all"]
    assert len(found.bars) == 4
    assert found.identical == {"dspark": (6, 6)}
    assert not case.answers, "a result holds sums, not every answer"
    assert case.banner.startswith("MEASURED - companion")
    assert "tiny-qwen3" in case.banner
    assert study.load_stored(folder / "hook.json") == found
    study.show(found)


def test_a_killed_study_goes_on(result, few):
    found, folder = result
    cut = folder / "cut.jsonl"
    whole = (folder / "cases.jsonl").read_text()
    cut.write_text(whole[:-9])  # the case was being written
    made, case = [], study.Case.model_validate_json(whole.splitlines()[-1])
    few.setattr(study, "measure", lambda *given: made.append(given[2]) or case)
    assert study.run(None, cut, SMALL).cells == found.cells
    assert made == ["dspark"]
    assert study.run(None, cut, SMALL).cells == found.cells
    assert made == ["dspark"], "what was done was measured again"
    with pytest.raises(ValueError, match="other weights, settings"):
        study.run(None, cut, SMALL.model_copy(update={"max_new_tokens": 200}))


def test_the_command(result, few):
    _, folder = result
    few.setattr(study.Config, "quick", lambda self: SMALL)
    answer = CliRunner().invoke(
        app, ["experiment", "phase-hook", "--quick", "--rows", str(folder / "cases.jsonl"), "--json"]
    )
    record = json.loads(answer.stdout)
    assert answer.exit_code == {"holds": 0, "fails": 1, "inconclusive": 3}[record["verdict"]]
    assert len(record["bars"]) == 4


# What is measured.


def test_time_and_tokens_are_divided_among_the_phases(target, monkeypatch):
    drafter = companion.load_drafter("draft", target)
    sample = short(design.fitting(SMALL))[0]
    made = Runner(target, drafter, FixedDepth(3), fit.request_of(target, sample, 0, Sampling(0.0), 0, 240))
    clock = iter(np.arange(10_000) * 0.5)
    monkeypatch.setattr(race.time, "perf_counter", lambda: float(next(clock)))
    steps = 0
    while not made.request.finish_reason:
        made.step()
        steps += 1
    found = made.answer(PLAIN, 0, "math", 0)
    rows = made.request.rounds
    assert found.think.tokens + found.output.tokens == sum(r.committed for r in rows) == len(made.request.emitted) - 1
    assert found.think.rounds + found.output.rounds == pytest.approx(len(rows))
    assert min(found.think.tokens, found.output.tokens) > 0
    inside = sum(r.phases.count("think") / r.committed for r in rows)
    assert found.think.rounds == pytest.approx(inside)
    assert found.think.drafted == pytest.approx(sum(r.drafted * r.phases.count("think") / r.committed for r in rows))
    assert found.straddling == sum(len(set(r.phases)) == 2 for r in rows)
    seconds = found.prefill_seconds + found.think.seconds + found.output.seconds
    assert found.prefill_seconds > 0
    assert steps == len(rows) + 1
    assert seconds >= 0.5 * steps


def test_all_arms_answer_and_share_a_drafter(target):
    drafter = companion.load_drafter("dspark", target)
    sample = design.fitting(SMALL)[1]
    runners = {
        depth: Runner(
            target,
            drafter if depth else None,
            FixedDepth(depth),
            fit.request_of(target, sample, depth, Sampling(0.0), 0, 40),
        )
        for depth in (0, 2, 7)
    }
    race.race(runners, random.Random(0))
    texts = {tuple(runner.request.emitted) for runner in runners.values()}
    assert len(texts) == 1
    assert max(r.accepted for r in runners[7].request.rounds) > 2


def test_costs_are_asked_at_every_depth(target):
    drafter, _ = fit.load("dspark", target)
    found = fit.step_costs(
        target, drafter, short(design.fitting(SMALL))[:2], Sampling(), rounds=3, max_new_tokens=60, seed=0
    )
    assert sorted(found.verify) == list(range(1, 9))
    assert len(found.draft) == 7
    assert min(found.draft) > 0
    assert found.capacity().seconds(1, 1, drafted=0) == pytest.approx(found.verify[1] + found.other)


def test_depths_are_timed_in_runs(target, monkeypatch):
    """A round of a depth that has just come takes longer: what counts is behind others of its depth."""
    seen: list[tuple[object, bool]] = []

    class Told(Settling):
        def settled(self, kind, seconds):
            seen.append((kind, super().settled(kind, SETTLING)))
            return seen[-1][1]

    monkeypatch.setattr(fit, "Settling", Told)
    drafter, _ = fit.load("dspark", target)
    prompts = short(design.fitting(SMALL))[:2]
    fit.step_costs(target, drafter, prompts, Sampling(), rounds=2, max_new_tokens=60, seed=0)
    runs = [(kind, sum(counts for _, counts in own)) for kind, own in groupby(seen, key=lambda pair: pair[0])]
    assert {kind for kind, _ in runs} == {None, *range(8)}, "what is no round of its depth counts for none"
    counted = dict.fromkeys(range(8), 0)
    for (kind, timed), (behind, _) in pairwise(runs):
        if kind is not None:
            counted[kind] += timed
            if behind is not None:  # no answer ended here, so that the run was its own to end
                assert counted[kind] % fit.RUN == 0, f"depth {kind} had to go early"


def test_a_line_says_how_costs_grow_with_depth():
    """One depth that was timed in a bad moment moves no other, and itself little."""
    verify = {1: 1.0, 2: 1.5, 3: 1.6, 4: 9.9, 5: 1.8, 6: 1.9}
    capacity = fit.StepCosts(verify=verify, draft=[0.3, 0.4, 0.5, 5.0, 0.7], other=0.1, rounds=60, busy=1.0).capacity()
    for depth in range(1, 6):
        assert capacity.seconds(1 + depth, 1, depth=depth) == pytest.approx(1.4 + 0.1 * depth + 0.1 + 0.2 + 0.1 * depth)
    assert capacity.seconds(1, 1, drafted=0) == pytest.approx(1.1)
    lookup = fit.StepCosts(verify={1: 1.0, 3: 1.5}, draft=[1e-9, 1e-9], other=0.1, rounds=9, busy=1.0).capacity()
    assert lookup.seconds(3, 1, depth=2) == pytest.approx(1.6)


def test_what_each_arm_plans_with(target, report):
    drafter, _ = fit.load("dspark", target)
    made = {
        arm: study.policy(arm, target, drafter, report, report, COSTS.capacity()) for arm in design.arms(False, 0.0)
    }
    assert (made[PLAIN].depth, made[OFF].depth, made[AGAIN].depth) == (0, 7, 7)
    assert made[NOTE].rates.definition == "token_acceptance"
    assert made[SOLVED].rates == MeasuredRates.from_report(report) == made[CURVE].rates
    assert (made[SOLVED].planner, made[CURVE].planner, made[ORACLE].planner) == ("iid", "curve", "curve")
    assert isinstance(made[SOLVED].costs, Capacity)
    assert made[design.PLACEHOLDERS].costs == CostModel()
    assert all(made[arm].min_depth == 0 and made[arm].baseline == 7 for arm in design.CALIBRATED)
    for phase in ("think", "output"):
        exact, measured = made[ORACLE].rates.of(phase), made[CURVE].rates.of(phase)
        assert exact.rate.low == exact.rate.value == measured.rate.value > measured.rate.low
        note = made[NOTE].rates.of(phase).rate
        assert note.high < made[SOLVED].rates.of(phase).rate.low, "tau / (gamma + 1) is no rate"


def test_only_deterministic_drafters_are_put_under_the_uncalibrated_hook(target):
    assert {SHIPPED, SHRUNK} < set(design.arms(True, 1.0))
    assert not {SHIPPED, SHRUNK} & ({*design.arms(False, 1.0), *design.arms(True, 0.0)})
    argmax, described = fit.load("dflash-argmax", target)
    assert (argmax.deterministic, described["name"]) == (True, "dflash-argmax")
    assert not fit.load("dflash", target)[0].deterministic
    assert fit.load("lookup", target)[1]["revision"].startswith("code ")


def test_judged_prompts_are_none_of_those_fitted_on():
    config = Config()
    fitted, judged = ({s.prompt for s in draw(config)} for draw in (design.fitting, design.judging))
    assert (len(fitted), len(judged)) == (3 * config.fitted, 3 * config.prompts)
    assert not fitted & judged


# What is made of it.


def answers(arm, seconds, tokens=100, output_seconds=1.0):
    """One answer to each of four prompts; ``seconds`` are those inside the span."""
    return [
        Answer(
            arm=arm,
            prompt=i,
            domain="math" if i < 2 else "chat",
            repeat=0,
            think=Spent(tokens=tokens, seconds=s, rounds=tokens / 2, drafted=3 * tokens / 2),
            output=Spent(tokens=tokens, seconds=output_seconds * s, rounds=tokens, drafted=0),
            straddling=1,
            prefill_seconds=9.0,
            running_seconds=9.0 + 2 * s,
            crc32=i,
            ended="stop",
        )
        for i, s in enumerate(seconds)
    ]


SLOW = np.array([1.0, 4.0, 1.0, 2.0])  # prompts on which the machine was slow, for all arms


def test_ratios_are_paired_by_prompt():
    known = [*answers(PLAIN, SLOW), *answers(OFF, 0.5 * SLOW), *answers(SOLVED, SLOW / 0.98)]
    found = {(r.arm, r.over, r.part): r for r in summary.ratios("d", 1.0, known, 200, 0)}
    one = found[SOLVED, PLAIN, "think"]
    assert (one.low, one.value, one.high) == pytest.approx((0.98,) * 3), "pairs were torn apart"
    assert found[SOLVED, OFF, "output"].value == pytest.approx(0.49)
    assert (OFF, OFF, "think") not in found
    cells = {(c.arm, c.part): c for c in summary.cells("d", 1.0, known)}
    assert (cells[OFF, "think"].tau, cells[OFF, "think"].depth) == (2.0, 3.0)
    assert cells[OFF, "all"].tokens_per_second == pytest.approx(800 / (2 * 0.5 * SLOW.sum()))
    assert cells[OFF, "all"].straddle_rate == pytest.approx(4 / 600)


def test_bars_are_those_set_beforehand():
    known = [*answers(PLAIN, SLOW), *answers(OFF, 0.9 * SLOW), *answers(SOLVED, SLOW / 0.98), *answers(CURVE, SLOW)]
    judged = summary.bars(summary.ratios("d", 1.0, known, 200, 0), summary.cells("d", 1.0, known))
    assert [(b.verdict, round(b.value, 3)) for b in judged] == [
        ("holds", 0.98),
        ("holds", 1.0),
        ("fails", round(0.98 * 0.9, 3)),
        ("fails", 0.9),
    ]
    assert "inside the span over plain decoding" in judged[0].name
    assert "outside the span over no hook" in judged[2].name


def test_what_was_timed_on_a_crowded_core_is_not_judged(result):
    known = [*answers(PLAIN, SLOW), *answers(OFF, SLOW), *answers(SOLVED, SLOW)]
    assert summary.busy(known) == pytest.approx(1.0)
    found, cells = summary.ratios("d", 1.0, known, 50, 0), summary.cells("d", 1.0, known)
    assert {b.verdict for b in summary.bars(found, cells)} == {"holds"}
    assert {b.verdict for b in summary.bars(found, cells, {("d", 1.0)})} == {"inconclusive"}
    assert {b.verdict for b in summary.bars(found, cells, {("d", 0.0)})} == {"holds"}
    idle = result[0].cases[0].model_copy(update={"busy": summary.busy(known), "costs": COSTS})
    assert not study.crowded(idle, SMALL)
    for crowd in (
        {"costs": COSTS.model_copy(update={"busy": 0.6})},
        {"busy": summary.busy([a.model_copy(update={"running_seconds": 2.0}) for a in known])},
    ):
        assert study.crowded(idle.model_copy(update=crowd), SMALL)
        assert not study.crowded(idle.model_copy(update=crowd), SMALL.model_copy(update={"threads": 2}))


@pytest.mark.parametrize(
    ("control", "verdict"), [(1.0, "holds"), (0.98, "holds"), (0.9, "inconclusive"), (1.1, "inconclusive")]
)
def test_nothing_is_judged_where_the_control_fails(control, verdict):
    """Two arms that do the same: where their times differ by more than prompts explain, the clock was disturbed."""
    known = [*answers(PLAIN, SLOW), *answers(OFF, SLOW), *answers(AGAIN, SLOW / control), *answers(SOLVED, SLOW)]
    found, cells = summary.ratios("d", 1.0, known, 50, 0), summary.cells("d", 1.0, known)
    assert summary.disturbed(found) == (set() if verdict == "holds" else {("d", 1.0)})
    assert {b.verdict for b in summary.bars(found, cells)} == {verdict}


def test_a_phase_that_never_came_is_inconclusive():
    known = [*answers(PLAIN, SLOW), *answers(OFF, SLOW), *answers(SOLVED, SLOW)]
    empty = [a.model_copy(update={"output": Spent()}) for a in known]
    judged = summary.bars(summary.ratios("d", 1.0, empty, 50, 0), summary.cells("d", 1.0, empty))
    assert [b.verdict for b in judged] == ["holds", "inconclusive"]


def test_identity_is_counted_against_plain():
    known = [*answers(PLAIN, SLOW), *answers(OFF, SLOW)]
    assert summary.identical(known) == (4, 4)
    known[5] = known[5].model_copy(update={"crc32": 77})
    assert summary.identical(known) == (3, 4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"drafters": ()}, "at least one drafter"),
        ({"drafters": ("none",)}, "leave it out"),
        ({"drafters": ("lookup", "lookup")}, "given twice"),
        ({"temperatures": ()}, "one temperature"),
        ({"prompts": 1}, "prompts must be at least 2"),
        ({"timed_rounds": 2}, "timed_rounds must be at least 3"),
        ({"drafters": ("no-such",)}, "no drafter 'no-such'"),
    ],
)
def test_a_study_of_nothing_is_refused(change, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        study.run(None, tmp_path / "rows.jsonl", SMALL.model_copy(update=change))
    assert not (tmp_path / "rows.jsonl").exists()
