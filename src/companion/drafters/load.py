"""Names to drafters."""

from __future__ import annotations

from typing import Any, Literal

from companion.drafters.dspark.checkpoint import load_dspark, random_dspark
from companion.drafters.dspark.config import ARCHITECTURES as DSPARK
from companion.drafters.dspark.drafter import DSparkDrafter
from companion.drafters.eagle3.checkpoint import load_eagle3
from companion.drafters.eagle3.config import ARCHITECTURE as EAGLE3
from companion.drafters.eagle3.drafter import Eagle3Drafter
from companion.drafters.lookup import LookupDrafter
from companion.drafters.medusa import ARCHITECTURE as MEDUSA
from companion.drafters.medusa import MedusaDrafter, load_medusa
from companion.drafters.model import ModelDrafter
from companion.engine.load import DRAFTERS, TextTarget, find_model, load_target
from companion.engine.random_weights import RANDOM
from companion.engine.target import Qwen3Target
from companion.protocols import Drafter


def load_drafter(
    name: str | None,
    target: TextTarget,
    *,
    max_depth: int | None = None,
    proposal: Literal["sampled", "greedy"] = "sampled",
    revision: str | None = None,
    random_weights: bool = False,
) -> Drafter | None:
    """A drafter for ``target``: "none", "lookup", "draft" (the embedded draft model), the name of an embedded drafter
    such as "dspark", a folder, or a hub id.

    What a folder holds is read from its config.json: a DSpark, DFlash or Eagle3 drafter, Medusa heads, or a causal
    language model. ``max_depth`` None means the drafter's own default; ``proposal`` applies to all but lookup.
    ``random_weights`` makes "dspark" or "dflash" in the published shapes around the target, with weights that are drawn
    and mean nothing: for timing. Raises ValueError for an unknown name, a broken folder, and a drafter or a draft model
    made for another target.
    """
    if not isinstance(target, Qwen3Target):  # one without a tokenizer, too
        raise ValueError(f"target must be a loaded model, got {target!r}; load it with load_target")
    if name is None or name == "none":
        return None
    if max_depth is not None and (not hasattr(max_depth, "__index__") or max_depth < 1):
        raise ValueError(
            f"max_depth must be an integer of at least 1, got {max_depth}; use drafter 'none' for plain decoding"
        )
    if name == "lookup":
        return LookupDrafter(target.vocab_size, max_depth=max_depth or 8)
    options: dict[str, Any] = {
        "max_depth": max_depth,
        "proposal": proposal,
        "device": target.device,
        "dtype": target.dtype,
        "usable_vocab": target.usable_vocab,
    }
    if random_weights:
        if name not in ("dspark", "dflash"):
            raise ValueError(
                f"random weights are drawn for 'dspark' and 'dflash', whose shapes are known; got {name!r}"
            )
        drawn = random_dspark(target, dflash=name == "dflash")
        return _with_graphs(DSparkDrafter(drawn, name=f"{name} {RANDOM}", **options), target)
    name = "tiny-qwen3-draft" if name == "draft" else name
    try:
        folder = find_model(name, revision)
        architectures = folder.config().get("architectures") or []
        if not isinstance(architectures, list):
            raise ValueError(f"architectures in its config.json must be a list of names, found {architectures!r}")
    except ValueError as error:
        raise _unknown(name, error) from error
    options["name"] = folder.name
    if any(architecture in DSPARK for architecture in architectures):
        return _with_graphs(DSparkDrafter(load_dspark(folder, target), **options), target)
    if EAGLE3 in architectures:
        return Eagle3Drafter(load_eagle3(folder, target), **options)
    if MEDUSA in architectures:
        return MedusaDrafter(load_medusa(folder, target), **options)
    try:
        model = load_target(name, device=target.device, dtype=target.dtype, revision=revision, graphs=target.graphs)
    except ValueError as error:
        raise _unknown(name, error) from error
    if model.vocab_size != target.vocab_size or _vocabulary(model) != _vocabulary(target):
        raise ValueError(
            f"the draft model {name} and the target {target.name} have different vocabularies "
            f"({model.vocab_size} and {target.vocab_size} tokens): a draft model must share the target's tokenizer"
        )
    return ModelDrafter(model, max_depth=max_depth or 5, proposal=proposal)


def _with_graphs(drafter: DSparkDrafter, target: TextTarget) -> DSparkDrafter:
    drafter.graphs = target.graphs
    return drafter


def _unknown(name: str, error: ValueError) -> ValueError:
    return ValueError(
        f"no drafter {name!r} ('lookup', 'draft', 'none', {', '.join(DRAFTERS)}, folder, hub id): {error}"
    )


def _vocabulary(model: TextTarget) -> dict[str, int] | None:
    return None if model.tokenizer is None else model.tokenizer.get_vocab()
