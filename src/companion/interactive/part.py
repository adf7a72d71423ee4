"""What a cell shows: HTML for a page, one line for a terminal."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """``text`` is what a comparison of outputs sees beside the HTML."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def stepped(label: str, captions: Sequence[str], body: str) -> Part:
    """A part with one step for each caption.

    An element of ``body`` with ``data-from="n"`` is there from step n on (from 0), one with ``data-at="n"`` at step n
    only; without scripts all of them are there. ValueError for no step at all.
    """
    if not captions:
        raise ValueError("there is nothing to step through: give one caption at least")
    named, told = html.escape(label, quote=True), html.escape(json.dumps(list(captions)), quote=True)
    opening = f'<div class="stepped" role="group" aria-label="{named}" data-captions="{told}">'
    return Part(f"{opening}{body}</div>", f"{label}, {len(captions)} steps")
