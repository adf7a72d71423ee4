"""A response as HTML, token by token: what the drafter guessed right, what the target wrote itself, and the phase."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from companion.engine.generate import GenerationResult
from companion.figures import PHASE

Decode = Callable[[Sequence[int]], str]


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
        colour = PHASE[phase]
        style = f"background:{colour}33" if source == "draft" else f"border-bottom:2px solid {colour}"
        spans.append(f'<span style="{style};padding:1px 0">{text}</span>')
    key = " ".join(
        f'<span style="background:{colour}33">accepted, {phase}</span> '
        f'<span style="border-bottom:2px solid {colour}">target-made, {phase}</span>'
        for phase, colour in PHASE.items()
    )
    return (
        '<div style="font-family:monospace;line-height:1.7;white-space:pre-wrap;max-width:60em">'
        f'<p style="margin:0 0 .6em">{key}</p>{"".join(spans)}</div>'
    )
