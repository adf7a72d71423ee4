"""Recordings of blocks at every anchor as responses that the simulator can serve."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.special import expit

from companion.calibration import Temperatures
from companion.experiments.anchor_recording import Anchored, Recording
from companion.protocols import Sampling
from companion.serving import Replay


def replays(recording: Recording, temperatures: Temperatures | None = None) -> list[Replay]:
    """Every response of two tokens at least, with calibrated confidences if ``temperatures`` are given.

    A response whose last anchors lay beyond the drafter's context ends where they do. ValueError for a recording that
    is not of every token, of another drafter than the temperatures, or without confidences to calibrate.
    """
    if recording.every != 1:
        raise ValueError(
            f"the recording holds blocks at one token in {recording.every}; a loop can be replayed only where every "
            "token is an anchor: record with every=1"
        )
    settings, sampling = recording.provenance.get("settings", {}), recording.provenance.get("sampling") or {}
    if temperatures is not None and temperatures.drafter is not None:
        temperatures.check_drafter(recording.provenance["drafter"])
    return [
        _replay(response, settings.get("max_new_tokens"), Sampling(**sampling), temperatures)
        for response in recording.responses
        if len(response.blocks.drafted)
    ]


def _replay(response: Anchored, limit: int | None, sampling: Sampling, temperatures: Temperatures | None) -> Replay:
    blocks, length = response.blocks, len(response.blocks.drafted) + 1
    if temperatures is not None and blocks.confidence is None:
        raise ValueError("this recording has no confidences to calibrate: its drafter has no confidence head")
    confidence = None
    if blocks.confidence is not None:
        confidence = expit(blocks.confidence) if temperatures is None else temperatures.of_logits(blocks.confidence)
    return Replay.of(
        blocks.drafted,
        blocks.accepted,
        confidence,
        name=response.prompt_id,
        prompt_length=response.prompt_length,
        entropy=blocks.entropy[:, 0],
        phases=response.phases[:length],
        domain=response.domain,
        mode=response.mode,
        limit=limit,
        sampling=sampling,
    )


def of_mode(pool: Sequence[Replay], mode: str | None) -> list[Replay]:
    """Only the responses with thinking on ("think") or off ("no_think"); None: all."""
    return [replay for replay in pool if mode is None or replay.mode == mode]
