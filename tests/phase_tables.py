"""Recordings of Phase 1 made by hand: acceptance of each domain and side is known, and so is every verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from companion.protocols import Phase
from companion.rounds import Round, Rounds

DEPTH = 5
DOMAINS = ("math", "code")
Rates = Mapping[str, float]  # side (think, output, off) -> chance that a slot is accepted, the same in every domain


def provenance(prompts: int, **changed: Any) -> dict[str, Any]:
    """As `record` writes it."""
    record: dict[str, Any] = {
        "harness": {"name": "companion", "version": "0.1.0", "commit": "abc"},
        "recorded_at": "2026-08-07T00:00:00+00:00",
        "target": {"name": "made-up", "revision": None, "weights_sha256": {"m": "a"}, "dtype": "float32"},
        "drafter": {"name": "none", "revision": None, "weights_sha256": {"m": "b"}},
        "thinking": "both",
        "sampling": {"temperature": 1.0, "top_k": None, "top_p": 1.0, "min_p": 0.0},
        "seeds": [0],
        "prompt_set": "0" * 64,
        "settings": {
            "drafter_name": "dspark",
            "drafter_seed": 0,
            "think_share": 0.0,
            "family": "f",
            "prompts": dict.fromkeys(DOMAINS, prompts),
            "source": "made by hand",
            "max_new_tokens": 600,
            "max_batch": 1,
            "depth": DEPTH,
            "untrimmed": True,
        },
        "system": {"processor": "a processor"},
        "seconds": {},
    }
    record["settings"] |= {key: value for key, value in changed.items() if key in record["settings"]}
    return record | {key: value for key, value in changed.items() if key not in record["settings"]}


def table(
    rates: Mapping[str, Rates],
    *,
    prompts: int = 20,
    rounds: int = 12,
    seed: int = 0,
    confidence: Mapping[str, float] | None = None,  # side -> c of every slot
    straddling: bool = False,
    thinking: bool = True,
    spread: float = 0.0,  # what every other prompt's rates are higher by, and the rest lower
    **changed: Any,
) -> Rounds:
    """``rates`` by domain. Every response has ``rounds`` steps a side; the one between the sides may straddle."""
    draw = np.random.default_rng(seed)
    rows = []
    for domain, own in rates.items():
        for mode, sides in (("think", ("think", "output")), ("no_think", ("off",))):
            for number in range(prompts):
                position, numbered = 10, 0
                for side in sides if thinking or mode == "no_think" else ("output",):
                    for step in range(rounds):
                        accepted = int((draw.random(DEPTH) < own[side] + spread * (-1) ** number).cumprod().sum())
                        phase: Phase = "think" if side == "think" else "output"
                        phases = [phase] * (accepted + 1)
                        if straddling and side == "think" and step == rounds - 1 and accepted:
                            phases[-1] = "output"
                        rows.append(
                            Round(
                                request=number, round=numbered, position=position, drafted=DEPTH, verified=DEPTH,
                                accepted=accepted, rejected=accepted < DEPTH, bonus=True, tokens=[], phases=phases,
                                confidence=None if confidence is None else [confidence[side]] * DEPTH,
                                prompt_id=f"{domain}/{mode}/{number}", domain=domain, mode=mode,
                            )
                        )  # fmt: skip
                        position, numbered = position + accepted + 1, numbered + 1
                rows[-1].ended = "stop"
    return Rounds(rows, provenance(prompts, **changed))


def same(think: float, output: float, off: float) -> dict[str, Rates]:
    """The same rates in every domain."""
    return {domain: {"think": think, "output": output, "off": off} for domain in DOMAINS}
