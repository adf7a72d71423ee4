"""`companion vllm` as a user meets it, against a server that answers as vLLM does."""

import json
import sys

import pytest
from vllm_lane.fakes import serving

from companion.cli import main
from companion.engine.load import load_target
from companion.rounds import Rounds


@pytest.fixture
def call(capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["companion", "vllm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_options_print_what_a_server_is_told(call):
    code, out, _ = call("options", "--policy", '{"think": 2, "output": 7}')
    tags = load_target("tiny-qwen3").tags
    assert code == 0
    assert json.loads(out)["companion"] == {
        "tags": {"open": tags.open, "close": tags.close, "turn": tags.turn},
        "policy": {"think": 2, "output": 7},
    }
    code, _, err = call("options", "--policy", "{think: 2}")
    assert code == 1
    assert "--policy is not JSON" in err


def test_a_server_is_measured_and_an_empty_phase_is_inconclusive(call, tmp_path):
    """The answers hold no closing tag of tiny-qwen3's, so that nothing was measured outside the span."""
    path = tmp_path / "rounds.jsonl"
    given = ["--drafter", "dspark", "--depth", 5, "--per-domain", 2, "--temperature", 0, "--max-new-tokens", 40]
    with serving() as (url, bodies):
        code, out, err = call("measure", "--server", url, "--output", path, *given, "--json")
    record = json.loads(out)
    assert code == 3, err
    assert record["rounds"] == len(Rounds.load(path)) > 0
    assert "vllm 0.32.0, dspark vs tiny-qwen3" in record["origin"]
    assert None in record["mean_accepted_length"].values()
    assert len({tuple(body["prompt"]) for body in bodies}) == 6
    with serving(release="0.31.0") as (url, _):
        code, _, err = call("measure", "--server", url, "--output", tmp_path / "other.jsonl", *given)
    assert code == 1
    assert "this is vLLM 0.31.0" in err


def test_a_policy_without_its_log_is_refused(call, tmp_path):
    code, _, err = call(
        "measure", "--output", tmp_path / "rounds.jsonl", "--drafter", "dspark", "--policy", '{"depth": 0}'
    )
    assert code == 1
    assert "a policy may set depth 0" in err
