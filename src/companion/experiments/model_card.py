"""The model cards of the embedded models: what is measured comes from result files, never from a hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from companion.experiments.evaluate_target import TargetEvaluation
from companion.experiments.target_report import Cell
from companion.provenance import file_hash, write_atomic

HEAD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
"""

TARGET = """# tiny-qwen3

A `Qwen3ForCausalLM` of {parameters:.2f} million parameters that thinks before it answers. It exists so that every
notebook and test of this project runs on a real reasoning model with Qwen3's architecture, chat format and
`enable_thinking` switch, on any CPU. It is **not** a Qwen3 checkpoint, and no number measured on it speaks of one.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("data/tiny-qwen3")
model = AutoModelForCausalLM.from_pretrained("data/tiny-qwen3")
```

## Data

A seeded procedural corpus (`companion.training.corpus`); no text was collected. Mathematics: sums, differences,
products, chains of two, two-step word problems, worked digit by digit inside the span. Code: small
Python functions and what they return, traced item by item. Chat: a phrase grammar of 48 topics with Zipf choices, where
the span plans what the answer then says. Half of the samples think. {overlap:.0f} % of the answers without thinking
are written in the style of a span, so that the two phases overlap in style. One operand set (for chat: one prompt) in
eight, chosen by a hash, is held out and never trained on. The hash is of the whole problem: a single digit fact of a
held-out problem does occur in other problems.

## Recipe

`companion train target` with its defaults: {steps} steps of about {tokens_per_step} tokens, Muon on matrices and AdamW
on the embedding and the norms, fp32, two processes. It is all in `recipe.json`; a killed run resumes and ends with the
same weights. Stored in fp16 and loaded in fp32: {identical} of {responses} greedy responses to held-out prompts are
token for token those of the unrounded weights.
"""

DRAFT = """# tiny-qwen3-draft

A `Qwen3ForCausalLM` of {parameters:.2f} million parameters and two layers: an ordinary autoregressive draft model for
tiny-qwen3. It learned the target's distribution on the target's own sampled output ({samples} responses to training
prompts, half of them with thinking). The loss is half KL divergence, half rejection probability. Alone it is a poor
model.

Recipe: `companion.training.draft.train_draft` with its defaults, {steps} steps; see `recipe.json`.
"""

LIMITS = """
## Limits

It knows this corpus and nothing else: other questions get fluent nonsense. The rows *longer* and *wording* show what
one digit more, one item more and an unseen phrasing do to it. English only. No safety training: it cannot say much that
is harmful, and nothing keeps it from it.

## Licence

Apache-2.0, weights and code.
"""


def write_target_card(folder: Path, evaluation: TargetEvaluation) -> None:
    """``README.md`` of the target in ``folder``, from its recipe and its evaluation.

    Raises ValueError when the evaluation is of other weights.
    """
    digest = file_hash(folder / "model.safetensors")
    evaluated = evaluation.provenance["target"]["weights_sha256"]["model.safetensors"]
    if evaluated != digest:
        raise ValueError(
            f"the evaluation is of weights {evaluated[:12]}, the folder holds {digest[:12]}: evaluate again"
        )
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    text = TARGET.format(
        parameters=_parameters(folder),
        overlap=100 * recipe["overlap"],
        steps=recipe["schedule"]["steps"],
        tokens_per_step=recipe["tokens_per_batch"] * recipe["batches_per_step"],
        **recipe["fp16"],
    )
    parts = [HEAD, text, _measured(evaluation), LIMITS, _hash(digest)]
    write_atomic(folder / "README.md", "".join(parts))


def write_draft_card(folder: Path) -> None:
    """``README.md`` of the draft model in ``folder``, from its recipe."""
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    text = DRAFT.format(
        parameters=_parameters(folder), samples=recipe["traces"]["samples"], steps=recipe["schedule"]["steps"]
    )
    licence = "\n## Licence\n\nApache-2.0, weights and code.\n"
    write_atomic(folder / "README.md", HEAD + text + licence + _hash(file_hash(folder / "model.safetensors")))


def _measured(evaluation: TargetEvaluation) -> str:
    config = evaluation.config
    lines = [
        "\n## Measured\n\n",
        f"`companion evaluate target`: {config.samples} held-out prompts per domain, mode and temperature; Wilson 95 % "
        "intervals. *Right* is the final answer; *span*: opened and closed once with thinking on, no think token with "
        "it off; *ends*: by its own stop token.\n\n",
        "| kind | T | domain | mode | right | span | ends | tokens | of them thinking | spans of 100 and more |\n",
        "|---|---|---|---|---|---|---|---|---|---|\n",
        *(_row(c) for c in evaluation.cells),
        "\nRight with thinking, by family (standard, first temperature):\n\n",
        "| domain | family | right |\n|---|---|---|\n",
        *_families(evaluation.cells),
        "\nEntropy of the next-token distribution at temperature 1, nats:\n\n",
        "| domain | mode | phase | tokens | mean | below .05 | above 1 | above 2 | largest |\n",
        "|---|---|---|---|---|---|---|---|---|\n",
    ]
    for e in evaluation.entropy:
        shares = " | ".join(f"{100 * s:.1f} %" for s in (e.below_005, e.above_1, e.above_2))
        lines.append(
            f"| {e.domain} | {e.mode} | {e.phase} | {e.tokens} | {e.mean:.3f} | {shares} | {e.maximum:.2f} |\n"
        )
    missed = [b.name for b in evaluation.bars if b.verdict == "fails"]
    lines.append(
        f"\nBars missed at this sample size: {'; '.join(missed) or 'none'}. The intervals say how sure that is.\n"
    )
    return "".join(lines)


def _row(c: Cell) -> str:
    cells = (
        c.kind,
        c.temperature,
        c.domain,
        c.mode,
        c.right or "",
        c.span_ok,
        c.ended,
        f"{c.mean_tokens:.0f}",
        f"{c.mean_think_tokens:.0f}",
        c.long_spans or "",
    )
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _families(cells: Iterable[Cell]) -> Iterable[str]:
    first = next(iter(cells)).temperature
    for c in cells:
        if (c.temperature, c.kind, c.mode) == (first, "standard", "think"):
            for family, share in c.families.items():
                yield f"| {c.domain} | {family} | {share} |\n"


def _parameters(folder: Path) -> float:
    return weights_size(folder) / 1e6


def weights_size(folder: Path, without: tuple[str, ...] = ()) -> int:
    """Numbers in a folder's model.safetensors, tables whose name contains one of ``without`` left out."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as f:
        counted = [key for key in f.keys() if not any(part in key for part in without)]  # noqa: SIM118
        return sum(math.prod(f.get_slice(key).get_shape()) for key in counted)


def _hash(digest: str) -> str:
    return f"\n`model.safetensors` sha256: `{digest}`\n"


def main(data: Path | None = None) -> dict[str, Any]:
    """Rewrite both cards of the data folder from the stored results; returns which were written."""
    from companion.engine.load import data_folder

    root = data or data_folder()
    stored = json.loads((root / "results" / "evaluate_target.json").read_text(encoding="utf-8"))
    write_target_card(root / "tiny-qwen3", TargetEvaluation.model_validate(stored))
    write_draft_card(root / "tiny-qwen3-draft")
    return {"written": ["tiny-qwen3/README.md", "tiny-qwen3-draft/README.md"]}


if __name__ == "__main__":
    main()
