"""Our engine and vLLM on the same prompts: the arms, the table, and, where vLLM is installed, all of it for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from companion.experiments import vllm_comparison as study
from companion.phase.report import Report
from companion.phase.sources import ledger_of_rounds
from companion.rounds import Rounds
from companion.serving.vllm.release import installed_release
from companion.training.target import claim_folder

SMALL = study.Config(per_domain=2, max_new_tokens=60, drafters={"draft_model": "tiny-qwen3-draft", "ngram": None})


def claim(folder: Path, config: study.Config) -> None:
    claim_folder(folder, config.model_dump(mode="json"), study.DESIGN)


def test_arms_of_a_design():
    assert study.arms(SMALL) == [
        "ours",
        "ours/draft_model",
        "vLLM",
        "vLLM/draft_model",
        "vLLM/ngram",
        "vLLM/draft_model/policy",
        "vLLM/draft_model/adaptive",
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"drafters": {}}, "name drafters by vLLM's methods"),
        ({"drafters": {"magic": "x"}}, "name drafters by vLLM's methods"),
        ({"drafters": {"ngram": None, "eagle3": "eagle3"}}, "put it last"),
        ({"policy": {"think": 9, "output": 4}}, "a depth of 0 to 4"),
        ({"policy": {"think": 1}}, "for think and for output"),
    ],
)
def test_a_design_that_cannot_be_run(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        study.check(SMALL.model_copy(update=changes))


def test_a_folder_of_another_design_is_refused(tmp_path):
    claim(tmp_path, SMALL)
    claim(tmp_path, SMALL)
    with pytest.raises(ValueError, match="another recipe"):
        claim(tmp_path, SMALL.model_copy(update={"depth": 3}))


def test_our_arms_are_summed_up_as_a_report_has_them(tmp_path):
    claim(tmp_path, SMALL)
    for name in ("ours", "ours/draft_model"):
        study.decode(name, tmp_path)
    plain, drafted = (study._summary(SMALL, tmp_path, name) for name in ("ours", "ours/draft_model"))
    assert (plain.same, plain.compared, plain.lengths) == (6, 6, {})
    assert (drafted.same, drafted.compared) == (6, 6), "a greedy text changed"
    rounds = Rounds.load(tmp_path / "ours-draft_model" / "rounds.jsonl")
    report = Report(ledger_of_rounds(rounds))
    assert drafted.lengths["think"].value == report.think.mean_length.value
    texts = json.loads((tmp_path / "ours-draft_model" / "texts.json").read_text())
    texts["texts"]["math/0"][3] += 1
    (tmp_path / "ours-draft_model" / "texts.json").write_text(json.dumps(texts))
    assert study._summary(SMALL, tmp_path, "ours/draft_model").same == 5, "a changed text was not seen"


def test_the_table_has_a_row_for_each_arm():
    lengths = {"think": study.Length(value=2.0, low=1.5, high=2.5, verified=1.0, rounds=9)}
    arms = [
        study.Arm(name="ours", engine="ours", method=None, same=6, compared=6, lengths={}),
        study.Arm(name="vLLM/eagle3/policy", engine="vLLM", method="eagle3", same=5, compared=6, lengths=lengths),
        study.Arm(
            name="vLLM/eagle3/adaptive", engine="vLLM", method="eagle3", same=0, compared=0, lengths={}, refused="no"
        ),
    ]
    result = study.Result(config=SMALL, release="0.32.0", arms=arms, provenance={})
    _, cells = study.rows(result)
    assert cells == [
        ["ours", "6 of 6", "", "", "", ""],
        ["vLLM, eagle3, policy", "5 of 6", "2.00 [1.50, 2.50]", "1.00", "", ""],
        ["vLLM, eagle3, adaptive", "refused", "", "", "", ""],
    ]


@pytest.mark.skipif(installed_release() is not None, reason="vLLM is installed")
def test_without_vllm_it_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="vLLM is not installed here"):
        study.run(None, tmp_path, SMALL)


@pytest.mark.skipif(installed_release() is None, reason="vLLM is not installed (make test-vllm installs it)")
def test_all_of_it_for_real(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "companion", "vllm", "compare", "--folder", str(tmp_path / "arms")]
    command += ["--per-domain", "2", "--max-new-tokens", "120", "--output", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    result = study.load(tmp_path / "found.json")
    by_name = {arm.name: arm for arm in result.arms}
    assert all(arm.same == arm.compared == 6 for arm in result.arms if arm.refused is None)
    assert by_name["vLLM/draft_model/policy"].lengths["think"].verified <= 1
    ours, theirs = (by_name[f"{engine}/eagle3"].lengths["think"].value for engine in ("ours", "vLLM"))
    assert theirs == pytest.approx(ours, abs=0.02)
    assert by_name["vLLM/draft_model/adaptive"].refused, "it runs on a CPU now: compare it"
