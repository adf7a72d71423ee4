"""Entropy on a slider, and between floor and ceiling what is left for the mode."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping

from companion.ceiling import entropy_ceiling, entropy_floor
from companion.interactive.part import Part

AT = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)  # nats, of the rows that stand there without scripts


def bracket(vocabularies: Mapping[str, int]) -> Part:
    """The bracket e^-H <= M <= p*(H, V) (the note, Prop. 4) for each of some vocabularies by name.

    The table holds it at a few entropies; in a page of the book a slider takes its place, which solves for p* itself.
    ValueError for a vocabulary of fewer than two tokens, or for none.
    """
    if not vocabularies or min(vocabularies.values()) < 2:
        raise ValueError(f"the bracket needs vocabularies of at least 2 tokens, got {dict(vocabularies)}")
    rows = []
    for name, size in vocabularies.items():
        for h in (h for h in AT if h <= math.log(size)):
            floor, ceiling = float(entropy_floor(h)), float(entropy_ceiling(h, size))
            cells = (html.escape(name), f"{h:g}", f"{floor:.6f}", f"{ceiling:.6f}")
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    given = html.escape(json.dumps(dict(vocabularies)), quote=True)
    heads = "".join(f"<th>{head}</th>" for head in ("vocabulary", "entropy, nats", "floor", "ceiling"))
    label = "The entropy bracket"
    return Part(
        f'<div class="bracket" role="group" aria-label="{label}" data-vocabularies="{given}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>",
        f"{label}, {', '.join(vocabularies)}",
    )
