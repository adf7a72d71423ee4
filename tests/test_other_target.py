"""The notebooks on a target that is not tiny-qwen3: mathematics holds, and what is known of tiny-qwen3 only is said."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from other_target import write_pair

from companion.book import expectations, notebooks
from companion.book.execute import execute, prepare
from companion.book.layout import Layout
from companion.drafters.load import load_drafter
from companion.engine.load import find_model, load_target
from companion.experiments import decode_survey

ROOT = Path(__file__).resolve().parents[1]
EVERY_TIME = "06_tiny_qwen3"  # a few seconds; the others belong to the long grid
TAKING_A_TARGET = [
    pytest.param(path, id=path.stem, marks=[] if path.stem == EVERY_TIME else pytest.mark.full)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    if "target" in notebooks.parameters(notebooks.read(path))
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return write_pair(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("notebook", TAKING_A_TARGET)
def test_a_notebook_runs_on_another_target(notebook: Path, pair: tuple[str, str], tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.notebooks.mkdir()
    source = Path(shutil.copy(notebook, layout.notebooks))
    target, drafter = pair
    chosen, key = prepare(source, layout, {"target": target, "drafter": drafter})
    assert chosen["target"] == target
    run = execute(source, layout, chosen, key, cell_timeout=600)  # NotebookError names a cell that fails
    printed = "".join(
        output.get("text", "") for cell in notebooks.code_cells(run.notebook) for output in cell.get("outputs", [])
    )
    assert ("[stated of tiny-qwen3: " in printed) == ("expectations(" in notebook.read_text(encoding="utf-8"))


def test_greedy_identity_pools_the_depths_and_a_run_without_drafts_is_inconclusive(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_survey, "survey", partial(decode_survey.survey, max_new_tokens=24))
    target = load_target(pair[0])
    for name, verdict in (("lookup", "holds"), ("none", "inconclusive")):
        found = decode_survey.greedy_identity(target, load_drafter(name, target, max_depth=3), (1, 3), prompts=1)
        assert found.verdict() == verdict
        assert (found.texts, found.divergences) == (2 * 6, [])  # depths times domains and modes


def test_a_group_without_rounds_says_so() -> None:
    lengths = [decode_survey.AcceptedLength("math", "think", 2.0, 1.5, 2.25, rounds) for rounds in (0, 7)]
    assert list(map(str, lengths)) == ["no round", "2.00 [1.50, 2.25]"]


def test_the_shipped_weights_are_held_to_what_is_stated_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    expect = expectations("tiny-qwen3", "draft")
    expect(True, "this holds")
    assert capsys.readouterr().out == ""
    with pytest.raises(AssertionError, match="expected of the shipped weights: this does not"):
        expect(False, "this does not")


def test_weights_count_and_not_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(find_model("tiny-qwen3").path, tmp_path / "mine")
    with pytest.raises(AssertionError):
        expectations(str(copy))(False, "")
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    expectations(str(copy))(False, "the sum is right")
    assert capsys.readouterr().out == "[stated of tiny-qwen3: the sum is right; on these weights: no]\n"


@pytest.mark.parametrize("drafter", [None, "tiny-qwen3"])
def test_other_weights_are_told_what_holds(
    drafter: str | None, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another target with its own draft model; and the shipped models in each other's place."""
    expect = expectations(pair[0], pair[1]) if drafter is None else expectations("tiny-qwen3", drafter)
    expect(True, "a")
    expect(0, "b")
    lines = ["[stated of tiny-qwen3: a; on these weights: yes]", "[stated of tiny-qwen3: b; on these weights: no]"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_name_that_stands_for_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no model 'nothing'"):
        expectations("nothing")
