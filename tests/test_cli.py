"""The command line as a user meets it: JSON and nothing else, one sentence for a mistake, the documented exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from companion.cli import main
from companion.engine.load import data_folder


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one call."""
    monkeypatch.setattr(sys, "argv", ["companion", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def test_ceiling_prints_one_json_object(call: Any) -> None:
    code, out, _ = call("ceiling", "8", "--vocab", "151936", "--json")
    record = json.loads(out)
    assert code == 0
    assert round(record["ceiling"], 6) == 0.385362
    assert round(record["floor"], 6) == 0.000335


def test_ceiling_of_a_wider_support(call: Any) -> None:
    _, out, _ = call("ceiling", "8", "--support", "8", "--json")
    assert round(json.loads(out)["ceiling"], 6) == 0.469198


@pytest.mark.parametrize(("planner", "depth"), [("iid", 2), ("certified", 7)])
def test_plan_gives_the_depth_of_each_planner(call: Any, planner: str, depth: int) -> None:
    code, out, _ = call("plan", "--acceptance", "0.385", "--max-depth", "7", "--planner", planner, "--json")
    assert (code, json.loads(out)["depth"]) == (0, depth)


def test_generate_reports_its_rounds(call: Any) -> None:
    options = ["--prompt", "What is 12 + 7?", "--drafter", "lookup", "--max-new-tokens", "24", "--seed", "3", "--json"]
    code, out, _ = call("generate", *options)
    record = json.loads(out)
    assert code == 0
    assert record["finish_reason"] in ("stop", "length")
    assert 1 <= len(record["token_ids"]) <= 24
    committed = [token for row in record["rounds"] for token in row["tokens"]]
    assert record["token_ids"][1:] == committed  # the first token comes from the prefill
    for row in record["rounds"]:
        assert row["accepted"] <= row["verified"] <= row["drafted"]
        assert len(row["phases"]) == len(row["tokens"])
    assert sum(row["drafted"] for row in record["rounds"]) > 0
    assert call("generate", *options)[1] == out or _without_times(call("generate", *options)[1]) == _without_times(out)


def _without_times(out: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(out)
    for row in record["rounds"]:
        row["draft_seconds"] = row["verify_seconds"] = 0
    return record


def test_think_and_no_think_differ_in_their_phases(call: Any) -> None:
    common = ("generate", "--prompt", "What is 12 + 7?", "--drafter", "none", "--max-new-tokens", "8", "--json")
    thinking = json.loads(call(*common, "--think")[1])["phases"]
    direct = json.loads(call(*common, "--no-think")[1])["phases"]
    assert "think" in thinking
    assert set(direct) == {"output"}


def test_streaming_prints_the_same_text(call: Any) -> None:
    common = ("generate", "--prompt", "What is 12 + 7?", "--max-new-tokens", "16", "--seed", "1")
    assert call(*common, "--stream")[1] == call(*common)[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("generate", "--prompt", "hello", "--target", "no-such-model"), "embedded one"),
        (("generate", "--prompt", "hello", "--drafter", "no-such-drafter"), "'lookup'"),
        (("generate", "--prompt", "hello", "--temperature", "-1"), "temperature must be"),
        (("generate", "--prompt", "hello", "--top-p", "0"), "top_p must lie in (0, 1]"),
        (("generate", "--prompt", "hello", "--temperature", "0", "--top-k", "5"), "temperature 0 is greedy"),
        (("generate", "--prompt", " "), "the prompt is empty"),
        (("generate", "--prompt", "<think>no</think>"), "control token"),
        (("generate", "--prompt", "hello", "--max-new-tokens", "100000"), "new tokens fit"),
        (("generate", "--prompt", "hello", "--depth", "0"), "plain decoding"),
        (("plan", "--acceptance", "1.4"), "[0, 1]"),
        (("ceiling", "nan"), "finite"),
        (("bench", "decode", "--repeats", "0"), "at least 1"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_1(call: Any, arguments: tuple[str, ...], expected: str) -> None:
    code, out, err = call(*arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert expected in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [("generate",), ("plan", "--planner", "best"), ("frobnicate",), ("reproduce", "--cell-timeout", "-1")],
)
def test_wrong_usage_is_exit_code_2(call: Any, arguments: tuple[str, ...]) -> None:
    assert call(*arguments)[0] == 2


@pytest.mark.parametrize(
    "verb", [(), ("generate",), ("ceiling",), ("plan",), ("train", "target"), ("reproduce",), ("bench", "decode")]
)
def test_every_verb_explains_itself(call: Any, verb: tuple[str, ...]) -> None:
    code, out, _ = call(*verb, "--help")
    assert code == 0
    assert "Usage" in out


def test_the_end_of_the_last_line_is_not_part_of_a_piped_prompt(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """rustformers/llm#60, ggml-org/llama.cpp#80: echo and editors end a text with a newline that nobody wrote."""

    def prompt(text: str, *, piped: bool) -> list[int]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        given = "-" if piped else text
        return json.loads(call("generate", "--prompt", given, "--max-new-tokens", "1", "--json")[1])["prompt_ids"]

    assert prompt("What is 2 + 3?\n", piped=True) == prompt("What is 2 + 3?", piped=False)
    assert prompt("a\n\n", piped=True) == prompt("a\n", piped=False) != prompt("a", piped=False)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_console_that_lacks_a_character_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """TheR1D/shell_gpt#659: an emoji in the output ended the program on a console with another encoding."""
    for flag, expected in (("--json", '"a\\ud83d\\ude42'), ("--stream", "a?")):
        console = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", console)
        monkeypatch.setattr("companion.engine.load.TextTarget.decode", lambda self, ids, **options: "a🙂")
        monkeypatch.setattr(sys, "argv", ["companion", "generate", "--prompt", "hi", "--max-new-tokens", "2", flag])
        with pytest.raises(SystemExit) as ended:
            main()
        console.flush()
        assert not ended.value.code
        assert expected in console.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ceiling", "20"), "lies between 0 and 11.9312 nats, got 20.0"),
        (("ceiling", "--", "-1"), "lies between 0 and 11.9312 nats, got -1.0"),
        (("train", "target", "--steps", "1", "--workers", "0", "--out", "{tmp}"), "workers must be at least 1, got 0"),
        (("evaluate", "target", "--samples", "0"), "at least 1 sample is needed, got 0"),
        (("bench", "decode", "--threads", "0"), "threads must be at least 1"),
        (("generate", "--prompt", "hi", "--device", "meta"), "device 'meta' cannot be used here"),
        (("train", "drafter", "--samples", "0"), "at least 1 sample and a share of thinking from 0 to 1, got 0"),
        (("train", "drafter", "--think-share", "2"), "got 2400 and 2.0"),
        (("train", "drafter", "--layers", "0"), "needs at least 1 layer"),
        (("bench", "show", "{data}", "--picture", "{tmp}/none/x.png"), "No such file or directory"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    call: Any, arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    stored = data_folder() / "results" / "bench_decode.json"
    code, _, error = call(*(a.format(tmp=tmp_path, data=stored) for a in arguments))
    assert code == 1
    assert sentence in " ".join(error.split())
    assert "Traceback" not in error


@pytest.mark.parametrize(("depth", "layers"), [(8, (1, 2, 3, 4, 5)), (36, (1, 9, 17, 25, 33))])
def test_the_layers_that_a_drafter_reads_follow_the_target(
    call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, depth: int, layers: tuple[int, ...]
) -> None:
    from companion.training import drafter

    asked: list[drafter.DrafterConfig] = []

    def stop(config: drafter.DrafterConfig, *_: Any, **__: Any) -> None:
        asked.append(config)
        raise ValueError("enough")

    monkeypatch.setattr(drafter, "train_drafter", stop)
    record = json.loads((data_folder() / "tiny-qwen3" / "config.json").read_text()) | {"num_hidden_layers": depth}
    record["layer_types"] = ["full_attention"] * depth
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert call("train", "drafter", "--target", str(tmp_path))[0] == 1
    assert asked[0].target_layers == layers


@pytest.mark.parametrize(
    "verb",
    [
        ("profile",),
        ("experiment", "load"),
        ("experiment", "calibration"),
        ("experiment", "decay"),
        ("evaluate", "target"),
        ("bench", "decode"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("mine")
    for path, why in (
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "under" / "x.json", "nothing can be put into"),
    ):
        code, out, err = call(*verb, "--output", str(path))
        assert (code, out) == (1, "")
        assert why in err
        assert len(err.splitlines()) == 1
    with monkeypatch.context() as locked:
        locked.setattr("os.access", lambda *_: False)
        code, _, err = call(*verb, "--output", str(tmp_path / "x.json"))
    assert code == 1
    assert f"nothing can be put into {tmp_path}" in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_a_demand_has_a_verdict(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompt lookup is not asked for the draft model's accepted length, unless somebody asks."""
    from companion.experiments import evaluate_drafter as study

    def asked(config: study.Config, output: Path | None) -> study.DrafterEvaluation:
        demanded = config.at_least is not None
        verdict: Any = "fails" if demanded else None
        return study.DrafterEvaluation(config=config, verdict=verdict, bars=[], cells=[], provenance={})

    monkeypatch.setattr(study, "run", asked)
    assert call("evaluate", "drafter", "--drafter", "lookup")[0] == 0
    assert call("evaluate", "drafter", "--drafter", "lookup", "--at-least", "3")[0] == 1
    assert call("evaluate", "drafter")[0] == 1
    assert json.loads(call("evaluate", "drafter", "--json")[1])["config"]["at_least"] == 2.5


@pytest.mark.parametrize(
    ("arguments", "interrupted"),
    [
        (("reproduce",), "companion.book.run.reproduce"),
        (("evaluate", "target"), "companion.experiments.evaluate_target.run"),
        (("experiment", "drafter-rounds"), "companion.experiments.drafter_rounds.run"),
    ],
)
def test_an_interrupt_says_what_is_kept(
    call: Any, arguments: tuple[str, ...], interrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupted, stop)
    code, _, error = call(*arguments)
    assert code == 130
    assert " ".join(error.split()).endswith("are kept, and the same command goes on from there")


def test_the_certified_planner_names_its_bound(call: Any) -> None:
    assert "at most 3.695 tokens" in call("plan", "--acceptance", "0.385", "--planner", "certified")[1]
    assert "at most" not in call("plan", "--acceptance", "0.385", "--planner", "iid")[1]
