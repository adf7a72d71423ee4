"""The wall-clock benchmark of drafters: the two rounds compute the same, the arithmetic of its ratios, its refusals."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from tiers import sampled
from typer.testing import CliRunner

import companion
from companion import figures, figures_bench
from companion.cli import app
from companion.drafters.dspark.checkpoint import load_dspark, save_dspark
from companion.drafters.dspark.model import DSparkModel
from companion.engine.load import ModelFolder
from companion.experiments import bench_drafters as study
from companion.experiments import draft_cost, round_stages, speedups
from companion.experiments.draft_cost import draft_times
from companion.experiments.timing import Race, held_out_prompts, transformers_model
from companion.experiments.transformers_round import TransformersDSpark, TransformersRound
from companion.provenance import write_json
from companion.resampling import prompt_weights
from companion.training.drafter_task import new_drafter
from companion.training.recipe import DrafterConfig, dflash_config

SMALL = study.Config(
    prompts=2, repeats=1, threads=(1,), max_new_tokens=12, gammas=(2, 3), proposals=1, context=8, resamples=50
)
RECIPES = {
    "dspark-0": DrafterConfig(layers=1, block_size=3),
    "gated-0": DrafterConfig(layers=2, head="gated"),
    "rnn-0": DrafterConfig(layers=1, head="rnn"),
    "dflash-1": dflash_config(layers=1),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drafters without any training: their drafts are wrong and their times right."""
    folder, target = tmp_path_factory.mktemp("zoo"), companion.load_target()
    for label, recipe in RECIPES.items():
        torch.manual_seed(0)
        model = new_drafter(recipe, target)
        assert isinstance(model, DSparkModel)
        with torch.no_grad():
            model.embed_tokens.weight.copy_(target.embedding)
            model.lm_head.weight.copy_(target.head)
        save_dspark(model, folder / label / "model", dtype=torch.float16)
        write_json(folder / label / "model" / "recipe.json", asdict(recipe))
    return folder


@pytest.fixture(scope="module")
def result(models: Path, tmp_path_factory: pytest.TempPathFactory) -> study.Result:
    """A whole run of one drafter, without the processes that measure memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "peak_of", lambda *_: 1.0)
        return study.run([models / "dspark-0" / "model"], SMALL, tmp_path_factory.mktemp("out") / "bench.json")


def measured(models: Path, label: str, break_it: Any = None) -> tuple[round_stages.Stages, round_stages.Yardstick]:
    target = companion.load_target()
    folder = models / label / "model"
    drafter = companion.load_drafter(str(folder), target)
    assert drafter is not None
    modules = TransformersDSpark(load_dspark(ModelFolder(folder, label), target))
    if break_it is not None:
        break_it(modules)
    prompts = {"math": held_out_prompts(target, 1, 0)["math"]}
    reference = transformers_model("tiny-qwen3", "cpu")
    (stages,), (yardstick,) = round_stages.measure(
        target, {label: drafter}, {label: modules}, reference, prompts, repeats=1, max_new_tokens=14
    )
    return stages, yardstick


@pytest.mark.parametrize("label", sampled(RECIPES, 2))
def test_the_round_in_transformers_modules_computes_what_ours_does(models: Path, label: str) -> None:
    stages, y = measured(models, label)
    assert y.outputs == (1, 1)
    assert y.drafts[0] == y.drafts[1] > 5
    assert (y.confidence_gap is None) == (label == "dflash-1")
    assert y.confidence_gap is None or y.confidence_gap < 1e-5
    assert None not in (stages.parallel, stages.sequential)
    assert stages.rounds == y.rounds > 5


def test_another_drafters_weights_would_show(models: Path) -> None:
    def break_it(modules: TransformersDSpark) -> None:
        modules.lm_head.weight.copy_(modules.lm_head.weight.roll(1, 0))

    _, y = measured(models, "dspark-0", break_it)
    assert y.outputs == (1, 1), "verification keeps the output right whatever was drafted"
    assert y.drafts[0] < y.drafts[1]
    bars = study._bars([], [y], SMALL)
    assert [b.verdict for b in bars] == ["inconclusive"], "a faster round that does other work is no result"


def test_a_clock_leaves_the_method_as_it_was() -> None:
    target, log = companion.load_target(), [0.0]
    own = dict(vars(target))
    with round_stages.clocked(target, "logits", log):
        target.logits([1, 2])
        with pytest.raises(ValueError, match="empty"):
            target.logits([])
    assert vars(target).keys() == own.keys()
    assert len(log) == 2


def test_stages_are_medians_and_break_even_is_the_round_over_a_plain_step() -> None:
    rounds = [{"draft": d, "verify": 5.0, "forward": 4.0, "parallel": 1.0, "sequential": 0.5} for d in (2.0, 2.0, 9.0)]
    stages = round_stages._stages("x", 1, round_stages._Seen(plain=[1.0, 4.0, 4.0], ours=[[rounds[:1], rounds[1:]]]))
    assert (stages.draft, stages.forward, stages.accept, stages.plain) == (2000.0, 4000.0, 1000.0, 4000.0)
    assert stages.breakeven == pytest.approx(7 / 4)
    with pytest.raises(ValueError, match="never drafted its whole block"):
        round_stages._stages("x", 1, round_stages._Seen(plain=[1.0], ours=[[[]]]))


def test_the_yardstick_is_a_ratio_over_prompts_with_their_interval() -> None:
    def theirs(seconds: float) -> TransformersRound:
        return TransformersRound([1], [], 0, seconds / 4, 3 * seconds / 4)

    ours = [[{"draft": 0.5, "verify": 0.5}], [{"draft": 1.0, "verify": 1.0}], []]
    seen = round_stages._Seen(
        ours=[ours, ours],
        theirs=[[[theirs(2.0)], [theirs(8.0)], [theirs(99.0)]], [[theirs(4.0)], [theirs(8.0)], [theirs(99.0)]]],
    )
    weights = prompt_weights(np.zeros(3, dtype=np.int64), 400, np.random.default_rng(0))
    y = round_stages._yardstick("x", 1, seen, weights)
    assert y.ratio == pytest.approx((3 + 8) / (1 + 2)), "a prompt without a round of ours was counted"
    assert (y.low, y.high) == (pytest.approx(3.0), pytest.approx(4.0))
    assert (y.rounds, y.draft) == (4, pytest.approx(750.0))


def race_of(plain: list[list[float]], ours: list[list[float]], tokens: int = 10) -> Race:
    """Two domains of two prompts; lookup and transformers as plain decoding."""
    found = Race()
    for domain in ("math", "chat"):
        for method, seconds in (("plain", plain), ("lookup", plain), ("x", ours), ("transformers", plain)):
            found.seconds[domain, method] = seconds
            found.tokens[domain, method] = [[tokens, tokens] for _ in seconds]
    return found


def test_a_speed_up_is_a_ratio_of_sums_of_medians_over_passes() -> None:
    found = race_of([[2.0, 6.0], [2.0, 6.0], [90.0, 6.0]], [[1.0, 2.0], [1.0, 2.0], [1.0, 70.0]])
    rows = {(r.domain, r.method): r for r in speedups.speedups(found, 1, 200, 0)}
    assert set(rows) == {(d, m) for d in ("all", "math", "chat") for m in ("plain", "lookup", "x", "transformers")}
    for domain in ("all", "math"):
        over = rows[domain, "x"].over_plain
        assert over.value == pytest.approx(8 / 3)
        assert 2.0 <= over.low < over.value < over.high <= 3.0
        assert rows[domain, "plain"].over_plain.low == rows[domain, "plain"].over_plain.high == 1.0
    assert rows["math", "x"].tokens_per_second == pytest.approx(20 / 3)
    assert rows["math", "x"].slowest == pytest.approx(20 / 71)


def test_a_method_that_makes_other_tokens_is_compared_by_the_token() -> None:
    found = race_of([[4.0, 4.0]], [[1.0, 1.0]])
    found.tokens["math", "x"] = [[5, 5]]
    rows = {(r.domain, r.method): r for r in speedups.speedups(found, 1, 20, 0)}
    assert rows["math", "x"].over_plain.value == pytest.approx(2.0)


def test_the_result_holds_every_part_and_reads_back(result: study.Result, tmp_path: Path) -> None:
    assert {s.method for s in result.speeds} == {"plain", "lookup", "dspark-0", "transformers"}
    assert {s.domain for s in result.speeds} == {"all", "math", "code", "chat"}
    assert [s.drafter for s in result.stages] == [y.drafter for y in result.yardsticks] == ["dspark-0"]
    cells = {(t.family, t.gamma, t.temperature) for t in result.draft_times}
    assert cells == {(f, g, t) for f in draft_cost.FAMILIES for g in (2, 3) for t in (0.0, 1.0)}
    assert result.identical["dspark-0"] == (6, 6)
    raw = {(t.domain, t.method): t for t in result.times}
    assert len(raw) == 3 * 4
    for s in result.speeds:
        if s.domain != "all":
            own = raw[s.domain, s.method]
            rates = [sum(own.tokens) / sum(one) for one in own.seconds]
            assert s.tokens_per_second == pytest.approx(float(np.median(rates)), rel=1e-3)
    assert set(result.peak_mib) == {"plain", "lookup", "dspark-0", "transformers"}
    assert [b.threshold for b in result.bars] == [1.8, 4.0, 2.0]
    assert result.bars[0].verdict == "fails", "an untrained drafter speeds nothing up"
    (drafter,) = result.provenance["settings"]["drafters"]
    assert drafter["name"] == "dspark-0"
    assert len(drafter["weights_sha256"]["model.safetensors"]) == 64
    path = tmp_path / "bench.json"
    write_json(path, result.model_dump(mode="json"))
    assert study.load(path).model_dump(mode="json") == result.model_dump(mode="json")
    runner = CliRunner()
    shown = runner.invoke(app, ["bench", "show", str(path), "--picture", str(tmp_path / "speed.png")])
    assert shown.exit_code == 0, shown.output
    assert "break-even" in " ".join(shown.output.split()).replace("brea…", "break-even")
    assert (tmp_path / "speed.png").stat().st_size > 1000


def test_the_figure_of_draft_times_keeps_all_of_its_panels_in_view(result: study.Result) -> None:
    whole, loop = figures_bench.draft_times(result).axes
    largest = max(t.high for t in result.draft_times if t.temperature == 0.0)
    assert whole.get_ylim()[1] > largest
    assert loop.get_ylim()[1] > max(t.sequential or 0 for t in result.draft_times)
    with pytest.raises(ValueError, match="nothing was raced on 2 threads"):
        figures_bench.drafter_speeds(result, threads=2)
    with pytest.raises(ValueError, match="nothing was timed on 2 threads"):
        figures_bench.round_stages(result, threads=2)


def test_a_drafter_has_one_name_and_one_colour_in_all_figures(result: study.Result) -> None:
    (ax,) = figures_bench.drafter_speeds(result).axes
    colours = {bars.get_label(): bars.patches[0].get_facecolor() for bars in ax.containers}
    assert colours == {
        "lookup": to_rgba(figures.DRAFTERS["lookup"][1]),
        "DSpark, seed 0": to_rgba(figures.DRAFTERS["dspark"][1]),
    }
    assert figures.look("dspark-think-5") == figures.DRAFTERS["dspark-think-5"], "5 is no seed"
    assert figures.look("dspark-think-5-2")[0] == "DSpark, 5 % thinking traces, seed 2"
    assert figures.look("mine-7") == ("mine-7", figures.BLACK, "h")
    assert figures.in_order(["mine", "dspark-1", "dspark-0", "lookup"]) == ["lookup", "dspark-1", "dspark-0", "mine"]


@pytest.mark.parametrize(("entries", "rows"), [(3, 1), (14, 2)])
def test_a_legend_takes_as_few_rows_as_fit(entries: int, rows: int) -> None:
    fig, ax = figures.figure("wide")
    for number in range(entries):
        ax.plot([0, 1], label=f"drafter {number}")
    figures.legend_below(fig, ax.get_legend_handles_labels()[0])
    fig.draw_without_rendering()
    (legend,) = fig.legends
    assert legend.get_window_extent().width <= fig.bbox.width
    heights = {round(text.get_window_extent().y0) for text in legend.get_texts()}
    assert len(heights) == rows


def test_the_parts_of_a_round_are_all_of_it(result: study.Result) -> None:
    (one,) = result.stages
    parts = figures_bench.stage_parts(one)
    assert list(parts) == list(figures_bench.PARTS)
    assert sum(parts.values()) == pytest.approx(
        max(one.draft, parts["parallel"] + parts["sequential"]) + one.forward + one.accept
    )
    single = one.model_copy(update={"parallel": None, "sequential": None})
    assert figures_bench.stage_parts(single)["drafting"] == one.draft
    bars, plane = figures_bench.round_stages(result).axes
    assert [label.get_text() for label in bars.get_yticklabels()] == ["DSpark, seed 0"]
    ((x, y),) = [line.get_xydata()[0] for line in plane.lines if line.get_marker() == "o"]
    assert (x, y) == (one.breakeven, one.tau)


def test_a_longer_autoregressive_draft_reads_more_and_a_parallel_one_only_its_loop(result: study.Result) -> None:
    mib = {(t.family, t.gamma): t.mib for t in result.draft_times}
    assert mib["dflash", 2] == mib["dflash", 3]
    assert mib["draft model", 3] == pytest.approx(1.5 * mib["draft model", 2])
    assert mib["dspark", 3] - mib["dspark", 2] == pytest.approx(32 * 1024 * 4 / 2**20)  # W_2 once more
    assert all(t.floor > 0 and t.low <= t.milliseconds <= t.high for t in result.draft_times)


def test_without_dspark_on_one_thread_nothing_is_judged(result: study.Result) -> None:
    others = [s.model_copy(update={"threads": 2}) for s in result.speeds]
    assert study._bars(others, [], SMALL) == []
    assert study.verdict([]) == "inconclusive"


@pytest.mark.parametrize(
    ("label", "expected"),
    [("dspark-3", True), ("tiny-qwen3-dspark", True), ("dspark", True), ("dspark-rnn-0", False), ("dflash-0", False)],
)
def test_only_the_plain_dspark_is_judged(label: str, expected: bool) -> None:
    assert study._is_dspark(label) == expected


@pytest.mark.parametrize(
    ("given", "changes", "sentence"),
    [
        ([], {}, "give at least one folder"),
        (["{models}/none"], {}, "there is no folder"),
        (["{empty}"], {}, "no finished drafter"),
        (["{models}", "{models}/dspark-0/model"], {}, "dspark-0 was given twice"),
        (["{models}"], {"repeats": 0}, "at least 1"),
        (["{models}"], {"threads": (0,)}, "at least 1"),
        (["{models}"], {"prompts": 1}, "at least 2"),
    ],
)
def test_refusals(models: Path, tmp_path: Path, given: list[str], changes: dict[str, Any], sentence: str) -> None:
    paths = [Path(path.format(models=models, empty=tmp_path)) for path in given]
    with pytest.raises(ValueError, match=sentence):
        study.run(paths, SMALL.model_copy(update=changes))


def test_drafters_are_found_by_folder_and_by_run(models: Path) -> None:
    assert list(study.find_drafters([models])) == ["dflash-1", "dspark-0", "gated-0", "rnn-0"]
    assert list(study.find_drafters([models / "rnn-0" / "model"])) == ["rnn-0"]


def test_a_draft_cost_without_numbers_is_refused() -> None:
    target = companion.load_target()
    with pytest.raises(ValueError, match="gammas and repeats >= 1"):
        draft_times(target, gammas=())
    with pytest.raises(ValueError, match="no draft model"):
        draft_times(target, draft="lookup", gammas=(2,))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"draft_times": 1}')
    with pytest.raises(ValueError, match="is no result of"):
        study.load(path)
    assert study.is_result(path)
    assert not study.is_result(tmp_path / "none.json")
