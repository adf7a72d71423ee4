"""Figures of the page on training: how blocks are packed, and the loss of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import ListedColormap

from companion.figures import BLACK, BLUE, CYCLE, GREY, ORANGE, SKY, figure
from companion.training.anchors import PackedBlocks
from companion.training.loop import LOG

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def packing(
    blocks: PackedBlocks,  # of one text
    text: Sequence[str],  # [T] its tokens
    mask: str,  # how the mask token is written
    start: int = 0,  # text before this position is left out
) -> Figure:
    """Who sees whom: a row for each token fed, a column for each token of the text and each fed one.

    Beside a row that is supervised stands the token that it is asked for. ValueError unless the text has T tokens.
    """
    seen = blocks.visible[0, 0].cpu().numpy()  # [N, T + N]
    anchors, gamma = blocks.labels.shape[1:]
    fed = len(seen)
    length, size = seen.shape[1] - fed, fed // anchors
    if len(text) != length:
        raise ValueError(f"the blocks were packed for a text of {length} tokens, got {len(text)}")
    kinds = seen.astype(int)
    kinds[:, length:] *= 2
    fig, axes = figure("tall")
    shown = kinds[:, start:]
    axes.imshow(shown, cmap=ListedColormap(["white", SKY, BLUE]), vmin=0, vmax=2, aspect="auto")
    positions = blocks.positions[0].tolist()
    names = [text[p] if row % size == 0 else mask for row, p in enumerate(positions)]
    columns = [*text[start:], *names]
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7, family="monospace")
    axes.set_yticks(range(fed), names, fontsize=7, family="monospace")
    for row in range(0, fed, size):
        axes.get_yticklabels()[row].set_color(ORANGE)
        axes.get_xticklabels()[length - start + row].set_color(ORANGE)
        axes.axhline(row - 0.5, color=GREY, linewidth=0.8)
    axes.axvline(length - start - 0.5, color=BLACK, linewidth=1.2)
    asked = axes.twinx()
    asked.set(ylim=axes.get_ylim())
    asked.spines.right.set_visible(False)
    labels = ["" for _ in range(fed)]
    for block, slot in blocks.supervised[0].nonzero().tolist():
        labels[block * size + size - gamma + slot] = text[int(blocks.source[0, block, slot]) + 1]
    asked.set_yticks(range(fed), labels, fontsize=7, family="monospace")
    asked.tick_params(length=0)
    for ax in (axes, asked):
        ax.grid(visible=False)
    axes.set_xticks(np.arange(shown.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(fed + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#F0F0F0", linewidth=0.4)
    axes.tick_params(which="both", length=0)
    axes.set(ylabel="fed: anchors and masks")
    asked.set_ylabel("asked for")
    for x, name in (((length - start) / 2, "text"), (length - start + fed / 2, "blocks")):
        axes.text(x - 0.5, -0.7, name, ha="center", va="bottom", fontsize=9)
    return fig


def losses(runs: Mapping[str, Path]) -> Figure:
    """The mean loss since the line before, at every line of the logs of some runs; each run is a folder of the trainer.

    ValueError for a folder without a log.
    """
    fig, axes = figure("single")
    for (name, folder), colour in zip(runs.items(), CYCLE, strict=False):
        if not (folder / LOG).is_file():
            raise ValueError(f"{folder} has no {LOG}: give the folder of a training run")
        lines = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
        axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], color=colour, label=name)
    axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
    axes.legend()
    return fig
