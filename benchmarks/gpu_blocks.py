"""The cases of the Markov block: full rows, W_2 in fp8, and a candidate set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from companion.kernels.block import Confidence
from companion.kernels.candidates import candidate_set, full_rows, markov_candidates
from companion.kernels.fp8 import Fp8Rows
from companion.kernels.markov import markov
from companion.kernels.philox import purpose_word, words
from companion.kernels.pick import Picked, RowDraws
from companion.kernels.plain import plain_block
from companion.kernels.work import candidates_work, fp8_weight, markov_work

RANK, STEPS = 256, 7
Inputs = tuple[Tensor, Tensor, Any, Tensor, Tensor, RowDraws, Confidence]


def block_cases(
    dry: bool, width: int, sets_of: Callable[[int, torch.device], int]
) -> list[Callable[[torch.device], dict[str, Any]]]:
    made = []
    kinds = ("fp32",) if dry else ("fp32", "bf16")
    for requests in (2,) if dry else (1, 64):
        for kind in (*kinds, "fp8"):
            made.append(lambda device, n=requests, k=kind: block_case(device, n, k, width, sets_of))
    candidates = 100 if dry else 1024
    for kind in (kinds[-1], "fp8"):
        made.append(lambda device, k=kind: block_case(device, 2 if dry else 1, k, width, sets_of, candidates))
    return made


def block_case(
    device: torch.device,
    requests: int,
    kind: str,
    width: int,
    sets_of: Callable[[int, torch.device], int],
    candidates: int | None = None,
) -> dict[str, Any]:
    dtype = torch.bfloat16 if kind != "fp32" and device.type == "cuda" else torch.float32
    weight = fp8_weight(RANK) if kind == "fp8" else dtype.itemsize
    if candidates:
        work = candidates_work(requests, STEPS, candidates, RANK, weight=weight)
    else:
        work = markov_work(requests, STEPS, width, RANK, weight=weight)
    count = work.bytes
    blocks = [inputs_of(device, requests, kind, dtype, width, number) for number in range(sets_of(count, device))]
    inputs = [(x, candidate_set(x[0], candidates) if candidates else None) for x in blocks]

    def kernel(x: Inputs, ids: Tensor | None) -> Picked:
        return markov(*x) if ids is None else markov_candidates(*x[:3], ids, *x[3:])

    def plain(x: Inputs, ids: Tensor | None) -> Any:
        return plain_block(*x, ids)

    def error(x: Inputs, ids: Tensor | None) -> float:
        return block_error(x, kernel(x, ids), ids)

    name = "markov" if not candidates else f"markov, {candidates} candidates"
    return {
        "name": name + (", W_2 in fp8" if kind == "fp8" else ""),
        "dtype": "bf16" if dtype == torch.bfloat16 else "fp32",
        "shape": f"{requests} x {STEPS} x {width}, rank {RANK}",
        "bytes": count,
        "inputs": inputs,
        "kernel": kernel,
        "plain": plain,
        "error": error,
        "tolerance": 1e-4,
        "compile": kind != "fp8" and not candidates and requests == 1,
    }


def inputs_of(device: torch.device, requests: int, kind: str, dtype: torch.dtype, width: int, number: int) -> Inputs:
    w1 = torch.randn(width, RANK, device=device).to(dtype)
    w2 = (torch.randn(width, RANK, device=device) / math.sqrt(RANK)).to(dtype)
    keys = words(*range(2 * requests)).view(requests, 2).to(device)
    purposes = words(purpose_word(f"draft/{number}")).repeat(requests).to(device)
    draws = RowDraws(keys, purposes, torch.arange(requests, device=device) + 250)
    head = Confidence(torch.randn(requests, STEPS, device=device), (torch.randn(RANK, device=device) / 16).to(dtype))
    logits = 3.0 * torch.randn(requests, STEPS, width, device=device)
    anchors = torch.randint(width, (requests,), device=device)
    return (
        logits,
        w1,
        Fp8Rows.of(w2) if kind == "fp8" else w2,
        anchors,
        torch.ones(requests, device=device),
        draws,
        head,
    )


def block_error(x: Inputs, picked: Picked, ids: Tensor | None) -> float:
    """Largest error of rows, q and confidence against fp64 on the tokens drawn; infinite when a token is another than
    the inverse of the row's own distribution gives, but for numbers on an edge of fp32."""
    logits, w1, w2, anchors, _, draws, head = x
    matrix = w2.matrix() if isinstance(w2, Fp8Rows) else w2
    rows = picked.logits if ids is None else full_rows(picked, ids, logits.shape[2])
    before, worst = anchors, 0.0
    for k in range(logits.shape[1]):
        right = logits[:, k].double() + w1[before].double() @ matrix.double().t()
        if ids is not None:
            right = torch.full_like(right, -math.inf).scatter(1, ids[:, k], right.gather(1, ids[:, k]))
        kept, token = rows[:, k].double(), picked.tokens[:, k]
        p = kept.softmax(-1)
        score = (head.bases[:, k].double() + w1[before].double() @ head.weights.double()).sigmoid()
        q = p.gather(1, token[:, None])[:, 0]
        cumulative = p.cumsum(-1)
        above = cumulative.gather(1, token[:, None])[:, 0]
        u = draws.uniforms(k).to(above.device)
        if bool((u > above + 1e-5).any()) or bool((u < above - q - 1e-5).any()):
            return math.inf
        finite = right > -math.inf
        errors = (
            (kept - right)[finite].abs() / right[finite].abs().clamp_min(1.0),
            (picked.q[:, k].double() - q).abs() / q,
            (picked.confidence[:, k].double() - score).abs(),
        )
        worst = max(worst, *(float(error.nan_to_num(math.inf).max()) for error in errors))
        before = token
    return worst
