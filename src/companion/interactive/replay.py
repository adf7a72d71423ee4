"""A response as it came to be, round by round: what was drafted, what of it stood, what the target wrote."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import companion
from companion.engine.generate import GenerationResult
from companion.engine.load import TextTarget
from companion.experiments.recorder import Recorder
from companion.highlight import KEY, TEXT, accepted, made
from companion.interactive.part import Part, stepped
from companion.protocols import Drafter
from companion.rounds import Round

REFUSED = "#D55E00"


def decode_replay(target: TextTarget, drafter: Drafter, prompt: str, **options: Any) -> Part:
    """Decode one prompt (``options`` as of `companion.generate`) and show every round of it.

    Shaded in the colour of its phase: drafted and accepted. Underlined: written by the target. Struck through: drafted
    and refused, or drafted behind a refused token; in a page of the book these are seen in their own round only.
    """
    recorder = Recorder(drafter)
    result = companion.generate(target, recorder, prompt, **options)
    drafts = (block for own in recorder.blocks.values() for block in own if block)
    return replay_of(result, [next(drafts) if row.drafted else [] for row in result.rounds], target)


def replay_of(result: GenerationResult, drafts: Sequence[Sequence[int]], target: TextTarget) -> Part:
    """The same for a response whose drafts are known."""

    def text(token: int) -> str:
        return html.escape(target.decode([token], keep_special=True)).replace("\n", "↵<br>")

    captions = ["The prompt is read; the first token comes from that."]
    spans = [made(text(result.tokens[0]), result.phases[0], _from(0))]
    for step, (row, draft) in enumerate(zip(result.rounds, drafts, strict=True), start=1):
        committed = [(text(token), phase, _from(step)) for token, phase in zip(row.tokens, row.phases, strict=True)]
        spans += [accepted(*one) for one in committed[: row.accepted]]
        if row.bonus:  # else the answer ended among them, and what follows was not refused
            spans += [_refused(text(token), step) for token in draft[row.accepted :]]
        spans += [made(*one) for one in committed[row.accepted :]]
        captions.append(_caption(step, row, len(draft)))
    return stepped(
        "A response round by round",
        captions,
        f'<p>{KEY} <s style="text-decoration:line-through 2px {REFUSED}">refused</s></p>'
        f'<div style="{TEXT}">'
        f"{''.join(spans)}</div>",
    )


def _from(step: int) -> str:
    return f' data-from="{step}"'


def _refused(text: str, step: int) -> str:
    return f'<s data-at="{step}" style="text-decoration:line-through 2px {REFUSED}">{text}</s>'


def _caption(step: int, row: Round, drafted: int) -> str:
    parts = [f"Round {step}: {drafted} drafted, {row.accepted} accepted"]
    if row.bonus:
        parts.append("one written by the target" if row.rejected or row.accepted < drafted else "one more as a bonus")
    if len(set(row.phases)) == 2:
        parts.append("and it straddles the end of the thought")
    if row.ended:
        parts.append("and the answer ends")
    return ", ".join(parts) + "."
