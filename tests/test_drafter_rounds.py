"""Rounds of many drafters: decoded once, gone on with after a kill, and compared as the book compares them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import companion
from companion.cli import app
from companion.compact import load_compact, save_compact
from companion.drafters.dspark.checkpoint import save_dspark
from companion.drafters.dspark.model import DSparkModel
from companion.experiments import accepted_length as study
from companion.experiments import drafter_rounds as decoding
from companion.protocols import Phase
from companion.provenance import write_json
from companion.rounds import Round, Rounds
from companion.training.corpus import DOMAINS, MODES
from companion.training.drafter import DrafterConfig, dflash_config, new_drafter

SMALL = decoding.Config(prompts=2, max_new_tokens=12, max_batch=6)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two drafters without any training, one of them unfinished besides."""
    folder, target = tmp_path_factory.mktemp("zoo"), companion.load_target()
    for name, config in (("dspark", DrafterConfig(layers=1)), ("dflash", dflash_config(layers=1))):
        torch.manual_seed(0)
        model = new_drafter(config, target)
        assert isinstance(model, DSparkModel)
        with torch.no_grad():
            model.embed_tokens.weight.copy_(target.embedding)
            model.lm_head.weight.copy_(target.head)
        save_dspark(model, folder / f"{name}-0" / "model", dtype=torch.float16)
        write_json(folder / f"{name}-0" / "model" / "recipe.json", asdict(config))
    (folder / "dspark-1" / "model").mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def decoded(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("rounds")
    decoding.run(models, output, SMALL)
    return output


def test_every_finished_drafter_answers_every_prompt_at_its_full_depth(models: Path, decoded: Path) -> None:
    tables = {path.stem: load_compact(path) for path in decoded.glob("*.npz")}
    assert set(tables) == {"plain-T0", "dspark-0-T0", "dspark-0-T1", "dflash-0-T0", "dflash-0-T1"}
    for name, table in tables.items():
        assert {(r.domain, r.mode, str(r.prompt_id).rpartition("/")[2]) for r in table} == {
            (d, m, str(i)) for d in DOMAINS for m in MODES for i in range(SMALL.prompts)
        }
        assert max(r.drafted for r in table) == (0 if name.startswith("plain") else 7)
        assert all((r.confidence is None) == (not name.startswith("dspark")) for r in table if r.drafted)
        provenance = table.provenance or {}
        assert len(provenance["outputs_crc32"]) == 2 * 3 * SMALL.prompts
        assert provenance["harness"]["version"]
        assert provenance["prompt_set"]
        assert str(models) not in json.dumps(provenance)
    source = (tables["dspark-0-T1"].provenance or {})["drafter"]
    assert source["name"] == "dspark-0"
    assert len(source["weights_sha256"]["model.safetensors"]) == 64


def test_a_file_without_confidence_holds_the_same_rounds(models: Path, decoded: Path, tmp_path: Path) -> None:
    decoding.run(models, tmp_path, SMALL.model_copy(update={"confidence": False, "temperatures": (1.0,)}))
    whole, bare = (load_compact(folder / "dspark-0-T1.npz") for folder in (decoded, tmp_path))
    assert all(r.confidence for r in whole if r.drafted)
    assert not any(r.confidence for r in bare)
    kept = ("prompt_id", "mode", "drafted", "verified", "accepted", "phases")
    assert [[getattr(r, k) for k in kept] for r in bare] == [[getattr(r, k) for k in kept] for r in whole]


def test_greedy_outputs_are_plain_decodings_and_a_wrong_token_would_show(decoded: Path) -> None:
    tables = decoding.load(decoded)
    result = study.summarise(tables, study.Config(resamples=50))
    assert result.greedy_identical == {"dspark-0": (12, 12), "dflash-0": (12, 12)}
    broken = next(t for t in tables if t.provenance and t.provenance["settings"]["drafter_name"] == "dflash")
    assert broken.provenance is not None
    broken.provenance["outputs_crc32"][3] += 1
    result = study.summarise(tables, study.Config(resamples=50))
    assert result.greedy_identical["dflash-0"] == (11, 12)
    assert result.bars[-1].verdict == result.verdict == "fails"


def test_a_killed_run_goes_on_and_ends_with_the_same_files(
    models: Path, decoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Path] = []
    greedy = SMALL.model_copy(update={"temperatures": (0.0,)})

    def killed_at_the_second(rounds: Rounds, path: Path) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(path)
        save_compact(rounds, path)

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "save_compact", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            decoding.run(models, tmp_path, greedy)
    assert [path.name for path in saved] == sorted(os.listdir(tmp_path), reverse=True)
    stamps = {path: path.stat().st_mtime_ns for path in saved}
    made = decoding.run(models, tmp_path, greedy)
    assert sorted(path.name for path in made) == sorted(path.name for path in decoded.glob("*-T0.npz"))
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    for path in made:
        assert list(load_compact(path)) == list(load_compact(decoded / path.name))


def test_stored_rounds_of_other_settings_or_weights_are_refused(models: Path, decoded: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="settings differ"):
        decoding.run(models, decoded, SMALL.model_copy(update={"max_new_tokens": 13}))
    table = load_compact(decoded / "dflash-0-T0.npz")
    assert table.provenance is not None
    table.provenance["drafter"]["weights_sha256"]["model.safetensors"] = "0" * 64
    save_compact(table, tmp_path / "dflash-0-T0.npz")
    with pytest.raises(ValueError, match="drafter differ"):
        decoding.run(models, tmp_path, SMALL)
    with pytest.raises(ValueError, match="no finished drafter"):
        decoding.run(tmp_path, tmp_path, SMALL)
    with pytest.raises(ValueError, match="at least 2"):
        decoding.run(models, tmp_path, SMALL.model_copy(update={"prompts": 1}))
    with pytest.raises(ValueError, match="holds no rounds"):
        decoding.load(models)
    again = load_compact(decoded / "dspark-0-T0.npz")
    assert again.provenance is not None
    again.provenance["drafter"]["name"] = "dspark-1"
    for name, copy in (("a", load_compact(decoded / "dspark-0-T0.npz")), ("b", again)):
        save_compact(copy, tmp_path / "copies" / f"{name}.npz")
    with pytest.raises(ValueError, match="dspark-1 and dspark-0 have the same weights"):
        decoding.load(tmp_path / "copies")
    table.provenance["prompt_set"] = "other"
    save_compact(table, tmp_path / "other.npz")
    save_compact(load_compact(decoded / "plain-T0.npz"), tmp_path / "plain-T0.npz")
    with pytest.raises(ValueError, match="different prompts"):
        decoding.load(tmp_path)


# --- statistics on rounds made by hand: acceptance of each slot is known -------------------------------------------


def made(name: str, seed: int, rates: list[float], *, prompts: int = 20, temperature: float = 1.0) -> Rounds:
    """Rounds of a drafter whose slot k is accepted with probability ``rates[k]``, whatever came before."""
    generator = np.random.default_rng([seed, *name.encode()])
    rows = []
    for request, (domain, mode, i) in enumerate((d, m, i) for d in DOMAINS for m in MODES for i in range(prompts)):
        position = 20
        for number in range(1, 16):
            refused = np.flatnonzero(generator.random(len(rates)) >= rates)
            accepted = int(refused[0]) if len(refused) else len(rates)
            phases: list[Phase] = ["output"] * (accepted + 1)
            rows.append(
                Round(
                    request=request,
                    round=number,
                    position=position,
                    drafted=len(rates),
                    verified=len(rates),
                    accepted=accepted,
                    rejected=accepted < len(rates),
                    bonus=True,
                    tokens=[],
                    phases=phases,
                    ended="length" if number == 15 else None,
                    prompt_id=f"{domain}/{mode}/{i}",
                    domain=domain,
                    mode=mode,
                )
            )
            position += accepted + 1
    provenance: dict[str, Any] = {
        **dict.fromkeys(("target", "drafter", "thinking", "seeds", "prompt_set", "harness", "system", "recorded_at")),
        "sampling": {"temperature": temperature},
        "settings": {"drafter_name": name, "drafter_seed": seed, "prompts": prompts},
        "depth": len(rates),
        "outputs_crc32": [],
    }
    return Rounds(rows, provenance)


STEADY, DECAYING = [0.8, 0.8, 0.8, 0.8], [0.8, 0.6, 0.4, 0.2]


@pytest.fixture(scope="module")
def compared() -> study.AcceptedLengths:
    tables = [made(name, s, rates) for name, rates in (("dspark", STEADY), ("dflash", DECAYING)) for s in (0, 1, 2)]
    return study.summarise(tables, study.Config(resamples=400))


def test_tau_and_acceptance_are_what_the_drafters_were_made_with(compared: study.AcceptedLengths) -> None:
    for name, rates in (("dspark", STEADY), ("dflash", DECAYING)):
        cells = [c for c in compared.cells if c.drafter == name]
        assert len(cells) == 2 * 4 * 4  # modes, pooled and three seeds, all domains and three
        whole = next(c for c in cells if (c.seed, c.domain, c.mode) == (None, "all", "no_think"))
        assert (whole.responses, whole.rounds) == (3 * 60, 3 * 60 * 15)
        assert whole.tau == pytest.approx(1 + np.cumprod(rates).sum(), abs=0.06)
        assert whole.per_response == pytest.approx(whole.tau, abs=1e-4)  # equally many rounds in every response
        curve = [p for p in compared.positions if (p.drafter, p.domain, p.mode) == (name, "all", "no_think")]
        assert [p.conditional for p in curve] == pytest.approx(rates, abs=0.06)
        assert [p.survival for p in curve] == pytest.approx(np.cumprod(rates), abs=0.04)
        assert [p.verified for p in curve] == [whole.rounds] * 4
        assert all(p.low < p.conditional < p.high for p in curve if p.low and p.conditional and p.high)
        fall = next(f for f in compared.falls if (f.drafter, f.domain, f.mode) == (name, "all", "no_think"))
        assert fall.judged >= 300
        assert fall.value == pytest.approx(rates[0] - rates[fall.last - 1], abs=0.06)


def test_a_better_drafter_is_found_on_the_same_prompts(compared: study.AcceptedLengths) -> None:
    found = next(d for d in compared.differences if (d.domain, d.mode) == ("all", "no_think"))
    expected = np.cumprod(STEADY).sum() - np.cumprod(DECAYING).sum()
    assert found.value == pytest.approx(expected, abs=0.1)
    assert found.low is not None
    assert found.welch_low is not None
    assert min(found.low, found.welch_low) > 0
    assert found.seeds_apart
    assert compared.bars[0].verdict == "holds"


def test_two_equal_drafters_are_not_told_apart_and_one_seed_decides_nothing() -> None:
    inside = 0
    for trial in range(0, 36, 6):
        tables = [made(n, trial + s, STEADY, prompts=6) for n in ("dspark", "dflash") for s in (0, 1, 2)]
        result = study.summarise(tables, study.Config(resamples=200))
        found = next(d for d in result.differences if (d.domain, d.mode) == ("all", "no_think"))
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 0 <= found.high
        assert (result.bars[0].verdict == "holds") == (found.low > 0)
    assert inside >= 4
    alone = study.summarise([made(n, 0, STEADY, prompts=4) for n in ("dspark", "dflash")], study.Config(resamples=50))
    assert alone.bars[0].verdict == "inconclusive"
    lonely = study.summarise([made("dspark", 0, STEADY, prompts=4)], study.Config(resamples=50))
    assert lonely.bars[0].verdict == lonely.verdict == "inconclusive"


def test_seeds_that_differ_widen_the_interval_where_prompts_do_not() -> None:
    same = [made("dspark", s, STEADY, prompts=10) for s in (0, 1, 2)]
    spread = [made("dspark", s, [0.6 + 0.15 * s] * 4, prompts=10) for s in (0, 1, 2)]
    widths = []
    for tables in (same, spread):
        cell = study.summarise(tables, study.Config(resamples=300)).cells[0]
        assert cell.low is not None
        assert cell.high is not None
        widths.append(cell.high - cell.low)
    assert widths[1] > 4 * widths[0]


def test_the_command_prints_one_object_and_its_verdict(decoded: Path, tmp_path: Path) -> None:
    arguments = ["experiment", "accepted-length", "--rounds", str(decoded), "--resamples", "50"]
    result = CliRunner().invoke(app, [*arguments, "--json", "--output", str(tmp_path / "x.json")])
    assert result.exit_code == 3  # one seed of each
    stored = study.AcceptedLengths.model_validate_json((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert study.AcceptedLengths.model_validate(json.loads(result.stdout)) == stored
    assert "pooled" in CliRunner().invoke(app, arguments).stdout


def test_figures_show_every_drafter_that_was_measured(compared: study.AcceptedLengths) -> None:
    from matplotlib import pyplot as plt

    from companion import figures_drafters

    fig = figures_drafters.accepted_lengths(compared, 1.0, "no_think")
    assert [text.get_text() for text in fig.axes[0].get_legend().get_texts()] == ["DFlash", "DSpark"]
    fig = figures_drafters.by_position(compared, 1.0, "no_think", at_least=300)
    curve = fig.axes[2].get_lines()[0]
    assert len(curve.get_xdata()) < 4  # the last positions of a drafter that decays are reached too seldom
    figures_drafters.by_position(compared, 1.0, "no_think", rate="survival")
    plt.close("all")
    with pytest.raises(ValueError, match="nothing was measured"):
        figures_drafters.accepted_lengths(compared, 0.5, "think")
