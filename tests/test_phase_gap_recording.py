"""Recordings of Phase 1: killed anywhere they end with the same numbers, and what cannot be compared is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from companion.compact import load_compact, save_compact
from companion.engine.load import data_folder
from companion.experiments.phase_gap import record as recording
from companion.experiments.phase_gap import stored
from companion.experiments.phase_gap.cost import estimate
from companion.experiments.phase_gap.design import Arm, Config, arms, check, chunks, find_drafters
from companion.experiments.phase_gap.prompts import PromptSet, load_prompts
from companion.metrics import by_prompt
from companion.rounds import Round, Rounds

SMALL = Config(per_domain=3, max_new_tokens=20, max_batch=2, temperatures=(1.0,))


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return load_prompts(SMALL.sources, SMALL.per_domain, SMALL.prompt_seed)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Target and drafter as folders in the hub's layout, far from the data folder."""
    folder = tmp_path_factory.mktemp("hub")
    for source, name in (("tiny-qwen3", "Qwen3-tiny"), ("drafters/dspark", "dspark_tiny_block7")):
        shutil.copytree(data_folder() / source, folder / name)
        for extra in ("README.md", "recipe.json"):
            (folder / name / extra).unlink(missing_ok=True)
    return str(folder / "Qwen3-tiny"), str(folder / "dspark_tiny_block7")


@pytest.fixture(scope="module")
def small(pair: tuple[str, str]) -> Config:
    return SMALL.model_copy(update={"target": pair[0]})


@pytest.fixture(scope="module")
def planned(small: Config, pair: tuple[str, str]) -> list[Arm]:
    return arms(small, find_drafters([pair[1]]))


@pytest.fixture(scope="module")
def recorded(small: Config, prompts: PromptSet, planned: list[Arm], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished recordings of a run that nobody killed."""
    output = tmp_path_factory.mktemp("whole")
    recording.record(small, prompts, planned, output)
    return output


@pytest.fixture(scope="module")
def rows_file(small: Config, prompts: PromptSet, planned: list[Arm], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of the same run, as they were appended."""
    output = tmp_path_factory.mktemp("rows")
    recording.record(small.model_copy(update={"keep_text": True}), prompts, planned, output, rows=True)
    return recording.raw_path(output, planned[0])


def same(one: Path, other: Path) -> bool:
    a, b = stored.load_arm(one), stored.load_arm(other)
    return list(a) == list(b) and a.provenance is not None and len(a) > 0


def test_both_conditions_are_asked_the_same_prompts_at_the_full_depth(
    recorded: Path, planned: list[Arm], prompts: PromptSet, pair: tuple[str, str]
) -> None:
    assert [p.name for p in recorded.iterdir() if p.suffix == ".npz"] == [f"{planned[0].label}.npz"]
    table = stored.load_arms(recorded)[0]
    answered = {(r.domain, r.mode, str(r.prompt_id).rpartition("/")[2]) for r in table}
    assert answered == {(d, m, str(i)) for d in prompts.domains for m in ("think", "no_think") for i in range(3)}
    first = {str(r.prompt_id): r for r in reversed(table)}
    assert all(0 < first[f"{d}/no_think/0"].position - first[f"{d}/think/0"].position < 8 for d in prompts.domains)
    provenance = table.provenance or {}
    assert provenance["settings"]["untrimmed"] is True
    assert provenance["settings"]["depth"] == max(r.drafted for r in table) == 7
    assert provenance["prompt_set"] == prompts.hash
    assert provenance["drafter"]["name"] == "dspark_tiny_block7-0"
    assert not any(str(Path(folder).parent) in json.dumps(provenance) for folder in pair)
    assert not any(r.tokens or r.entropy for r in table)  # nobody asked to keep the text


def test_confidences_are_kept_to_half_a_step(recorded: Path, rows_file: Path) -> None:
    raw = {(r.prompt_id, r.round): r.confidence for r in Rounds.load(rows_file)}
    for row in stored.load_arms(recorded)[0]:
        assert np.allclose(row.confidence or [], raw[row.prompt_id, row.round] or [], atol=0.5 / stored.STEPS + 1e-9)


def test_rows_and_text_stay_only_when_asked_for(recorded: Path, rows_file: Path) -> None:
    assert {p.suffix for p in recorded.iterdir()} == {".npz", ".confidence"}
    whole = Rounds.load(rows_file)
    assert all(len(r.max_p) == len(r.served_entropy) == r.verified + 1 and r.tokens for r in whole)
    texts = [json.loads(line) for line in rows_file.with_suffix(".text.jsonl").read_text("utf-8").splitlines()[1:]]
    assert {t["prompt_id"] for t in texts} == {r.prompt_id for r in whole}
    assert all(t["text"] for t in texts)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_anywhere_ends_with_the_same_numbers(
    small: Config, prompts: PromptSet, planned: list[Arm], recorded: Path, tmp_path: Path, seed: int
) -> None:
    """A kill leaves the rows' file cut at some byte: in the header, in a row, between rows, before the last step."""
    raw, draw = recording.raw_path(tmp_path, planned[0]), random.Random(seed)
    for _ in range(2):  # and killed again while it goes on
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recording, "save_arm", interrupt)
            with pytest.raises(KeyboardInterrupt):
                recording.record(small, prompts, planned, tmp_path)
        whole = raw.read_bytes()
        raw.write_bytes(whole[: draw.randrange(whole.index(b"\n") + 1, len(whole) + 1)])
    made = recording.record(small, prompts, planned, tmp_path)
    assert same(made[0], recorded / made[0].name)
    assert not raw.exists()


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_different_draw_would_be_seen(small: Config, prompts: PromptSet, planned: list[Arm], recorded: Path) -> None:
    other = [planned[0].model_copy(update={"seed": 1})]
    output = recorded.parent / "other seed"
    made = recording.record(small, prompts, other, output)
    assert list(stored.load_arm(made[0])) != list(stored.load_arms(recorded)[0])


def test_a_response_that_was_done_is_not_appended_again(
    small: Config, prompts: PromptSet, planned: list[Arm], rows_file: Path, tmp_path: Path
) -> None:
    copy = tmp_path / rows_file.name
    shutil.copy(rows_file, copy)
    shutil.copy(rows_file.with_suffix(".text.jsonl"), copy.with_suffix(".text.jsonl"))
    recording.record(small.model_copy(update={"keep_text": True}), prompts, planned, tmp_path, rows=True)
    assert copy.read_bytes() == rows_file.read_bytes()


def test_text_cannot_be_asked_for_half_way(
    small: Config, prompts: PromptSet, planned: list[Arm], rows_file: Path, tmp_path: Path
) -> None:
    shutil.copy(rows_file, tmp_path / rows_file.name)
    with pytest.raises(ValueError, match="other settings"):
        recording.record(small, prompts, planned, tmp_path)


def test_another_runs_files_are_refused_before_anything_is_decoded(
    small: Config, prompts: PromptSet, planned: list[Arm], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_record_arm", lambda *_: pytest.fail("decoded"))
    with pytest.raises(ValueError, match=r"of another run \(settings differ\)"):
        recording.record(small.model_copy(update={"max_new_tokens": 21}), prompts, planned, recorded)
    fewer = load_prompts(small.sources, 2, small.prompt_seed)
    with pytest.raises(ValueError, match="prompt_set, settings differ"):
        recording.record(small, fewer, planned, recorded)
    with pytest.raises(ValueError, match="does not fit into the"):
        recording.record(small.model_copy(update={"max_new_tokens": 100_000}), prompts, planned, recorded)
    assert recording.record(small, prompts, planned, recorded)  # and its own are taken as they are


Change = Callable[[Rounds], Rounds]


def trimmed(table: Rounds) -> Rounds:
    return Rounds([replace(r, verified=r.accepted + r.rejected) for r in table], table.provenance)


def headless(table: Rounds) -> Rounds:
    rows = list(table)
    return Rounds([r for r in rows if r.round != rows[1].round or r.prompt_id != rows[1].prompt_id], table.provenance)


def open_ended(table: Rounds) -> Rounds:
    return Rounds(list(table)[:-1], table.provenance)


@pytest.mark.parametrize(
    ("change", "message"),
    [(trimmed, "verified fewer tokens than were drafted"), (open_ended, "1 responses have no end")],
)
def test_a_recording_that_was_tampered_with_is_refused(
    recorded: Path, tmp_path: Path, change: Change, message: str
) -> None:
    table = load_compact(stored.finished(recorded)[0])
    save_compact(change(table), tmp_path / "x.npz")
    with pytest.raises(ValueError, match=message):
        stored.load_arms(tmp_path)


def test_a_missing_round_and_a_cut_file_are_refused(recorded: Path, tmp_path: Path) -> None:
    path = stored.finished(recorded)[0]
    with pytest.raises(ValueError, match="a round is missing"):
        stored.save_arm(headless(load_compact(path)), tmp_path / "x.npz", confidence=False)
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="is not a whole compact rounds file"):
        stored.load_arms(tmp_path)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("settings", "untrimmed"), False, "trimmed drafts, which are censored"),
        (("settings", "max_new_tokens"), 21, r"differ in settings \(max_new_tokens\)"),
        (("target", "weights_sha256"), {}, r"differ in target \(weights_sha256\)"),
        (("prompt_set",), "other", "different prompts"),
        (("seeds",), [0], "the same weights and the same draws"),
    ],
)
def test_recordings_of_two_kinds_are_not_mixed(
    recorded: Path, tmp_path: Path, where: tuple[str, ...], value: object, message: str
) -> None:
    path = stored.finished(recorded)[0]
    shutil.copy(path, tmp_path / "a.npz")
    table = load_compact(path)
    place = table.provenance or {}
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    save_compact(table, tmp_path / "b.npz")
    with pytest.raises(ValueError, match=message):
        stored.load_arms(tmp_path)


def test_confidences_of_another_recording_are_refused(recorded: Path, tmp_path: Path) -> None:
    path = stored.finished(recorded)[0]
    table = load_compact(path)
    (table.provenance or {})["seeds"] = [9]
    save_compact(table, tmp_path / path.name)
    shutil.copy(stored.confidence_path(path), stored.confidence_path(tmp_path / path.name))
    with pytest.raises(ValueError, match="is not of the recording"):
        stored.load_arm(tmp_path / path.name)


def test_an_empty_folder_and_rounds_that_do_not_say_untrimmed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished recording"):
        stored.load_arms(tmp_path)
    row = Round(0, 1, 5, 1, 1, 1, False, True, [], ["think"] * 2, ended="stop", prompt_id="a/think/0", domain="a")
    save_compact(Rounds([row], {"settings": {}}), tmp_path / "x.npz")
    with pytest.raises(ValueError, match="1 of the 1 files"):
        stored.load_arms(tmp_path)


# --- the design ----------------------------------------------------------------------------------------------------


def test_seeds_of_the_draws_are_not_repeated_at_temperature_zero() -> None:
    config = SMALL.model_copy(update={"temperatures": (0.0, 1.0), "seeds": (3, 4), "top_k": 20})
    labels = [arm.label for arm in arms(config, find_drafters(["dspark"]))]
    assert labels == ["dspark-0-T0-s3", "dspark-0-T1-k20-s3", "dspark-0-T1-k20-s4"]


def test_drafters_are_named_after_their_training(tmp_path: Path) -> None:
    for name in ("dspark-think-5-2", "eagle3-0"):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "recipe.json").write_text('{"traces": {"think_share": 0.05}}')
    found = find_drafters(["dspark-think-50", str(tmp_path / "eagle3-0")], tmp_path)
    assert [(d.name, d.seed, d.think_share) for d in found] == [
        ("dspark-think-50", 0, 0.5),
        ("eagle3-0", 0, None),
        ("dspark-think-5", 2, 0.05),
        ("eagle3", 0, 0.05),
    ]
    assert [d.family == found[2].family for d in found] == [False, False, True, True]  # here the shares alone differ
    with pytest.raises(ValueError, match="eagle3-0 was given twice"):
        find_drafters([str(tmp_path / "eagle3-0" / "model")], tmp_path)
    with pytest.raises(ValueError, match="'lookup' cannot take part"):
        find_drafters(["lookup"])
    with pytest.raises(ValueError, match="no drafter to measure"):
        find_drafters([])


def test_groups_of_prompts_hold_all_of_them_once(prompts: PromptSet) -> None:
    found = [(c.domain, c.mode, n) for c in chunks(prompts, 1) for n in c.numbers]
    assert len(found) == len(set(found)) == 2 * len(prompts.prompts)
    assert max(len(c.numbers) for c in chunks(load_prompts(SMALL.sources, 9), 2)) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperatures": ()}, "at least one temperature"),
        ({"temperatures": (1.0, 1.0)}, "temperature was given twice"),
        ({"seeds": (1, 1)}, "seed was given twice"),
        ({"temperatures": (-1.0,)}, "temperature must be a finite number"),
        ({"temperatures": (0.0,), "top_k": 20}, "no effect at temperature 0"),
        ({"max_batch": 0}, "max_batch must be at least 1"),
        ({"max_new_tokens": 1}, "max_new_tokens at least 2"),
    ],
)
def test_designs_that_measure_nothing_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(SMALL.model_copy(update=change))


# --- what it costs -------------------------------------------------------------------------------------------------


def test_the_cost_is_bounded_before_and_expected_after_some_responses(
    small: Config, prompts: PromptSet, planned: list[Arm], recorded: Path, rows_file: Path, tmp_path: Path
) -> None:
    before = estimate(small, prompts, planned, tmp_path)
    assert before.responses == 18
    assert before.new_tokens_at_most == 18 * 20
    assert before.expected_hours is None
    assert 0 < before.floor_hours_low < before.floor_hours_high
    first = [rows[0].position - 1 for rows in by_prompt(stored.load_arms(recorded)[0]).values()]
    assert before.prompt_tokens == sum(first)
    after = estimate(small, prompts, planned, recorded)
    assert after.responses_recorded == 18
    assert after.expected_hours == 0
    assert after.expected_new_tokens == sum(r.committed for r in stored.load_arms(recorded)[0])
    raw = rows_file.read_bytes()
    (tmp_path / rows_file.name).write_bytes(raw[: len(raw) * 2 // 3])  # a run under way, in the middle of a row
    during = estimate(small, prompts, planned, tmp_path)
    assert 0 < during.responses_recorded < 18
    assert during.expected_hours is not None
    assert during.expected_hours > 0


def test_rounds_of_trained_drafters_are_read(tmp_path: Path) -> None:
    """What drafter-rounds wrote says the same under Phase 1's names; plain decoding drafts nothing and is left out."""
    source = data_folder() / "results" / "drafters"
    for name in ("dspark-1-T1", "dspark-think-50-1-T1", "dflash-1-T1", "plain-T0"):
        shutil.copy(source / f"{name}.npz", tmp_path)
    known = {arm.provenance["settings"]["drafter_name"]: arm for arm in stored.load_arms(tmp_path) if arm.provenance}
    assert set(known) == {"dspark", "dspark-think-50", "dflash"}
    settings = {name: (arm.provenance or {})["settings"] for name, arm in known.items()}
    assert {name: own["think_share"] for name, own in settings.items()} == {
        "dspark": 0.0,
        "dspark-think-50": 0.5,
        "dflash": 0.0,
    }
    assert settings["dspark"]["family"] == settings["dspark-think-50"]["family"] != settings["dflash"]["family"]
    assert settings["dspark"]["prompts"] == {"math": 60, "code": 60, "chat": 60}
    assert list(known["dspark"]) == list(load_compact(source / "dspark-1-T1.npz"))


def test_trimmed_rounds_of_a_drafter_are_refused(tmp_path: Path) -> None:
    table = load_compact(data_folder() / "results" / "drafters" / "dspark-1-T1.npz")
    rows = [replace(r, verified=r.verified - 1) if not r.accepted and r.verified > 1 else r for r in table]
    save_compact(Rounds(rows, table.provenance), tmp_path / "dspark-1-T1.npz")
    with pytest.raises(ValueError, match="trimmed"):
        stored.load_arms(tmp_path)
