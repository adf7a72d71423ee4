"""An origin describes a run in full, or says that there was none."""

from dataclasses import FrozenInstanceError
from datetime import datetime

import pytest
from phase.origins import FIXTURE, measured

from companion.phase.origin import Measured, Synthetic, differences, require_measured
from companion.protocols import Sampling
from companion.provenance import collect

BLANKS = [
    (name, value)
    for name in ("harness", "target", "target_revision", "drafter", "drafter_revision", "hardware")
    for value in ("", "  ", None)
]
ODD = [
    ("thinking", "on"),
    ("untrimmed", 1),
    ("sampling", {"temperature": 1.0}),
    ("seeds", ()),
    ("seeds", ("0",)),
    ("seeds", (True,)),
    ("prompt_set", "the usual prompts"),
    ("prompt_set", ""),
    ("recorded_on", "2026-08-07"),
    ("recorded_on", datetime(2026, 8, 7)),
    ("depth", 0),
    ("depth", True),
    ("depth", 7.0),
]


@pytest.mark.parametrize(("name", "value"), BLANKS + ODD)
def test_a_blank_or_odd_field_describes_no_run(name, value):
    with pytest.raises(ValueError, match=name):
        measured(**{name: value})


@pytest.mark.parametrize("name", list(Measured.__dataclass_fields__))
def test_no_field_has_a_default(name):
    fields = {f: getattr(measured(), f) for f in Measured.__dataclass_fields__ if f != name}
    with pytest.raises(TypeError, match=name):
        Measured(**fields)


def test_banners_say_what_it_is():
    assert FIXTURE.banner == "SYNTHETIC TRACE (hand-made trace) - NOT A MEASUREMENT"
    assert measured().banner == "MEASURED - companion 0.1.0, dspark vs tiny-qwen3, thinking-mode ON, 2026-08-07"
    assert "thinking-mode OFF" in measured(thinking=False).banner
    with pytest.raises(ValueError, match="fixture"):
        Synthetic(" ")


def test_only_a_measured_run_passes():
    run = measured()
    assert require_measured(run, "a claim") is run
    for other in (FIXTURE, None, {"harness": "companion"}, "measured"):
        with pytest.raises(TypeError, match="only a measured run can become a claim"):
            require_measured(other, "a claim")
    with pytest.raises(FrozenInstanceError):
        run.target = "Qwen/Qwen3-4B"


def test_differences_are_named():
    assert differences(measured(), measured()) == []
    assert differences(measured(), measured(depth=5, drafter="dflash")) == ["drafter", "depth"]
    assert differences(measured(), FIXTURE) == ["origin"]
    assert differences(FIXTURE, Synthetic("another")) == ["fixture"]


def test_a_collected_record_becomes_an_origin():
    record = collect(
        target={"name": "tiny-qwen3", "revision": None, "weights_sha256": {"model.safetensors": "a" * 64}},
        drafter={"name": "dspark", "revision": "main", "weights_sha256": {}},
        thinking=True,
        sampling={"temperature": 1.0, "top_k": 20, "top_p": 1.0, "min_p": 0.0},
        seeds=[0, 1],
        prompts=["a", "b"],
        depth=7,
        untrimmed=True,
    )
    run = Measured.of(record)
    assert (run.target, run.drafter, run.drafter_revision, run.depth) == ("tiny-qwen3", "dspark", "main", 7)
    assert run.sampling == Sampling(1.0, top_k=20)
    assert len(run.target_revision) == 64
    assert run.harness.startswith("companion ")
    for part in ("target", "drafter", "sampling", "settings", "prompt_set", "thinking"):
        with pytest.raises(ValueError, match=r"."):
            Measured.of(record | {part: None})
    with pytest.raises(ValueError, match="untrimmed"):
        Measured.of(record | {"settings": {"depth": 7}})
