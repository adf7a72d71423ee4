"""Forced exit measured: what counts as right, what a rule would have done, and a run that is cut and goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from companion import figures_probe
from companion.cli import main
from companion.experiments.forced_exit import study, summary
from companion.experiments.forced_exit.checks import answered_sentences, answers, asked_sentences, checkable_samples
from companion.experiments.forced_exit.design import CUE, FAMILIES, Candidate, Config, candidates, check
from companion.experiments.forced_exit.outcomes import Foil, Table, settled_from
from companion.experiments.forced_exit.recording import Row, prompts, record
from companion.experiments.forced_exit.summary import choose, judged, tabled
from companion.phase.exit_rules import AnswerCertain, FixedLength, NoteExit, Watch
from companion.training.corpus import DOMAINS, Domain

SMALL = Config(tuning=1, judging=1, seeds=(0,), probe_every=32, chunk=2, live=1, max_new_tokens=450, resamples=50)


def row(
    index: int,
    domain: Domain = "math",
    places: str = "000011",  # right behind an exit at 0, 8, 16, ...
    seed: int = 0,
    cued: list[float] | None = None,
    **given: object,
) -> Row:
    n = len(places) - 1
    fields = {
        "split": "judging",
        "ended": True,
        "closed": True,
        "think_tokens": 8 * n + 3,
        "answer_tokens": 10,
        "right": True,
        "off_right": False,
        "off_tokens": 12,
        "exit_right": [p == "1" for p in places],
        "exit_tokens": [20] * (n + 1),
        "mass": [0.0] * n,
        "entropy": [0.1] * n,
        "max_p": [0.9] * n,
        "answer_entropy": {"": [0.0] * n, CUE: cued or [1.0] * n},
    }
    return Row(index=index, domain=domain, seed=seed, **(fields | given))  # type: ignore[arg-type]


def test_reference_answers_are_right_and_others_are_not() -> None:
    for domain in DOMAINS:
        for sample in checkable_samples(domain, 40, seed=9):
            assert answers(sample, sample.response, ended=True), sample
            assert not answers(sample, sample.response, ended=False)
            assert not answers(sample, sample.response.replace("</think>", ""), ended=True)
            other = sample.response + (" Tea is warm." if domain == "chat" else " The answer is 987654.")
            assert not answers(sample, other, ended=True)


def test_sentences_are_counted_without_the_grammars_frame() -> None:
    assert asked_sentences("What is good about tea? Answer in three sentences.") == 3
    assert asked_sentences("What is good about tea?") is None
    assert answered_sentences("Let me see. Tea is warm. My tip for the cup: taste it early. Have fun!") == 2
    assert answered_sentences("\n\nNo problem! Tea is warm and mild.") == 1
    assert answered_sentences("") == 0


def test_tuning_and_judging_prompts_are_disjoint_and_do_not_depend_on_their_number() -> None:
    config = Config(tuning=10, judging=15)
    for domain in DOMAINS:
        asked = [s.prompt for s in prompts(config, domain)]
        assert len(set(asked)) == 25
        assert [s.prompt for s in prompts(Config(tuning=10, judging=40), domain)][:25] == asked


def test_an_outcome_is_the_answer_behind_the_exit() -> None:
    table = Table([row(0), row(1, places="0101", right=False)], 8, 50)
    none = table.outcome(Watch(None))
    assert none.think.tolist() == [44, 28]  # the closing tag counts
    assert none.total.tolist() == [54, 38]
    assert none.right.tolist() == [1, 0]
    cut = table.outcome(FixedLength(24))
    assert cut.think.tolist() == [25, 25]
    assert cut.total.tolist() == [45, 45]
    assert cut.right.tolist() == [0, 1]
    assert cut.reasons(table.members("math")) == {"fixed_length": 2}
    longer = table.outcome(FixedLength(32))
    assert longer.right.tolist() == [1, 0]
    assert [e is None for e in longer.exits] == [False, True]  # the second thought ends before
    assert table.outcome(NoteExit()).exits == [None, None]
    with pytest.raises(ValueError, match="multiples"):
        table.outcome(FixedLength(12))


def test_a_thought_that_ended_the_response_is_left_before_its_last_token() -> None:
    """The model stops inside the span: behind that token no row was read, at whatever place it stands."""
    for tokens, probed in ((87, 10), (88, 10), (89, 11)):
        unclosed = row(0, places="1" * (probed + 1), think_tokens=tokens, closed=False, right=False)
        table = Table([unclosed], 8, 50)
        assert table.outcome(AnswerCertain(0.0, 0, 8)).exits == [None]  # asked at every place there is
        (left,) = table.outcome(FixedLength(80)).exits
        assert left is not None
        assert left.think_tokens == 80
        assert table.outcome(FixedLength(88)).right.tolist() == [float(tokens > 88)]


def test_an_interval_is_over_prompts_and_not_over_responses() -> None:
    """Ten copies of each prompt's response, one a seed, say no more than one of them."""
    once = [row(i, right=i % 2 == 0) for i in range(20)]
    often = [row(i, right=i % 2 == 0, seed=s) for i in range(20) for s in range(10)]
    ends = []
    for rows in (once, often):
        table = Table(rows, 8, 400)
        found = table.interval(table.outcome(Watch(None)).right, table.members("all"))
        assert found.value == 0.5
        ends.append((found.low, found.high))
    assert ends[0] == ends[1]
    assert ends[0][1] - ends[0][0] == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 20), abs=0.08)


def test_the_foil_gains_nothing_on_itself_and_a_signal_does() -> None:
    """Half of the prompts are answered right early, half late, and the cued entropy knows which."""
    early = [row(i, places="001111", cued=[1, 0, 0, 0, 0]) for i in range(20)]
    late = [row(20 + i, places="000001", cued=[1, 1, 1, 1, 0]) for i in range(20)]
    blind = [
        r.model_copy(update={"answer_entropy": {"": r.mass, CUE: [1.0, 0.0, 0.0, 0.0, 0.0]}}) for r in early + late
    ]
    rule = AnswerCertain(0.5, 0, 8, CUE)
    for rows, better in ((early + late, True), (blind, False)):
        table = Table(rows, 8, 200)
        foil = Foil(table, [table.outcome(FixedLength(n)) for n in range(0, 56, 8)])
        for n in (0, 16, 40):
            itself = foil.gain(table.outcome(FixedLength(n)), "all")
            assert (itself.value, itself.low, itself.high) == (0, 0, 0)
        gain = foil.gain(table.outcome(rule), "math")
        assert (gain.low > 0.2) is better
        if not better:
            assert gain.value == pytest.approx(0, abs=1e-9)


def test_settings_are_chosen_on_the_tuning_rows_alone() -> None:
    tuning = Table([row(i, places="000111", split="tuning") for i in range(10)], 8, 50)
    judging = Table([row(10 + i, places="000001") for i in range(10)], 8, 50)
    config = Config(margin=0.0, budget=0.5)
    found = tabled(config, {"tuning": tuning, "judging": judging})
    chosen = choose(config, found["tuning"])
    fixed = found["tuning"][chosen["fixed", "keep"]][0]
    assert fixed.setting == {"tokens": 24}
    assert found["tuning"][chosen["fixed", "budget"]][0].setting["tokens"] < 22
    assert ("certain", "keep") not in chosen  # it leaves at the floor, where no answer is right
    report = {
        (j.point.family, j.choice): j for j in judged(judging, found["judging"], chosen) if j.point.domain == "all"
    }
    assert report["fixed", "keep"].point.accuracy.value == 0.0  # and it is judged on others
    assert report["fixed", "keep"].over_none.value == -1.0
    clock = [j.clockwork for (family, _), j in report.items() if family == "converged" and j.point.exits]
    assert clock
    assert set(clock) == {1.0}  # with a mass of 0 every exit is where the clock says


def test_families_are_named_and_settings_told_apart() -> None:
    tried = list(candidates(8, 300))
    assert {c.family for c in tried} == set(FAMILIES)
    keys = [(c.family, tuple(c.setting.items())) for c in tried]
    assert len(set(keys)) == len(keys)
    assert all(json.dumps(c.described()) for c in tried)
    assert Candidate("note", NoteExit(), {}).described()["min_think_tokens"] == 512


def test_where_answers_settle() -> None:
    assert settled_from(row(0, places="001011")) == 4
    assert settled_from(row(0, places="111111")) == 0
    assert settled_from(row(0, places="000000")) == 6
    assert settled_from(row(0, places="001111", right=False)) is None


@pytest.mark.parametrize(
    "given",
    [{"tuning": 0}, {"probe_every": 12}, {"seeds": ()}, {"seeds": (1, 1)}, {"resamples": 1}, {"live": 0}],
)
def test_a_design_that_measures_nothing_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        check(Config(**given))  # type: ignore[arg-type]


FEW = ("none", "note", "fixed", "converged", "settled-cued")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, study.Result]]:
    """A run of a few families only: every chosen rule is decoded once more, live."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("forced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "candidates", lambda *at: [c for c in candidates(*at) if c.family in FEW])
        yield folder, study.run(SMALL, folder / "result.json", folder / "rows.jsonl")


def test_a_small_run_holds_together(measured: tuple[Path, study.Result]) -> None:
    folder, result = measured
    assert result.verdict == "holds"
    assert [bar.trials for bar in result.bars] == [3, 3 * len({json.dumps(j.rule) for j in result.judged})]
    assert result.note_exits == 0
    assert 100 < result.longest_span < 512
    assert {r.domain for r in result.references} == {"all", *DOMAINS}
    full = next(p for p in result.points if (p.family, p.split, p.domain) == ("none", "judging", "all"))
    assert full.responses == 3
    assert not full.exits
    assert result.provenance["target"]["name"] == "tiny-qwen3"
    assert study.load(folder / "result.json") == result
    study.show(result)


def test_a_killed_run_ends_with_the_same_rows(measured: tuple[Path, study.Result], tmp_path: Path) -> None:
    """Cut within a row of the last chunk, which is decoded anew as a whole."""
    folder, _ = measured
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 7
    cut = tmp_path / "rows.jsonl"
    cut.write_text("".join(lines[:6]) + lines[6][:40])
    again, _ = record(SMALL, cut)
    assert cut.read_text() == "".join(lines)
    assert len(again) == 6
    with pytest.raises(ValueError, match="other weights, settings"):
        record(SMALL.model_copy(update={"temperature": 1.0}), cut)
    record(SMALL.model_copy(update={"margin": 0.5}), cut)  # what only the summary reads decides no row


def test_figures_draw_what_was_stored(measured: tuple[Path, study.Result]) -> None:
    _, result = measured
    for trace in result.traces:
        top, *_ = figures_probe.trace(trace).axes
        assert len(top.lines[0].get_xdata()) == len(trace.pieces)
        assert len(trace.probed) == len(trace.answer_entropy[CUE]) == trace.phases.count("think") - 2
    fig = figures_probe.accuracy(result)
    assert [axes.get_title(loc="left") or axes.get_title() for axes in fig.axes] == list(DOMAINS)
    with pytest.raises(ValueError, match="no rule family 'magic'"):
        figures_probe.accuracy(result, ["magic"])
    (axes,) = figures_probe.entropies({"math": [(["think", "think", "output"], [0.0, 1.0, 2.0])]}).axes
    inside, outside = axes.lines
    assert inside.get_xdata().tolist()[-2:] == [0.0, 1.0]
    assert outside.get_xdata().tolist()[-1] == 2.0
    with pytest.raises(ValueError, match="no think span"):
        figures_probe.trace(result.traces[0].model_copy(update={"phases": ["output"]}))
    plt.close("all")


@pytest.mark.parametrize(("verdict", "code"), [("holds", 0), ("fails", 1), ("inconclusive", 3)])
def test_the_verb_says_how_it_went(
    measured: tuple[Path, study.Result],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: str,
    code: int,
) -> None:
    asked: list[Config] = []

    def ran(config: Config, *_: object) -> study.Result:
        asked.append(config)
        return measured[1].model_copy(update={"verdict": verdict})

    monkeypatch.setattr(study, "run", ran)
    monkeypatch.setattr(sys, "argv", ["companion", "experiment", "forced-exit", "--quick", "--seed", "4", "--json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == code
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict
    assert asked[0] == Config(seeds=(4,)).quick()
