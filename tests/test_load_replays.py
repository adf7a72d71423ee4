"""Recordings replayed are the real engine: the same rounds at temperature 0, for fixed depths and for schedulers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import companion
from companion.calibration import Temperatures
from companion.compact import load_compact
from companion.engine.load import data_folder
from companion.experiments.anchor_blocks import draft_everywhere
from companion.experiments.anchor_recording import Anchored, Recording
from companion.experiments.simulation.replays import of_mode, replays
from companion.metrics import by_prompt
from companion.protocols import Policy, Sampling
from companion.scheduling.capacity import Capacity, Curve
from companion.scheduling.fixed import FixedDepth
from companion.scheduling.goodput import Goodput
from companion.scheduling.lagged import LaggedTopK
from companion.scheduling.prefix import PrefixScheduler
from companion.scheduling.threshold import Threshold
from companion.serving import Arrivals, simulate
from companion.training.corpus import held_out_samples

STORED = data_folder() / "results"
CAPACITY = Capacity(Curve((1, 8, 64), (1.0, 1.2, 6.0)), (Curve((1, 4), (0.3, 0.5)),))


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.load(STORED / "anchors" / "dspark-0-T0.npz")


def test_the_stored_rounds_of_the_real_loop_are_those_of_the_replay(recording: Recording) -> None:
    real = {
        rows[0].prompt_id: rows for rows in by_prompt(load_compact(STORED / "drafters" / "dspark-0-T0.npz")).values()
    }
    pool = replays(recording)
    log = simulate(FixedDepth(7), CAPACITY, pool, Arrivals.closed_loop(5, len(pool)))
    for request in log.requests:
        own = [(r.verified, r.accepted, r.committed) for r in log.rounds if r.request == request.number]
        assert own == [(r.verified, r.accepted, r.committed) for r in real[request.replay.name]]


@pytest.fixture(scope="module")
def walked() -> tuple[list[list[int]], Recording]:
    """Prompts, and the blocks that the shipped DSpark drafts along the greedy answers, unrounded."""
    target = companion.load_target()
    drafter = companion.load_drafter("dspark", target)
    assert drafter is not None
    prompts = [
        sample.prompt for domain in ("chat", "math") for sample in held_out_samples(domain, "no_think", 4, seed=7)
    ]
    results = companion.generate(target, None, prompts, temperature=0.0, thinking=False, max_new_tokens=40, max_batch=8)
    blocks = draft_everywhere(target, drafter, results, Sampling(0.0))
    responses = [
        Anchored(str(i), "chat", "no_think", len(r.prompt_tokens), r.tokens, r.phases, r.finish_reason, b)
        for i, (r, b) in enumerate(zip(results, blocks, strict=True))
        if b is not None
    ]
    provenance = {"settings": {"max_new_tokens": 40}, "sampling": {"temperature": 0.0}, "drafter": {"name": "dspark"}}
    return [r.prompt_tokens for r in results], Recording(responses, drafter.max_depth, 1, (), provenance)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedDepth(3),
        lambda: PrefixScheduler(CAPACITY),
        lambda: LaggedTopK(CAPACITY),
        lambda: Goodput(CAPACITY),
        lambda: Threshold(0.6, "slot"),
    ],
)
def test_the_real_engine_takes_the_same_decisions_in_the_same_steps(
    walked: tuple[list[list[int]], Recording], make: Callable[[], Policy]
) -> None:
    prompts, recording = walked
    target = companion.load_target()
    real = companion.generate(
        target,
        companion.load_drafter("dspark", target),
        prompts,
        policy=make(),
        temperature=0.0,
        max_new_tokens=40,
        max_batch=3,
    )
    log = simulate(make(), CAPACITY, replays(recording), Arrivals.closed_loop(3, len(prompts)))
    assert len({r.verified for r in log.rounds}) > 1
    for number, result in enumerate(real):
        own = [r for r in log.rounds if r.request == number]
        assert [(r.drafted, r.verified, r.accepted, r.committed) for r in own] == [
            (r.drafted, r.verified, r.accepted, r.committed) for r in result.rounds
        ]
        assert [log.steps[r.step].requests for r in own] == [r.batch for r in result.rounds]


def test_calibrated_confidences(recording: Recording) -> None:
    cold = Temperatures("none", (2.0,) * 7)
    plain, calibrated = replays(recording)[0], replays(recording, cold)[0]
    assert plain.confidence is not None
    assert calibrated.confidence is not None
    assert calibrated.confidence[0] == pytest.approx(cold.apply(plain.confidence[0]).tolist())
    assert replace(calibrated, confidence=None) == replace(plain, confidence=None)
    assert {r.mode for r in of_mode(replays(recording), "think")} == {"think"}
    assert len(of_mode(replays(recording), None)) == len(recording.responses)


def test_bad_recordings(recording: Recording) -> None:
    with pytest.raises(ValueError, match="one token in 2"):
        replays(replace(recording, every=2))
    bare = Recording.load(STORED / "anchors" / "dflash-0-T0.npz")
    assert replays(bare)[0].confidence is None
    with pytest.raises(ValueError, match="no confidences to calibrate"):
        replays(bare, Temperatures.ones(7))
    others = Temperatures("sts", (1.0,) * 7, {"name": "another", "weights_sha256": {"model.safetensors": "0"}})
    with pytest.raises(ValueError, match="fitted to drafter another"):
        replays(recording, others)
