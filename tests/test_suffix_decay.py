"""Drafters at many anchors: recorded, gone on with after a kill, and judged against the bars of suffix decay."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import companion
from companion.cli import app
from companion.drafters.dspark.checkpoint import save_dspark
from companion.drafters.dspark.model import DSparkModel
from companion.experiments import anchor_survey, drafter_rounds
from companion.experiments import suffix_decay as study
from companion.experiments.anchor_blocks import Blocks
from companion.experiments.anchor_recording import DIGITS, RATES, Anchored, Recording
from companion.provenance import write_json
from companion.training.corpus import DOMAINS, MODES
from companion.training.drafter import DrafterConfig, new_drafter

SMALL = anchor_survey.Config(prompts=3, anchors=15, max_new_tokens=10, max_batch=2)


# --- recordings made by a drafter without any training --------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, target, config = tmp_path_factory.mktemp("zoo"), companion.load_target(), DrafterConfig(layers=1)
    torch.manual_seed(0)
    model = new_drafter(config, target)
    assert isinstance(model, DSparkModel)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.embedding)
        model.lm_head.weight.copy_(target.head)
    save_dspark(model, folder / "dspark-0" / "model", dtype=torch.float16)
    write_json(folder / "dspark-0" / "model" / "recipe.json", asdict(config))
    return folder


@pytest.fixture(scope="module")
def recorded(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("anchors")
    anchor_survey.run(models, output, SMALL)
    return output


@pytest.fixture(scope="module")
def rounds(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("rounds")
    config = drafter_rounds.Config(**SMALL.model_dump(include=set(drafter_rounds.Config.model_fields)))
    drafter_rounds.run(models, output, config)
    return output


def test_every_token_but_the_last_is_an_anchor_and_the_real_loop_is_foretold(
    models: Path, recorded: Path, rounds: Path
) -> None:
    recordings = anchor_survey.load(recorded)
    assert len(recordings) == 2
    for recording in recordings:
        assert {(r.domain, r.mode) for r in recording.responses} == {(d, m) for d in DOMAINS for m in MODES}
        assert all(r.blocks.drafted.shape == (len(r.tokens) - 1, 7) for r in recording.responses)
        assert all(r.blocks.confidence is not None and len(r.phases) == len(r.tokens) for r in recording.responses)
        for domain in DOMAINS:  # two responses of ten tokens hold fifteen anchors, the third is not needed
            cell = [r for r in recording.responses if (r.domain, r.mode) == (domain, "think")]
            assert [r.prompt_id for r in cell] == [f"{domain}/think/{i}" for i in range(2)]
        assert str(models) not in json.dumps(recording.provenance)
        assert len(recording.provenance["drafter"]["weights_sha256"]["model.safetensors"]) == 64
    result = study.run(recorded, rounds, config=study.Config(resamples=40))
    same, compared = result.greedy_identical["dspark-0"]
    assert same == compared == len(recordings[0].responses)
    assert any(c.real is not None and c.temperature == 1 for c in result.comparisons)
    few = [t.where(domain="chat") for t in drafter_rounds.load(rounds)]
    with pytest.raises(ValueError, match="lack prompt"):
        study.summarise(recordings, few)
    others = drafter_rounds.load(rounds)
    for table in others:
        assert table.provenance is not None
        table.provenance["settings"]["max_new_tokens"] = 11
    with pytest.raises(ValueError, match="max_new_tokens"):
        study.summarise(recordings, others)


def test_a_file_holds_what_was_recorded_to_its_decimals(recorded: Path, tmp_path: Path) -> None:
    path = recorded / "dspark-0-T1.npz"
    recording = Recording.load(path)
    recording.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()
    first = recording.responses[0].blocks
    assert first.confidence is not None
    exact = Blocks(**{name: getattr(first, name) for name in Blocks.__dataclass_fields__})
    noise = np.random.default_rng(0).random(first.q.shape) * 10**-DIGITS
    for name in RATES:
        object.__setattr__(exact, name, getattr(first, name) + noise)
    recording.responses[0] = Anchored(**{**_fields(recording.responses[0]), "blocks": exact})
    recording.save(tmp_path / "noisy.npz")
    found = Recording.load(tmp_path / "noisy.npz").responses[0].blocks
    for name in RATES:
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), atol=0.5001 * 10**-DIGITS)
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:-400])
    with pytest.raises(ValueError, match="not a whole compact anchors file"):
        Recording.load(tmp_path / "cut.npz")


def _fields(response: Anchored) -> dict[str, Any]:
    return {name: getattr(response, name) for name in Anchored.__dataclass_fields__}


def test_a_killed_run_goes_on_and_other_settings_are_refused(
    models: Path, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_before_the_second(recording: Recording, path: Path) -> None:
        if os.listdir(tmp_path):
            raise KeyboardInterrupt
        save(recording, path)

    save = Recording.save
    with monkeypatch.context() as patch:
        patch.setattr(Recording, "save", killed_before_the_second)
        with pytest.raises(KeyboardInterrupt):
            anchor_survey.run(models, tmp_path, SMALL)
    assert os.listdir(tmp_path) == ["dspark-0-T0.npz"]
    stamp = (tmp_path / "dspark-0-T0.npz").stat().st_mtime_ns
    for path in anchor_survey.run(models, tmp_path, SMALL):
        ours, theirs = Recording.load(path), Recording.load(recorded / path.name)
        for a, b in zip(ours.responses, theirs.responses, strict=True):
            assert a.tokens == b.tokens
            assert all(np.array_equal(getattr(a.blocks, n), getattr(b.blocks, n)) for n in (*RATES, "accepted"))
    assert (tmp_path / "dspark-0-T0.npz").stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match="settings differ"):
        anchor_survey.run(models, recorded, SMALL.model_copy(update={"anchors": 16}))
    with pytest.raises(ValueError, match="prompts must be at least 2"):
        anchor_survey.run(models, recorded, SMALL.model_copy(update={"prompts": 1}))
    with pytest.raises(ValueError, match="holds no recordings"):
        anchor_survey.load(models)


def test_top_k_filters_both_sides_and_a_file_names_what_it_holds(models: Path, tmp_path: Path) -> None:
    config = SMALL.model_copy(
        update={"temperatures": (0.7,), "top_k": 1, "anchors": 2, "every": 2, "modes": ("think",)}
    )
    (path,) = anchor_survey.run(models, tmp_path, config)
    assert path.name == "dspark-0-T0.7-k1.npz"
    recording = Recording.load(path)
    assert recording.provenance["sampling"] == {"temperature": 0.7, "top_k": 1}
    assert recording.provenance["thinking"] is True
    assert {r.mode for r in recording.responses} == {"think"}
    blocks = Blocks.concat([r.blocks for r in recording.responses])
    assert (blocks.q == 1).all()  # one token is left on either side
    assert set(np.unique(blocks.overlap)) <= {0, 1}
    assert config.sampling(0.0).top_k is None


def test_the_command_prints_one_object_and_its_verdict(recorded: Path, rounds: Path, tmp_path: Path) -> None:
    arguments = ["experiment", "decay", "--anchors", str(recorded), "--rounds", str(rounds), "--resamples", "40"]
    result = CliRunner().invoke(app, [*arguments, "--json", "--output", str(tmp_path / "x.json")])
    assert result.exit_code in (1, 3)  # a drafter without training decides no bar
    stored = study.SuffixDecay.model_validate_json((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert study.SuffixDecay.model_validate(json.loads(result.stdout)) == stored
    assert "every anchor" in CliRunner().invoke(app, arguments).stdout


# --- statistics on recordings made by hand: the acceptance of each slot is known -------------------------------------

DECAYING, HALF, STEADY = [0.8, 0.7, 0.6, 0.5], [0.8, 0.76, 0.73, 0.7], [0.6, 0.6, 0.6, 0.6]


def made(name: str, seed: int, rates: Sequence[float], *, bias: float = 0.0, responses: int = 16) -> Recording:
    """p and q of each slot overlap by ``rates[k]``: a token that q has and p lacks is drawn with the rest. ``bias`` is
    added to what is said to be the analytic acceptance."""
    generator, depth, length = np.random.default_rng([seed, *name.encode()]), len(rates), 61
    found = []
    for domain in DOMAINS:
        for i in range(responses):
            chance = (generator.random((length - 1, depth)) < rates).astype(float)
            overlap = np.broadcast_to(np.asarray(rates), chance.shape) + bias
            along = (generator.random(chance.shape) < rates).astype(float)
            zeros = np.zeros(chance.shape)
            shifted = 0.1 * zeros[:, 1:].size
            blocks = Blocks(zeros.astype(int), chance > 0, zeros, zeros, chance, overlap, along, zeros, None, shifted)
            prompt_id = f"{domain}/no_think/{i}"
            found.append(
                Anchored(prompt_id, domain, "no_think", 9, [0] * length, ["output"] * length, "length", blocks)
            )
    provenance = {
        **dict.fromkeys(("target", "thinking", "prompt_set", "harness", "system", "recorded_at")),
        "drafter": {"name": f"{name}-{seed}", "weights_sha256": f"{name}-{seed}"},
        "sampling": {"temperature": 1.0},
        "seeds": [0],
        "settings": {"drafter_name": name, "drafter_seed": seed, "max_new_tokens": length},
        "depth": depth,
    }
    return Recording(found, depth, 1, (1,), provenance)


def all_three(**changes: Sequence[float]) -> list[Recording]:
    kinds = {"dflash": DECAYING, "dspark": HALF, "eagle3": STEADY} | changes
    return [made(name, seed, rates) for name, rates in kinds.items() for seed in (0, 1, 2)]


@pytest.fixture(scope="module")
def judged() -> study.SuffixDecay:
    return study.summarise(all_three(), config=study.Config(resamples=300))


def test_acceptance_and_falls_are_what_the_drafters_were_made_with(judged: study.SuffixDecay) -> None:
    for name, rates in (("dflash", DECAYING), ("dspark", HALF), ("eagle3", STEADY)):
        for found in (judged.positions, judged.analytic):
            curve = [p for p in found if (p.drafter, p.domain, p.mode) == (name, "all", "no_think")]
            assert [p.conditional for p in curve] == pytest.approx(rates, abs=0.03)
        tau = next(x for x in judged.lengths if (x.drafter, x.domain) == (name, "all"))
        assert tau.anchors == 3 * 3 * 16 * 60
        assert tau.analytic == pytest.approx(1 + np.cumprod(rates).sum(), abs=0.04)
        assert tau.sampled == pytest.approx(tau.analytic, abs=0.04)
        fall = next(f for f in judged.falls if (f.drafter, f.domain) == (name, "chat"))
        assert (fall.last, fall.judged >= 300) == (4, True)
        assert fall.analytic == pytest.approx(rates[0] - rates[3], abs=1e-9)
        assert fall.sampled_low < fall.sampled < fall.sampled_high
    assert [b.verdict for b in judged.bars[:5]] == ["holds"] * 5
    assert [b.outcome for b in judged.bars[:3]] == ["holds clearly"] * 3
    assert [b.verdict for b in judged.bars[5:]] == ["inconclusive"] * 2  # no real loop was given


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"dflash": HALF, "dspark": STEADY}, 0),
        ({"dspark": DECAYING}, 1),
        ({"eagle3": [0.9, 0.9, 0.9, 0.9]}, 2),
        ({"eagle3": [0.6, 0.55, 0.5, 0.45]}, 3),
    ],
)
def test_each_bar_fails_where_its_drafter_does_otherwise(changes: dict[str, Sequence[float]], broken: int) -> None:
    bars = study.summarise(all_three(**changes), config=study.Config(resamples=50)).bars
    assert [i for i, bar in enumerate(bars[:4]) if bar.verdict == "fails"] == [broken]


def test_a_biased_analytic_acceptance_and_a_control_that_passes_are_found_out(judged: study.SuffixDecay) -> None:
    assert all(check.agrees for check in judged.checks)
    biased = study.summarise([made("dspark", s, HALF, bias=0.05) for s in (0, 1)], config=study.Config(resamples=100))
    assert not biased.checks[0].agrees
    assert biased.bars[4].verdict == "fails"
    blind = made("dspark", 0, HALF)
    for response in blind.responses:
        object.__setattr__(response.blocks, "shifted", float(response.blocks.accepted[:, :-1].sum()))
    assert not study.summarise([blind], config=study.Config(resamples=50)).checks[0].agrees


def test_figures_show_the_drafters_that_were_measured(judged: study.SuffixDecay) -> None:
    from matplotlib import pyplot as plt

    from companion import figures_anchors

    fig = figures_anchors.suffix_decay(judged)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["Eagle3", "DFlash", "DSpark"]
    assert list(fig.axes[2].get_lines()[0].get_xdata()) == [1, 2, 3, 4]
    few = figures_anchors.suffix_decay(judged, at_least=1500)
    assert len(few.axes[2].get_lines()[0].get_xdata()) < 4  # seldom reached
    figures_anchors.visited_anchors(judged, 1.0)
    plt.close("all")
    for draw in (figures_anchors.suffix_decay, figures_anchors.visited_anchors):
        with pytest.raises(ValueError, match="nothing to draw"):
            draw(judged, 0.5)
