"""One run of the real vLLM on tiny-qwen3, in a process of its own: python -m vllm_lane.live CASE FOLDER.

Writes the rounds, and what our own engine says to the same prompts, for test_live to compare.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

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
    "dflash": {"method": "dflash", "depth": 7, "drafter": "z-lab", "written": "z-lab"},
    "dspark": {"method": "dspark", "depth": 7, "drafter": "dspark", "interpreter": True, "logged": True, "probe": True},
}


def main(name: str, folder: Path) -> None:
    case = CASES[name]
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if case.get("interpreter"):
        interpreted_triton()
    import companion
    from companion.engine.load import find_model
    from companion.experiments.phase_gap.prompts import load_prompts
    from companion.phase.tracker import ThinkTokens
    from companion.protocols import Sampling
    from companion.serving.vllm.export import export
    from companion.serving.vllm.options import Options
    from companion.serving.vllm_measure import Offline, Plan, Question, Setup, identify, measure, render, tokenizer_of

    tokenizer = tokenizer_of("tiny-qwen3")
    tags = ThinkTokens.of(tokenizer)
    prompts = load_prompts(("held-out",), PER_DOMAIN, 11).prompts
    questions = [
        Question(f"{p.domain}/{p.number}", render(tokenizer, p.text, thinking=True), p.domain) for p in prompts
    ]
    log, rows = (folder / "log.jsonl" if case.get("logged") else None), folder / "rows.jsonl"
    options = Options(tags, case.get("policy"), log, rows if case.get("probe") else None) if log else None
    drafter = case["drafter"]
    if written := case.get("written"):
        drafter = str(folder / written)
        z_lab(Path(drafter)) if written == "z-lab" else export(written, Path(drafter))
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
    )
    setup = Setup(
        target=str(find_model("tiny-qwen3").path),
        method=case["method"],
        depth=case["depth"],
        drafter=str(find_model(drafter).path) if drafter else None,  # a folder is itself
        options=options,
        arguments={"dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 8},
        speculative={"prompt_lookup_min": 2, "prompt_lookup_max": 4} if drafter is None else {},
    )
    engine = Offline(setup)
    measure(engine, plan, questions, tags, folder / "rounds.jsonl")
    target = companion.load_target("tiny-qwen3")
    ours = companion.generate(target, None, [list(q.tokens) for q in questions], temperature=0, max_new_tokens=CAP)
    name = {"eagle3": "eagle3", "dflash": drafter, "dspark": "dspark"}.get(case["method"])
    own = companion.load_drafter(name, target) if name else None
    speculative = (
        []
        if own is None
        else companion.generate(target, own, [list(q.tokens) for q in questions], temperature=0, max_new_tokens=CAP)
    )
    texts = {q.prompt_id: {"tokens": r.tokens, "ended": r.finish_reason} for q, r in zip(questions, ours, strict=True)}
    accepted = {q.prompt_id: [row.accepted for row in r.rounds] for q, r in zip(questions, speculative, strict=False)}
    (folder / "ours.json").write_text(json.dumps({"plain": texts, "accepted": accepted}), encoding="utf-8")


def z_lab(folder: Path) -> None:
    """The backbone of our DFlash in z-lab's layout. It was trained for the slots of DeepSpec's, so that it is seldom
    right here; what counts is that both engines compute the same."""
    from dataclasses import replace

    from safetensors.torch import save_file

    from companion.drafters.dspark.config import DSparkConfig
    from companion.engine.load import find_model

    source = find_model("dflash")
    config = replace(DSparkConfig.from_dict(source.config()), own_embeddings=False, anchor_predicts=False, block_size=8)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    weights = {k: w.float() for k, w in source.weights().items() if k not in ("embed_tokens.weight", "lm_head.weight")}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def interpreted_triton() -> None:
    """Runner V2 needs a Triton driver and there is none for a CPU: the interpreter, and a driver in name only.

    vLLM does not support this; it is the one way to run DSpark without a GPU, and ends with the release that breaks it.
    """
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    from types import SimpleNamespace

    import triton.backends

    first = next(iter(triton.backends.backends.values()))
    triton.backends.backends["cpu"] = SimpleNamespace(
        compiler=first.compiler, driver=type("Driver", (), {"is_active": staticmethod(lambda: True)})
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
