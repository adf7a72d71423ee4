"""What is checked and timed: each kernel at the sizes of Qwen3, its fp64 answer, its plain version, its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpu_blocks import block_cases
from torch import Tensor

from companion.kernels.batch import Batch, Drafts
from companion.kernels.overlap import overlap, overlap_reference
from companion.kernels.philox import words
from companion.kernels.plain import plain_overlap, plain_probe, plain_verify
from companion.kernels.probe import probe, probe_reference
from companion.kernels.ragged_attention import Stream, ragged_attention, ragged_attention_reference
from companion.kernels.schedule import schedule, schedule_reference
from companion.kernels.verify import verify, verify_reference
from companion.kernels.work import attention_work, overlap_work, probe_work, schedule_work, verify_work

BEYOND_CACHE = 400 << 20  # bytes that a case's inputs have together, several times an H200's 50 MB of L2
MOST_SETS = 16


@dataclass
class Case:
    name: str
    dtype: str
    shape: str
    bytes: int  # that one call must move
    inputs: Sequence[tuple[Any, ...]]  # several sets of them
    kernel: Callable[..., Any]  # of a set
    plain: Callable[..., Any]
    error: Callable[..., float]  # of the kernel on a set, against fp64
    tolerance: float
    compile: bool = True  # whether torch.compile is tried on the plain version


@dataclass(frozen=True)
class Build:
    name: str
    make: Callable[[torch.device], Case]

    def __call__(self, device: torch.device) -> Case:
        return self.make(device)


def sets_of(count: int, device: torch.device) -> int:
    """How many sets of inputs of ``count`` bytes do not fit a GPU's cache together."""
    if device.type != "cuda":
        return 1
    return max(1, min(MOST_SETS, math.ceil(BEYOND_CACHE / max(1, count))))


def worst(found: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Largest relative difference of two numbers; infinite where one is missing."""
    errors = [0.0]
    for own, other in zip(found, right, strict=True):
        difference = (own.double() - other.double()).abs() / other.double().abs().clamp_min(1e-8)
        errors.append(float(difference.nan_to_num(math.inf).max()))
    return max(errors)


def name_of(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]


def cases(dry: bool) -> list[Build]:
    width = 1000 if dry else 151_936
    built = []
    for dtype in (torch.float32, torch.bfloat16)[: 1 if dry else 2]:  # the interpreter's bf16 is not to be trusted
        for rows in (3,) if dry else (64, 512):
            built.append(Build("probe", lambda device, d=dtype, n=rows: probe_case(device, d, n, width)))
            built.append(Build("overlap", lambda device, d=dtype, n=rows: overlap_case(device, d, n, width)))
        requests = 3 if dry else 64
        built.append(Build("verify", lambda device, d=dtype, n=requests: verify_case(device, d, n, 7, width)))
        lengths = ((2, 40),) if dry else ((64, 4096), (1, 32_768))
        for count, context in lengths:
            for whole in (False, True):
                args = (count, context, whole)
                built.append(
                    Build("ragged_attention", lambda device, d=dtype, a=args: attention_case(device, d, *a, dry=dry))
                )
    built += [Build("markov", lambda device, m=make: Case(**m(device))) for make in block_cases(dry, width, sets_of)]
    size = (16, 7) if dry else (512, 7)
    for lagged in (False, True):
        built.append(Build("schedule", lambda device, lag=lagged: schedule_case(device, *size, lagged=lag)))
    return built


def logits_of(device: torch.device, dtype: torch.dtype, rows: int, width: int) -> Tensor:
    """Rows of a language model's kind, some ids masked."""
    made = torch.randn(rows, width, device=device) * 3.0
    made[:, 7 :: 1000 if width > 1000 else 100] = -math.inf
    return made.to(dtype)


def probe_case(device: torch.device, dtype: torch.dtype, rows: int, width: int) -> Case:
    count = probe_work(rows, width, dtype.itemsize).bytes
    ids = torch.tensor([1, width // 2], device=device)
    inputs = [(logits_of(device, dtype, rows, width),) for _ in range(sets_of(count, device))]

    def kernel(logits: Tensor) -> Any:
        return probe(logits, ids)

    def plain(logits: Tensor) -> Any:
        return plain_probe(logits, (1, width // 2))

    def error(logits: Tensor) -> float:
        return worst(kernel(logits), probe_reference(logits.double(), (1, width // 2)))

    return Case("probe", name_of(dtype), f"{rows} x {width}", count, inputs, kernel, plain, error, 1e-4)


def overlap_case(device: torch.device, dtype: torch.dtype, rows: int, width: int) -> Case:
    count = overlap_work(rows, width, dtype.itemsize).bytes
    inputs = [tuple(logits_of(device, dtype, rows, width) for _ in range(2)) for _ in range(sets_of(count, device))]

    def error(target: Tensor, draft: Tensor) -> float:
        return worst(overlap(target, draft), overlap_reference(target.double(), draft.double()))

    return Case("overlap", name_of(dtype), f"2 x {rows} x {width}", count, inputs, overlap, plain_overlap, error, 1e-4)


def verify_case(device: torch.device, dtype: torch.dtype, requests: int, depth: int, width: int) -> Case:
    """Drafts sampled from a neighbour of the target's law, so that most blocks are partly kept."""
    rows = requests * (depth + 1)
    count = verify_work(requests, depth, width, dtype.itemsize).bytes
    inputs = []
    for number in range(sets_of(count, device)):
        logits = logits_of(device, dtype, rows, width)
        laws = (logits.view(requests, depth + 1, width)[:, :depth].float() * 0.8).flatten(0, 1).to(dtype)
        drawn = torch.distributions.Categorical(logits=laws.float()).sample().view(requests, depth)
        place = torch.arange(requests * depth, device=device).view(requests, depth)
        last = drawn.new_full((requests, 1), -1)
        batch = Batch(
            torch.cat([drawn, last], 1).flatten(),
            torch.arange(requests + 1, device=device) * (depth + 1),
            torch.arange(requests, device=device) + 100 * number,
            words(*range(2 * requests)).view(requests, 2).to(device),
            torch.ones(requests, device=device),
        )
        inputs.append(
            (logits, batch, Drafts(laws, torch.cat([place, last], 1).flatten(), torch.ones(len(laws), device=device)))
        )

    def kernel(logits: Tensor, batch: Batch, drafts: Drafts) -> Any:
        return verify(logits, batch, drafts, depth=depth)

    def plain(logits: Tensor, batch: Batch, drafts: Drafts) -> Any:
        return plain_verify(logits, batch, drafts, depth)

    def error(logits: Tensor, batch: Batch, drafts: Drafts) -> float:
        """The share of requests whose committed tokens are not those of fp64: one may, whose number is on an edge."""
        own = Batch(*(t.cpu() for t in batch))
        laws = Drafts(drafts.laws.cpu(), drafts.rows.cpu(), torch.ones(len(drafts.laws)))
        right = verify_reference(logits.double().cpu(), own, laws, depth=depth)
        return float((kernel(logits, batch, drafts).tokens.cpu() != right.tokens).any(1).double().mean())

    shape = f"{requests} x ({depth} + 1) x {width}"
    return Case("verify", name_of(dtype), shape, count, inputs, kernel, plain, error, 1.5 / requests)


def attention_case(
    device: torch.device, dtype: torch.dtype, requests: int, context: int, whole: bool, *, dry: bool
) -> Case:
    heads, kv_heads, d, new = (4, 2, 16, 8) if dry else (32, 8, 128, 8)
    size = dtype.itemsize
    count = attention_work(requests, new, context, heads=heads, kv_heads=kv_heads, head_dim=d, size=size).bytes
    ids = torch.arange(requests, device=device).repeat_interleave(new)
    ends = torch.full((requests,), context, device=device)
    positions = (context - new + torch.arange(new, device=device)).repeat(requests)
    stream = Stream.blocks(ids, ends, new) if whole else Stream.causal(ids, positions, requests, new)
    table = torch.arange(requests, device=device)[:, None]
    inputs = []
    for _ in range(sets_of(count, device)):
        keys, values = (torch.randn(requests, kv_heads, context, d, device=device).to(dtype) for _ in range(2))
        inputs.append((torch.randn(requests * new, heads, d, device=device).to(dtype), keys, values))
    hidden = torch.arange(context, device=device) > positions[:new, None]
    mask = None if whole else torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill(hidden, -math.inf)

    def kernel(q: Tensor, keys: Tensor, values: Tensor) -> Any:
        return ragged_attention(q, keys, values, table, stream)

    def plain(q: Tensor, keys: Tensor, values: Tensor) -> Any:
        split = q.view(requests, new, heads, d).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(split, keys, values, attn_mask=mask, enable_gqa=True)

    def error(q: Tensor, keys: Tensor, values: Tensor) -> float:
        right = ragged_attention_reference(q.double(), keys.double(), values.double(), table, stream)
        difference = (kernel(q, keys, values).double() - right).norm() / right.norm()  # elements may be near 0
        return float(difference.nan_to_num(math.inf))

    shape = f"{'block' if whole else 'causal'}, {requests} x {new} new, {context} keys"
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    return Case("ragged_attention", name_of(dtype), shape, count, inputs, kernel, plain, error, tolerance, False)


def schedule_case(device: torch.device, requests: int, depth: int, *, lagged: bool) -> Case:
    slots = requests * depth
    inputs = []
    for _ in range(sets_of(slots, device)):
        table, past = (torch.rand(requests, depth, device=device) for _ in range(2))
        table[::3] = (2 * table[::3]).round() / 2  # ties
        seconds = 0.02 + 1e-5 * torch.arange(slots + 1, device=device, dtype=torch.float64)
        inputs.append((table, seconds, past if lagged else None))

    def error(*x: Any) -> float:
        """Requests whose length differs."""
        return float((schedule(*x).lengths != schedule_reference(*x).lengths).sum())

    count = schedule_work(requests, depth).bytes + (slots * 4 if lagged else 0)  # the past beside the present
    name = "schedule, lagged top K" if lagged else "schedule, Algorithm 1"
    shape = f"{requests} x {depth}"
    return Case(name, "fp32", shape, count, inputs, schedule, schedule_reference, error, 0.0)
