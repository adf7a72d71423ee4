"""Phase 1's verdicts on recordings whose acceptance is known: each of them, and what each contrast must say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from phase_tables import DOMAINS, same, table
from test_cli import run

from companion.accepted_length import tau
from companion.experiments.phase_gap import study
from companion.experiments.phase_gap.confidence import calibration
from companion.experiments.phase_gap.contrasts import Contrasts, groups_of
from companion.experiments.phase_gap.gaps import Contrast, gaps
from companion.experiments.phase_gap.stored import save_arm
from companion.experiments.phase_gap.study import Analysis, demands, summarise
from companion.experiments.phase_gap.subsample import subsamples
from companion.rounds import Rounds

FEW = Analysis(resamples=200)


def inside(contrast: Contrast, value: float) -> bool:
    return contrast.low is not None and contrast.high is not None and contrast.low <= value <= contrast.high


def half_width(contrast: Contrast) -> float:
    assert contrast.low is not None
    assert contrast.high is not None
    return (contrast.high - contrast.low) / 2


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (same(0.3, 0.7, 0.7), "supported"),
        (same(0.7, 0.3, 0.7), "opposite_direction"),
        (same(0.5, 0.5, 0.5), "no_resolvable_gap"),
        (
            {"math": {"think": 0.2, "output": 0.3, "off": 0.3}, "code": {"think": 0.85, "output": 0.9, "off": 0.9}},
            "within_domain_variation",
        ),
    ],
)
def test_every_verdict_comes_out_where_it_must(rates: dict[str, dict[str, float]], expected: str) -> None:
    found = list(gaps(table(rates, prompts=60)))
    assert [g.domain for g in found] == list(DOMAINS)
    assert {g.verdict for g in found} == {expected}
    for gap in found:
        own = rates[gap.domain]
        assert gap.gap.value == pytest.approx(float(tau(own["think"], 5) - tau(own["output"], 5)), abs=0.35)
        assert gap.claim is not None
        assert gap.claim.startswith("Scope: made-up")
        assert "about made-up with none, and about no other pair" in gap.claim


def test_a_phase_without_steps_leaves_the_matter_open() -> None:
    found = summarise([table(same(0.5, 0.5, 0.5), thinking=False)], FEW)
    assert {g.verdict for g in found.gaps} == {"insufficient_data"}
    assert not any(g.claim for g in found.gaps)
    assert found.verdict == "inconclusive"


def test_one_domain_has_nothing_to_compare_its_gap_with() -> None:
    one = table({"math": same(0.2, 0.8, 0.8)["math"]})
    assert one.provenance is not None
    one.provenance["settings"]["prompts"] = {"math": 20}
    (gap,) = gaps(one)
    assert (gap.verdict, gap.between_domain_gap, gap.claim) == ("insufficient_data", None, None)
    assert gap.gap.value is not None
    assert gap.gap.value < 0


def test_steps_across_the_boundary_are_counted_and_stop_the_verdict_above_the_line() -> None:
    many = table(same(0.5, 0.9, 0.9), rounds=2, straddling=True)
    few = table(same(0.5, 0.9, 0.9), rounds=40, straddling=True)
    over, under = next(gaps(many)), next(gaps(few))
    assert over.straddle_rate is not None
    assert under.straddle_rate is not None
    assert over.straddle_rate > 0.05 > under.straddle_rate > 0
    assert (over.verdict, under.verdict) == ("straddle_stop_line", "supported")
    assert over.claim is None
    assert summarise([many], FEW).verdict == "inconclusive"
    whole = {p: next(gaps(few, p)).think.steps for p in ("exclude", "to_think", "to_output", "by_token")}
    assert whole["exclude"] == whole["to_output"] < whole["by_token"] < whole["to_think"]


def test_the_control_pairs_conditions_by_prompt() -> None:
    """A prompt that is easy is so with thinking on and off: paired, the difference is known far better than apart."""
    gap = next(gaps(table(same(0.5, 0.5, 0.5), prompts=40, spread=0.35)))
    apart = np.hypot(*(half_width(side.length) for side in (gap.think, gap.off)))
    assert half_width(gap.think_minus_off) < 0.6 * apart
    assert inside(gap.think_minus_off, 0.0)
    assert inside(gap.output_minus_off, 0.0)
    hard = next(gaps(table(same(0.2, 0.5, 0.5), prompts=40)))
    assert not inside(hard.think_minus_off, 0.0)


def test_matched_positions_compare_only_where_both_have_steps() -> None:
    """Both modes begin at token 10; the output after a long span lies where thinking off never comes."""
    found = next(gaps(table(same(0.8, 0.5, 0.5), rounds=12)))
    assert found.think_matched is not None
    assert 0 < found.think_matched.first_covered < 1  # the span is longer
    assert not inside(found.think_matched.difference, 0.0)
    far = next(gaps(table(same(0.95, 0.5, 0.3), rounds=30)))
    assert far.output_matched is None


# --- several seeds, several drafters -------------------------------------------------------------------------------


def zoo(gap_of_seed: tuple[float, ...] = (0.3, 0.32, 0.28), mixed: float = 0.7) -> list[Rounds]:
    found = []
    for seed, think in enumerate(gap_of_seed):
        found.append(table(same(think, 0.7, 0.7), seed=seed, drafter_seed=seed))
        for share in (0.5, 1.0):
            rates = same(mixed, 0.7, 0.7)
            name = f"dspark-think-{100 * share:g}"
            found.append(
                table(rates, seed=10 + seed, drafter_seed=seed, drafter_name=name, think_share=share, family="f")
            )
    return found


def test_the_difference_in_differences_sees_what_training_did() -> None:
    found = summarise(zoo(), FEW)
    assert {(d.first, d.second) for d in found.differences} == {
        ("dspark", "dspark-think-50"), ("dspark", "dspark-think-100"),
    }  # fmt: skip
    assert all(d.value.high is not None and d.value.high < 0 for d in found.differences)
    assert found.verdict == "holds"
    assert len(found.bars) == 3  # both domains, and all, against the drafter with half
    assert {dose.side: (dose.slope.low or 0) > 0 for dose in found.doses if dose.domain == "all"} == {
        "think": True, "output": False, "off": False, "gap": True,
    }  # fmt: skip
    assert [g.claim is None for g in found.gaps if g.drafter == "dspark"] == [False] * 2 + [True] * 4


def test_without_an_effect_of_training_the_demand_fails() -> None:
    assert summarise(zoo(mixed=0.3), FEW).verdict == "fails"


def test_drafters_of_another_family_are_not_compared() -> None:
    tables = zoo()
    for t in tables:
        assert t.provenance is not None
        if t.provenance["settings"]["drafter_name"] != "dspark":
            t.provenance["settings"]["family"] = "another"
    assert summarise(tables, FEW).differences == []


def test_seeds_that_disagree_widen_the_interval() -> None:
    def width(tables: list[Rounds]) -> float:
        groups = groups_of([t for t in tables if (t.provenance or {})["settings"]["drafter_name"] == "dspark"])
        contrast = next(Contrasts(groups, dict.fromkeys(DOMAINS, 20), 500, 0).pooled()).gap
        assert contrast.low is not None
        assert contrast.high is not None
        return contrast.high - contrast.low

    assert width(zoo((0.1, 0.4, 0.7))) > 2 * width(zoo((0.4, 0.4, 0.4)))


def test_pooled_sides_and_curves_are_those_of_the_rates() -> None:
    found = summarise([table(same(0.3, 0.7, 0.8), prompts=60, seed=s, drafter_seed=s) for s in range(2)], FEW)
    whole = next(p for p in found.pooled if p.domain == "all")
    for side, rate in (("think", 0.3), ("output", 0.7), ("off", 0.8)):
        assert getattr(whole, side).value == pytest.approx(float(tau(rate, 5)), abs=0.1)
        curve = [p for p in found.points if (p.domain, p.side) == ("all", side)]
        assert [p.position for p in curve] == list(range(1, len(curve) + 1))
        assert curve[0].rate.value == pytest.approx(rate, abs=0.03)


def test_two_trainings_under_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="were trained differently"):
        groups_of([table(same(0.5, 0.5, 0.5)), table(same(0.5, 0.5, 0.5), drafter_seed=1, think_share=0.5)])


def test_few_prompts_resolve_nothing() -> None:
    made = table(same(0.4, 0.5, 0.5), prompts=60, rounds=8)
    assert "no_resolvable_gap" not in {g.verdict for g in gaps(made)}
    small = [s for s in subsamples(made) if s.prompts <= 3]
    assert small
    assert {s.verdict for s in small} == {"no_resolvable_gap"}


# --- H2 ------------------------------------------------------------------------------------------------------------


def test_a_forecast_that_is_right_has_no_excess_and_an_error_at_its_floor() -> None:
    made = table(same(0.3, 0.7, 0.7), prompts=60, confidence={"think": 0.3, "output": 0.7, "off": 0.7})
    for found in calibration(made, 200, 0):
        for error in (found.think, found.output, found.off):
            assert error.ece.value is not None
            assert error.floor is not None
            assert error.ece.value < error.floor + 0.03
        assert inside(found.excess_difference, 0.0)


def test_a_head_that_does_not_know_the_span_is_further_off_inside_it() -> None:
    """It forecasts 0.7 everywhere, and is right outside."""
    made = table(same(0.3, 0.7, 0.7), prompts=60, confidence=dict.fromkeys(("think", "output", "off"), 0.7))
    for found in calibration(made, 200, 0):
        assert found.think.first_excess.value == pytest.approx(0.4, abs=0.05)
        assert inside(found.output.first_excess, 0.0)
        for difference in (found.difference, found.first_difference, found.excess_difference):
            assert difference.low is not None
            assert difference.low > 0.1
    assert list(calibration(table(same(0.3, 0.7, 0.7)), 200, 0)) == []


def test_an_interval_lies_around_its_estimate_and_shrinks_with_prompts() -> None:
    def width(prompts: int) -> float:
        rates = {"think": 0.5, "output": 0.5, "off": 0.5}
        found = next(calibration(table(same(0.5, 0.5, 0.5), prompts=prompts, confidence=rates), 200, 0)).difference
        assert found.value is not None
        assert found.low is not None
        assert found.high is not None
        assert found.high - found.value == pytest.approx(found.value - found.low, abs=1e-4)
        return found.high - found.low

    assert width(80) < 0.8 * width(20)


# --- the command ---------------------------------------------------------------------------------------------------


def test_a_folder_is_judged_and_the_verdict_decides_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rates, expected in (("a", same(0.2, 0.8, 0.8), 0), ("b", same(0.8, 0.2, 0.8), 1)):
        folder = tmp_path / name
        save_arm(table(rates, confidence=dict.fromkeys(rates["math"], 0.5)), folder / "x.npz", confidence=True)
        arguments = ("--stored", "--rounds", str(folder), "--resamples", "50", "--output", str(tmp_path / "r.json"))
        code, out, _ = run(capsys, monkeypatch, "experiment", "phase-gap", *arguments)
        assert code == expected
        assert "verdict:" in out
        assert "made-up" in out
        result = study.load(tmp_path / "r.json")
        assert result.verdict == ("holds", "fails")[expected]
        assert result.calibration
    save_arm(table(same(0.2, 0.8, 0.8), thinking=False), tmp_path / "c" / "x.npz", confidence=False)
    code, out, _ = run(
        capsys, monkeypatch, "experiment", "phase-gap", "--stored", "--rounds", str(tmp_path / "c"), "--json"
    )
    assert code == 3
    assert json.loads(out)["verdict"] == "inconclusive"
    assert json.loads(out)["gaps"][0]["gap"]["value"] is None
    code, _, err = run(capsys, monkeypatch, "experiment", "phase-gap", "--stored", "--rounds", str(tmp_path / "none"))
    assert code == 1
    assert "holds no finished recording" in err


def test_straddling_rounds_count_where_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = table(same(0.5, 0.9, 0.9), straddling=True)
    save_arm(made, tmp_path / "x.npz", confidence=False)
    steps = {}
    for policy in ("exclude", "to_think", "to_output", "by_token"):
        arguments = ("--stored", "--rounds", str(tmp_path), "--resamples", "20", "--straddle", policy, "--json")
        _, out, _ = run(capsys, monkeypatch, "experiment", "phase-gap", *arguments)
        gaps = json.loads(out)["gaps"]
        steps[policy] = [sum(g[side]["steps"] for g in gaps) for side in ("think", "output")]
        straddling = sum(g["straddling"] for g in gaps)
    (inside, outside), n = steps["exclude"], straddling
    assert n > 0
    assert steps["to_think"] == [inside + n, outside]
    assert steps["to_output"] == [inside, outside + n]
    assert sum(steps["by_token"]) == pytest.approx(inside + outside + n)
    assert inside < steps["by_token"][0] < inside + n


def test_a_dry_run_decodes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rounds"
    arguments = ("experiment", "phase-gap", "--quick", "--dry-run", "--rounds", str(folder))
    code, out, _ = run(capsys, monkeypatch, *arguments, "--json")
    cost = json.loads(out)
    assert (code, cost["recordings"], cost["responses"]) == (0, 2, 2 * 2 * 3 * 6)
    assert not folder.exists()
    code, out, _ = run(capsys, monkeypatch, *arguments)
    assert "nothing was decoded" in out
    code, _, err = run(capsys, monkeypatch, *arguments, "--prompts", "nowhere.jsonl")
    assert code == 1
    assert err.count("\n") == 1


def test_demands_are_open_where_an_interval_is_missing() -> None:
    found = summarise(zoo()[:3], FEW)  # one training seed: an interval over prompts alone
    assert [bar.verdict for bar in found.bars] == ["holds"] * 3
    nothing = [d.model_copy(update={"value": Contrast(value=None, low=None, high=None)}) for d in found.differences]
    assert {bar.verdict for bar in demands(found.gaps, nothing)} == {"inconclusive"}
    assert np.isfinite([bar.value or np.nan for bar in found.bars]).all()
