"""The notebooks on a target that is not tiny-qwen3: mathematics holds, and what is known of tiny-qwen3 only is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from other_target import write_pair

from companion.book import expectations, notebooks
from companion.book.execute import execute, prepare
from companion.book.layout import Layout
from companion.engine.load import find_model

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
