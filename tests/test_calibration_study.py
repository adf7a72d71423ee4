"""The calibration study on heads made by hand: what is wrong with them is known, and must be found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from typer.testing import CliRunner

from companion.calibration import F64, Temperatures, survival_forecasts
from companion.cli import app
from companion.compact import load_compact
from companion.experiments import calibration as study
from companion.experiments.anchor_blocks import Blocks
from companion.experiments.anchor_recording import Anchored, Recording
from companion.experiments.calibration_blocks import Judged, load, of_rounds, prompt_index
from companion.experiments.calibration_ranking import ranking
from companion.metrics import by_prompt
from companion.training.corpus import DOMAINS, Mode

STOP, DEPTH = 1, 3
Head = Callable[[np.random.Generator, int], tuple[F64, F64]]  # -> logits of the truth, logits of the head, [n, K]
QUICK = study.Config(resamples=60)
SHARES = np.full(3, 1 / 3)


def slots(generator: np.random.Generator, n: int) -> F64:
    """A difficulty of its own for every slot."""
    return generator.normal(1.2, 1.5, (n, DEPTH))


def honest(generator: np.random.Generator, n: int) -> tuple[F64, F64]:
    true = slots(generator, n)
    return true, true


def bold(generator: np.random.Generator, n: int) -> tuple[F64, F64]:
    true = slots(generator, n)
    return true, true * 2.5


def recording(
    head: Head, mode: Mode = "no_think", temperature: float = 1.0, prompts: int = 40, length: int = 41, seed: int = 0
) -> Recording:
    generator, found = np.random.default_rng([seed, int(10 * temperature), mode == "think"]), []
    for domain in DOMAINS:
        for i in range(prompts):
            n = length - 1
            true, logits = head(generator, n)
            chance, zeros = expit(true), np.zeros(true.shape)
            drafted = np.where(generator.random(true.shape) < 0.02, STOP, 5)
            blocks = Blocks(
                drafted, generator.random(true.shape) < chance, zeros, zeros, chance, chance, zeros, zeros, logits, 0.0
            )
            phases: Any = ["output"] * length if mode == "no_think" else ["think"] * 30 + ["output"] * (length - 30)
            found.append(Anchored(f"{domain}/{mode}/{i}", domain, mode, 9, [5] * length, phases, "length", blocks))
    weights = {"model.safetensors": "5554"}
    provenance = {
        **dict.fromkeys(("thinking", "prompt_set", "harness", "system", "recorded_at")),
        "target": {"name": "t", "weights_sha256": {"model.safetensors": "aa"}},
        "drafter": {"name": "made", "weights_sha256": weights},
        "sampling": {"temperature": temperature},
        "seeds": [0],
        "settings": {"prompts": prompts},
        "depth": DEPTH,
    }
    return Recording(found, DEPTH, 1, (STOP,), provenance)


def stored(folder: Path, head: Head, **options: Any) -> Path:
    recording(head, **options).save(folder / "off" / "made-T1.npz")
    recording(head, "think", **options).save(folder / "on" / "made-T1.npz")
    return folder


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = stored(tmp_path_factory.mktemp("bold"), bold)
    recording(bold, temperature=0.6, prompts=20).save(folder / "off" / "made-T0.6.npz")
    return folder


def test_a_bold_head_is_mended_and_the_bars_hold(mended: Path, tmp_path: Path) -> None:
    out = tmp_path / "temperatures.json"
    result = study.run(mended, temperatures=out, config=QUICK)
    assert (result.verdict, len(result.bars)) == ("holds", DEPTH)
    cells = {(c.phase, c.domain, c.method): c for c in result.cells}
    before, after = cells["off", "all", "none"], cells["off", "all", "sts"]
    assert before.ece[0] is not None
    assert after.ece[0] is not None
    assert after.ece[0] < before.ece[0] / 2
    assert before.analytic[0] == pytest.approx(before.ece[0], abs=0.02)  # two labels of one thing
    assert after.auc[1] == before.auc[1]  # order within a position is kept
    assert after.floor[0] == pytest.approx(after.ece[0], abs=0.01)  # nothing is left but chance
    t = Temperatures.load(out, {"name": "made", "weights_sha256": {"model.safetensors": "5554"}})
    assert t.values == pytest.approx([2.5] * DEPTH, rel=0.3)
    assert t.provenance["sampling"] == {"temperature": 1.0}
    sampled = [s for s in result.shifts if s.what == "phase" and s.method == "sts"]
    assert {(s.fitted_on, s.used_on) for s in sampled} == {(a, b) for a in study.PHASES for b in study.PHASES}
    assert all(s.gain > 0.03 for s in sampled)  # this head is wrong in the same way everywhere


def test_an_honest_head_and_too_few_blocks_are_inconclusive(tmp_path: Path) -> None:
    result = study.run(stored(tmp_path / "honest", honest), config=QUICK)
    assert (result.verdict, result.bars[0].trials) == ("inconclusive", 0)
    few = study.run(stored(tmp_path / "few", bold, prompts=4, length=32), config=QUICK)
    assert few.verdict == "inconclusive"
    assert all(bar.trials for bar in few.bars)  # there is something to mend, and no telling whether it is


def test_a_head_that_knows_nothing_fails(tmp_path: Path) -> None:
    def blind(generator: np.random.Generator, n: int) -> tuple[F64, F64]:
        """Sure of everything it gets wrong: out of phase everywhere."""
        return np.full((n, DEPTH), -1.0), generator.normal(3, 0.3, (n, DEPTH))

    result = study.run(stored(tmp_path, blind), config=QUICK)
    assert result.bars[0].verdict == "fails"
    limit = next(x for x in result.limits if x.domain == "all")
    assert limit.positive == 1
    assert limit.outcome == pytest.approx(expit(-1), abs=0.01)
    assert limit.best > limit.least == pytest.approx(0.5 - expit(-1), abs=0.01)  # one half is a wall
    assert limit.best_temperature == 5  # and the grid ends on the way there


def judged(true: F64, logits: F64, seed: int = 0) -> Judged:
    generator, n = np.random.default_rng(seed), len(true)
    accepted = (generator.random(true.shape) < expit(true)).astype(float)
    zeros = np.zeros(n, dtype=np.int64)
    return Judged(logits, accepted, expit(true).cumprod(1), np.ones(true.shape, bool), np.arange(n) % 50, zeros, zeros)


def test_selection_is_seen_where_blocks_differ_and_nowhere_else() -> None:
    """With a difficulty of its own for every slot the survivors are like all others; with one that a block shares, and
    that the head knows in part, they are not."""
    generator = np.random.default_rng(1)
    apart = slots(generator, 8_000)
    found = ranking(judged(apart, apart), "1", "off", SHARES, 100, 0)
    for low, value, high in zip(found.selection_low, found.selection, found.selection_high, strict=True):
        assert low is not None
        assert high is not None
        assert value is not None
        assert low <= 0 <= high or abs(value) < 0.01
    assert found.prefix == pytest.approx(found.if_right, abs=0.02)  # an honest head is what it would be if right
    hidden = generator.normal(0, 2.5, (8_000, 1))  # what the head does not see, and survivors have more of
    noise = generator.normal(0, 1, (8_000, DEPTH))
    shared = ranking(judged(noise + hidden, noise), "1", "off", SHARES, 100, 0)
    assert shared.selection_low[2] is not None
    assert shared.selection_low[2] > 0.01


def test_bad_recordings_are_refused(mended: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no recordings of a drafter"):
        load(tmp_path)
    own = recording(bold)
    own.provenance["drafter"] = {"name": "other", "weights_sha256": {"model.safetensors": "66"}}
    own.save(tmp_path / "other" / "T1.npz")
    recording(bold, "think").save(tmp_path / "other" / "T1-think.npz")
    with pytest.raises(ValueError, match=r"different weights \(drafter\)"):
        load(tmp_path / "other")
    recording(bold, temperature=0.6).save(tmp_path / "warm" / "T0.6.npz")
    with pytest.raises(ValueError, match="no recording at temperature 1"):
        study.run(tmp_path / "warm", config=QUICK)
    blind = recording(bold)
    for response in blind.responses:
        object.__setattr__(response.blocks, "confidence", None)
    blind.save(tmp_path / "blind" / "T1.npz")
    with pytest.raises(ValueError, match="made has no confidence head"):
        load(tmp_path / "blind")
    rounds = Path(study.__file__).parents[3] / "data" / "results" / "drafters" / "dspark-0-T1.npz"
    with pytest.raises(ValueError, match="rounds of another drafter than made"):
        study.run(mended, [rounds], config=QUICK)


def test_slots_behind_a_drafted_stop_are_no_evidence(mended: Path) -> None:
    blocks = load(mended)[0]["1"]
    drafted = np.concatenate([r.blocks.drafted for r in Recording.load(mended / "off" / "made-T1.npz").responses])
    off = blocks.of("off")
    assert (off.judged[:, 1] == (drafted[:, 0] != STOP)).all()
    assert off.judged[:, 0].all()
    kept = off.accepted[off.judged[:, 2], 0].mean()  # so that the judged are no better and no worse than the others
    assert kept == pytest.approx(off.accepted[:, 0].mean(), abs=0.02)
    assert len({prompt_index(f"{d}/{m}/{i}") for d in DOMAINS for m in ("no_think", "think") for i in (0, 149)}) == 12


def test_the_command_stores_prints_and_exits_by_its_verdict(mended: Path, tmp_path: Path) -> None:
    arguments = ["experiment", "calibration", "--anchors", str(mended), "--resamples", "20"]
    result = CliRunner().invoke(app, [*arguments, "--json", "--output", str(tmp_path / "x.json")])
    assert result.exit_code == 0
    kept = study.Calibration.model_validate_json((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert study.Calibration.model_validate(json.loads(result.stdout)) == kept
    assert "verdict: holds" in CliRunner().invoke(app, arguments).stdout


def test_figures_are_drawn_from_what_was_measured(mended: Path) -> None:
    from matplotlib import pyplot as plt

    from companion import figures_calibration as figures
    from companion.figures import use_style

    use_style()  # it puts titles to the left, in this process and for every test after it
    result = study.run(mended, config=study.Config(resamples=20))
    panels = figures.reliability(result).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["position 1", "position 3"]
    assert len(figures.errors(result).axes) == len(figures.auc(result).axes) == len(result.rankings)
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.reliability(result, domain="poetry")
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.errors(result, "0")
    plt.close("all")


def test_rounds_of_the_loop_become_judged_blocks() -> None:
    rounds = load_compact(Path(study.__file__).parents[3] / "data" / "results" / "drafters" / "dspark-0-T1.npz")
    own = rounds.provenance
    assert own is not None
    blocks = of_rounds(rounds, own["drafter"], own["depth"])
    table = np.concatenate([survival_forecasts(rows) for rows in by_prompt(rounds).values()])
    for k in range(own["depth"]):  # the same slots, and the same outcomes, as the metric on Rounds has
        at = table[:, 0] == k + 1
        assert blocks.judged[:, k].sum() == pytest.approx(at.sum(), abs=0.01 * at.sum())
        assert blocks.lived[blocks.judged[:, k], k].mean() == pytest.approx(table[at, 2].mean(), abs=0.005)
    with pytest.raises(ValueError, match="rounds of another drafter"):
        of_rounds(rounds, own["drafter"], own["depth"] + 1)
