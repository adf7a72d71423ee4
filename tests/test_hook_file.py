"""From a recording to a settings file, and from there to a hook: only for the models and the use it was measured in."""

from __future__ import annotations

from pathlib import Path

import pytest
from phase_tables import same, table
from test_cli import run

from companion.engine.load import find_model, load_target
from companion.experiments.phase_gap.hook_file import hook_file
from companion.experiments.phase_gap.stored import save_arm
from companion.phase.origin import revision
from companion.phase.settings import read_settings
from companion.protocols import RequestView
from companion.scheduling.hook_settings import load_hook
from companion.scheduling.phase_hook import Serving

ASKED = {"vocab_size": 1024, "deepest": 7, "deterministic": False}


def recording(folder: Path) -> Path:
    path = folder / "dspark-0-T1-s0.npz"
    save_arm(table(same(0.2, 0.9, 0.9), prompts=40), path, confidence=False)
    return path


def serving_of(path: Path, **changed: str) -> Serving:
    origin = read_settings(path).rates.origin
    known = {name: getattr(origin, name) for name in ("target", "drafter", "target_revision", "drafter_revision")}
    return Serving(**(known | changed))


def test_rates_of_a_recording_make_a_hook_that_drafts_less_inside(tmp_path: Path) -> None:
    path = tmp_path / "hook.toml"
    path.write_text(hook_file(recording(tmp_path), 1024))
    settings = read_settings(path)
    assert settings.rates.of("think").rate.value == pytest.approx(0.2, abs=0.05)
    assert settings.rates.of("output").rate.value == pytest.approx(0.9, abs=0.05)
    hook = load_hook(path, serving=serving_of(path), **ASKED)
    inside, outside = hook.draft_depths([RequestView(0, 5, "think", 50), RequestView(1, 5, "output", 50)])
    assert inside < outside == 5


def test_weights_may_be_called_otherwise_and_other_weights_may_not(tmp_path: Path) -> None:
    path = tmp_path / "hook.toml"
    path.write_text(hook_file(recording(tmp_path), 1024))
    load_hook(path, serving=serving_of(path, drafter="runs/dspark-0/model", target="a-copy"), **ASKED)
    for role in ("target", "drafter"):
        with pytest.raises(ValueError, match=f"measured with {role} "):
            load_hook(path, serving=serving_of(path, **{role: "other", f"{role}_revision": "x"}), **ASKED)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vocab_size": 151_936}, "set vocab_size"),
        ({"deepest": 3}, "drafts at most 3; set max_proposal_len"),
    ],
)
def test_what_does_not_fit_the_models_is_refused(tmp_path: Path, changed: dict[str, int], said: str) -> None:
    path = tmp_path / "hook.toml"
    path.write_text(hook_file(recording(tmp_path), 1024))
    with pytest.raises(ValueError, match=said):
        load_hook(path, serving=serving_of(path), **(ASKED | changed))


def test_a_file_that_leaves_the_hook_off_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "hook.toml"
    path.write_text("[speculation]\nvocab_size = 1024\n")
    with pytest.raises(ValueError, match="leaves the hook off"):
        load_hook(path, serving=Serving("t", "d"), **ASKED)


def test_outside_the_note_s_rate_is_smaller_than_the_solved_one(tmp_path: Path) -> None:
    path = recording(tmp_path)
    solved, note = (tmp_path / name for name in ("solved.toml", "note.toml"))
    solved.write_text(hook_file(path, 1024))
    note.write_text(hook_file(path, 1024, "token_acceptance"))
    assert read_settings(note).rates.output.rate.value < read_settings(solved).rates.output.rate.value - 0.1


def test_record_write_and_decode_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, settings = tmp_path / "rounds", tmp_path / "hook.toml"
    few = ("--quick", "--per-domain", "2", "--temperatures", "1", "--resamples", "20")
    run(capsys, monkeypatch, "experiment", "phase-gap", *few, "--rounds", str(rounds))
    made = ("experiment", "phase-rates", str(rounds / "dspark-0-T1-s0.npz"))
    code, printed, _ = run(capsys, monkeypatch, *made)
    assert code == 0
    assert run(capsys, monkeypatch, *made, "--output", str(settings))[0] == 0
    assert settings.read_text() == printed
    asked = ("generate", "--prompt", "What is 27 + 48?", "--hook", str(settings), "--max-new-tokens", "30")
    code, hooked, _ = run(capsys, monkeypatch, *asked, "--drafter", "dspark", "--temperature", "1")
    assert code == 0
    assert "27" in hooked
    for options, said in (
        (("--drafter", "dflash", "--temperature", "1"), "measured with drafter dspark-0"),
        (("--drafter", "dspark", "--temperature", "0"), "measured with sampling"),
        (("--drafter", "none"), "no depth to choose"),
        (("--drafter", "lookup"), "measured with drafter dspark-0"),
    ):
        code, _, err = run(capsys, monkeypatch, *asked, *options)
        assert code == 1
        assert said in err.replace("\n", " ")
    code, _, err = run(capsys, monkeypatch, "generate", "--prompt", "a", "--capacity", "c.json")
    assert code == 2
    assert "--hook" in err


def test_a_recording_is_of_the_weights_that_generate_loads() -> None:
    """The same revision both ways, or no file would ever fit."""
    target = load_target("tiny-qwen3")
    assert revision(target.source) == revision(find_model("tiny-qwen3").describe())
