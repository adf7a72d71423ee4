"""The model cards of the shipped drafters: recipe from their folder, accepted lengths from the stored result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from companion.engine.load import DRAFTERS, data_folder
from companion.experiments.accepted_length import AcceptedLengths
from companion.experiments.drafter_statistics import ALL, Cell
from companion.experiments.model_card import weights_size
from companion.provenance import file_hash, write_atomic

KINDS = {
    "dflash": "DFlash: one parallel forward drafts the whole block, from the target's hidden states",
    "dspark": "DSpark: a parallel backbone, a Markov head that ties each token to the one before, a confidence head",
    "dspark-rnn": "DSpark with a recurrent head, which ties each token to all before it in the block",
    "eagle3": "Eagle3: one layer, run once a token on its own output",
}
CARD = """---
license: apache-2.0
pipeline_tag: text-generation
tags: [speculative-decoding]
---
# {name}

{kind}.

A drafter of tiny-qwen3 and of no other model: {trainable:.2f} million trained parameters beside the target's own
embedding and head. It exists so that this project's chapters on drafters run on any CPU; no number measured on it
speaks of a published drafter.

```python
import companion

target = companion.load_target("tiny-qwen3")
drafter = companion.load_drafter("{name}", target)
```

## Recipe

`companion train drafters {name}`, seed {seed}: {samples} responses that the target sampled itself,
{think:.0f} % of them thinking, {steps} steps. All of it is in `recipe.json`. The format is that of the authors' code
(config.json and safetensors), in fp16.

## Measured

Accepted length (tokens a round, the target's own included) on held-out prompts, {prompts} for each domain and mode, by
`companion experiment accepted-length`; of this seed, with 95 % intervals over responses.

| T | thinking | all | math | code | chat |
|---|---|---|---|---|---|
{rows}
## Limits and licence

It drafts well where it was trained to: the rows say how far that goes. A bad draft costs time; it changes neither a
greedy text nor the law of a sampled one. Apache-2.0, weights and code.

`model.safetensors` sha256: `{digest}`
"""


def write_drafter_card(folder: Path, name: str, lengths: AcceptedLengths) -> None:
    """``README.md`` of the drafter in ``folder``. ValueError when the result is not of these weights."""
    recipe: dict[str, Any] = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    digest = file_hash(folder / "model.safetensors")
    measured = {
        run["drafter"]["weights_sha256"]["model.safetensors"]: run["settings"]
        for run in lengths.provenance["runs"]
        if run["drafter"]
    }
    if digest not in measured:
        raise ValueError(f"the accepted lengths are of other weights than {folder} holds: measure again")
    cells = [c for c in lengths.cells if (c.drafter, c.seed) == (name, recipe["seed"])]
    card = CARD.format(
        name=name,
        kind=KINDS[name if name in KINDS else "dspark"],
        trainable=weights_size(folder, without=("embed_tokens", "lm_head")) / 1e6,
        seed=recipe["seed"],
        samples=recipe["traces"]["samples"],
        think=100 * recipe["traces"]["think_share"],
        steps=recipe["schedule"]["steps"],
        prompts=measured[digest]["prompts"],
        rows="".join(_rows(cells)),
        digest=digest,
    )
    write_atomic(folder / "README.md", card)


def _rows(cells: list[Cell]) -> Iterator[str]:
    for temperature, mode in sorted({(c.temperature, c.mode) for c in cells}):
        own = {c.domain: c for c in cells if (c.temperature, c.mode) == (temperature, mode)}
        texts = [_text(own[domain]) for domain in (ALL, "math", "code", "chat")]
        yield f"| {temperature:g} | {'off' if mode == 'no_think' else 'on'} | {' | '.join(texts)} |\n"


def _text(c: Cell) -> str:
    if c.tau is None:
        return ""
    return f"{c.tau:.2f}" if c.low is None or c.high is None else f"{c.tau:.2f} [{c.low:.2f}, {c.high:.2f}]"


def main(data: Path | None = None) -> list[str]:
    """Rewrite the card of every shipped drafter from the stored result; returns which were written."""
    root = data or data_folder()
    stored = json.loads((root / "results" / "accepted_length.json").read_text(encoding="utf-8"))
    lengths = AcceptedLengths.model_validate(stored)
    for name, place in DRAFTERS.items():
        write_drafter_card(root / place, name, lengths)
    return list(DRAFTERS)


if __name__ == "__main__":
    main()
