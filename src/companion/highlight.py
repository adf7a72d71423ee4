"""A response as HTML, token by token: what the drafter guessed right, what the target wrote itself, and the phase."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import get_args

from companion.engine.generate import GenerationResult
from companion.figures import PHASE
from companion.protocols import Phase

Decode = Callable[[Sequence[int]], str]


TEXT = "font-family:monospace;line-height:1.7;white-space:pre-wrap;overflow-wrap:anywhere;max-width:60em"  # its style


def accepted(text: str, phase: Phase, attributes: str = "") -> str:
    """A drafted token that stood."""
    return f'<span{attributes} style="background:{PHASE[phase]}33">{text}</span>'


def made(text: str, phase: Phase, attributes: str = "") -> str:
    """A token of the target's own."""
    return f'<span{attributes} style="border-bottom:2px solid {PHASE[phase]}">{text}</span>'


KEY = " ".join(f"{accepted(f'accepted, {p}', p)} {made(f'written by the target, {p}', p)}" for p in get_args(Phase))


def highlight(result: GenerationResult, decode: Decode) -> str:
    """Accepted draft tokens are shaded in their phase's colour; tokens that the target made are underlined.

    Each round is one run of shaded tokens and the underlined one that ends it. ``decode`` maps token ids to text, for
    instance ``target.decode`` with ``keep_special=True``.
    """
    sources = ["target"]  # the token sampled from the prefill
    for row in result.rounds:
        sources += ["draft"] * row.accepted + ["target"] * row.bonus
    spans = []
    for token, phase, source in zip(result.tokens, result.phases, sources, strict=True):
        text = html.escape(decode([token])).replace("\n", "↵<br>")
        spans.append((accepted if source == "draft" else made)(text, phase))
    return f'<div style="{TEXT}"><p style="margin:0 0 .6em">{KEY}</p>{"".join(spans)}</div>'
