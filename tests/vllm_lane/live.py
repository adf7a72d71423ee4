"""The real vLLM on tiny-qwen3, and our own engine on the same prompts, each in a process of its own.

    python -m vllm_lane.live vllm CASE FOLDER     # rounds.jsonl
    python -m vllm_lane.live ours CASE FOLDER     # ours.json, for test_live to compare

vLLM 0.32's CPU build norms the context keys of every layer of DFlash and DSpark with the first layer's weights (its
rms_norm takes one row of weights where the model hands it one for each layer), which changes drafts and no text. So
these two are decoded from copies whose layers have equal key norms: there both engines compute the same.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safetensors.torch import save_file

import companion
from companion.drafters.dspark.config import DSparkConfig
from companion.engine.load import find_model
from companion.experiments.phase_gap.prompts import load_prompts
from companion.phase.tracker import ThinkTokens
from companion.protocols import Sampling
from companion.serving.vllm.export import export
from companion.serving.vllm.options import Options
from companion.serving.vllm_measure import Offline, Plan, Question, Setup, identify, measure, questions_of, tokenizer_of

CAP = 120
PER_DOMAIN = 2
CASES = {
    "copy": {"method": "draft_model", "depth": 4, "drafter": "tiny-qwen3"},
    "draft": {"method": "draft_model", "depth": 4, "drafter": "tiny-qwen3-draft"},
    "policy": {
        "method": "draft_model",
        "depth": 4,
        "drafter": "tiny-qwen3",
        "policy": {"think": 1, "output": 3},
        "logged": True,
    },
    "off": {
        "method": "draft_model",
        "depth": 4,
        "drafter": "tiny-qwen3-draft",
        "policy": {"think": 0, "output": 4},
        "logged": True,
    },
    "ngram": {"method": "ngram", "depth": 4, "drafter": None, "logged": True},
    "eagle3": {"method": "eagle3", "depth": 7, "drafter": "eagle3", "written": "eagle3"},
    "dflash": {"method": "dflash", "depth": 7, "drafter": "dflash", "written": "dflash"},
    "dspark": {
        "method": "dspark",
        "depth": 7,
        "drafter": "dspark",
        "written": "dspark",
        "interpreter": True,
        "logged": True,
        "probe": True,
    },
}


def questions() -> list[Question]:
    prompts = load_prompts(("held-out",), PER_DOMAIN, 11).prompts
    return questions_of(prompts, tokenizer_of("tiny-qwen3"), thinking=True)


def on_vllm(case: dict[str, Any], folder: Path) -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if case.get("interpreter"):
        interpreted_triton()
    tags = ThinkTokens.of(tokenizer_of("tiny-qwen3"))
    log, rows = (folder / name if case.get(asked) else None for asked, name in (("logged", "log"), ("probe", "rows")))
    drafter = written(case, folder)
    plan = Plan(
        method=case["method"],
        depth=case["depth"],
        target=identify("tiny-qwen3"),
        drafter=identify(drafter) if drafter else {"name": "ngram", "revision": "prompt lookup"},
        thinking=True,
        sampling=Sampling(0.0),
        max_new_tokens=CAP,
        policy=case.get("policy"),
        log=log,
        rows=rows,
    )
    setup = Setup(
        target=str(find_model("tiny-qwen3").path),
        method=case["method"],
        depth=case["depth"],
        drafter=str(find_model(drafter).path) if drafter else None,
        options=Options(tags, case.get("policy"), log, rows) if log else None,
        arguments={"dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 8},
        speculative={"prompt_lookup_min": 2, "prompt_lookup_max": 4} if drafter is None else {},
    )
    measure(Offline(setup), plan, questions(), tags, folder / "rounds.jsonl")


def on_ours(case: dict[str, Any], folder: Path) -> None:
    asked = questions()
    target = companion.load_target("tiny-qwen3")
    name = {"dflash": str(folder / "dflash"), "dspark": str(folder / "dspark"), "eagle3": "eagle3"}.get(case["method"])
    results = companion.generate(
        target,
        companion.load_drafter(name, target),
        [list(q.tokens) for q in asked],
        temperature=0,
        max_new_tokens=CAP,
    )
    found = {
        q.prompt_id: {
            "tokens": r.tokens,
            "ended": r.finish_reason,
            "accepted": [row.accepted for row in r.rounds],
            "entropy": [row.entropy for row in r.rounds],
        }
        for q, r in zip(asked, results, strict=True)
    }
    (folder / "ours.json").write_text(json.dumps(found), encoding="utf-8")


def written(case: dict[str, Any], folder: Path) -> str | None:
    """The drafter that vLLM is given: a name of ours, or a folder that is written first."""
    name = case.get("written")
    if name is None:
        return case["drafter"]
    place = folder / name
    if name == "eagle3":
        export(name, place)
        return str(place)
    source = find_model(name)
    config, weights = source.config(), {key: weight.float() for key, weight in source.weights().items()}
    for key in weights:
        if key.endswith("self_attn.k_norm.weight"):
            weights[key] = weights["layers.0.self_attn.k_norm.weight"].clone()
    if name == "dflash":  # into z-lab's layout; trained for the slots of DeepSpec's, it is seldom right there
        own = replace(DSparkConfig.from_dict(config), own_embeddings=False, anchor_predicts=False, block_size=8)
        config = own.to_dict()
        weights = {k: w for k, w in weights.items() if k not in ("embed_tokens.weight", "lm_head.weight")}
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    return str(place)


def interpreted_triton() -> None:
    """Runner V2 needs a Triton driver and there is none for a CPU: the interpreter, and a driver in name only.

    vLLM does not support this; it is the one way to run DSpark without a GPU, and ends with the release that breaks it.
    The interpreter itself has to be asked for before anything imports Triton: TRITON_INTERPRET=1.
    """
    import triton.backends

    first = next(iter(triton.backends.backends.values()))
    triton.backends.backends["cpu"] = SimpleNamespace(
        compiler=first.compiler, driver=type("Driver", (), {"is_active": staticmethod(lambda: True)})
    )


if __name__ == "__main__":
    {"vllm": on_vllm, "ours": on_ours}[sys.argv[1]](CASES[sys.argv[2]], Path(sys.argv[3]))
