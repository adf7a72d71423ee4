"""Algorithm 1, one slot at a time, with what it can see and what it cannot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from companion.interactive.part import Part, stepped
from companion.scheduling.capacity import Capacity
from companion.scheduling.prefix import throughput_path

ADMITTED, JUDGED, SEEN, UNSEEN = "#009E7355", "#E69F0066", "transparent", "#8A8A8A55"


def schedule_steps(confidence: Sequence[Sequence[float]], capacity: Capacity) -> Part:
    """Steps of `companion.scheduling.prefix.prefix_lengths` on a table [R, K] of confidences.

    At every step the table shows the slots: admitted (green), the one that is judged (orange), those whose confidence
    the algorithm may look at (plain), and those it may not, since one in front of them is not admitted (grey, empty).
    """
    c = np.asarray(confidence, dtype=np.float64)
    path = throughput_path(c, capacity)
    requests, lengths = len(c), [0] * len(c)
    speed = float(capacity.steps_per_second(requests, requests))
    captions = [
        f"Nothing is drafted yet that counts: {requests} requests get one token each. "
        f"{_theta(path.tau[0], speed, path.theta[0])}"
    ]
    tables = [_table(c, lengths, None, 0)]
    for m, (row, a) in enumerate(zip(path.requests.tolist(), path.survivals, strict=True), start=1):
        speed = float(capacity.steps_per_second(requests + m, requests))
        raises = bool(path.theta[m] > path.theta[m - 1])
        verdict = "more than before: admitted." if raises else "no more than before: the algorithm stops here."
        captions.append(
            f"Best of what can be seen: slot {lengths[row] + 1} of request {row + 1}, which survives with {a:.4g}. "
            f"{_theta(path.tau[m], speed, path.theta[m])}, {verdict}"
        )
        tables.append(_table(c, lengths, row, m))
        if not raises:
            break
        lengths[row] += 1
    else:
        captions.append("Every slot that can survive is admitted.")
        tables.append(_table(c, lengths, None, len(tables)))
    told = "".join(
        f'<div data-at="{i}"><p class="without-scripts">{caption}</p>{table}</div>'
        for i, (caption, table) in enumerate(zip(captions, tables, strict=True))
    )
    return stepped("Algorithm 1 step by step", captions, told)


def _theta(tau: float, speed: float, theta: float) -> str:
    return f"Θ = {tau:.4g} × {speed:.3g} = {theta:.4f}"


def _table(c: np.ndarray, lengths: Sequence[int], judged: int | None, step: int) -> str:
    heads = "".join(f"<th>slot {k}</th>" for k in range(1, c.shape[1] + 1))
    rows = []
    for r, row in enumerate(c):
        cells = []
        for k, value in enumerate(row):
            colour = ADMITTED if k < lengths[r] else UNSEEN if k > lengths[r] else JUDGED if r == judged else SEEN
            shown = "" if k > lengths[r] else f"{value:.2f}"
            cells.append(f'<td style="background:{colour}">{shown}</td>')
        rows.append(f"<tr><th>request {r + 1}</th>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
