"""What gpu_decode.py times, one generator of rows for each section."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from companion.accepted_length import tau
from companion.drafters.dspark.drafter import DSparkDrafter
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws
from companion.engine.load import TextTarget
from companion.engine.request import Request, StopRule
from companion.engine.shape import cache_bytes
from companion.engine.target import ragged
from companion.phase.tracker import PhaseTracker, ThinkTokens
from companion.protocols import Context, Sampling

VARIANTS = {"direct": False, "graphs": True}
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
NEW_FEATURES = 4  # committed tokens whose features a round reads


@dataclass
class Bench:
    target: TextTarget
    drafter: DSparkDrafter
    bandwidth: float  # bytes read and written per second by a copy
    context: int
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    plain: dict[tuple[str, int], float] = field(default_factory=dict)  # seconds, by variant and batch
    rounds: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def target_bytes(self) -> int:
        """Weights that a step reads: the head as a matrix, of the embedding a few rows only."""
        t = self.target
        count = t.parameters - (0 if t.head is t.embedding else t.embedding.numel())
        return count * t.dtype.itemsize

    @property
    def drafter_bytes(self) -> dict[str, int]:
        """Weights that a block reads, by stage."""
        backbone, size = self.drafter._backbone, self.target.dtype.itemsize
        layers = sum(w.numel() for layer in backbone.layers for w in (layer.qkv, layer.out, layer.gate_up, layer.down))
        markov = self.drafter._markov
        loop = 0 if markov is None else self.drafter.max_depth * markov.markov_w2.weight.numel()
        return {
            "features": (backbone.fc.numel() + backbone.inject_kv.numel()) * size,
            "parallel": (layers + self.drafter._head.numel()) * size,
            "sequential": loop * size,
        }

    def timed(self, call: Callable[[], Any], batch: int, floor_bytes: int) -> dict[str, Any]:
        """Median wall time of one call among many, launched one behind the other, and how far above the floor."""
        cuda = self.target.device.type == "cuda"
        for _ in range(3):
            call()
        repeats, calls, taken = (7, 20, []) if cuda else (3, 2, [])
        for _ in range(repeats):
            _settle(self.target.device)
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            _settle(self.target.device)
            taken.append((time.perf_counter() - begun) / calls)
        return self.row(
            statistics.median(taken), (max(taken) - min(taken)) / statistics.median(taken), batch, floor_bytes
        )

    def row(self, seconds: float, spread: float, batch: int, floor_bytes: int) -> dict[str, Any]:
        floor = floor_bytes / self.bandwidth
        return {
            "batch": batch,
            "milliseconds": round(1e3 * seconds, 4),
            "spread": round(spread, 3),
            "bytes": floor_bytes,
            "floor_milliseconds": round(1e3 * floor, 4),
            "over_floor": round(seconds / floor, 3),
        }

    def seen_bytes(self, batch: int) -> int:
        """Keys and values that a step reads."""
        return cache_bytes(self.target.shape, batch * self.context, self.target.dtype.itemsize)


def sections(bench: Bench) -> Iterator[Iterator[dict[str, Any]]]:
    yield memory(bench)
    yield agreement(bench)
    yield steps(bench)
    yield stages(bench)
    yield rounds(bench)
    yield rates(bench)


def memory(bench: Bench) -> Iterator[dict[str, Any]]:
    """Bytes of weights and of the caches, and their share of the target's weights. Counted from shapes."""
    target, drafter, size = bench.target, bench.drafter, bench.target.dtype.itemsize
    whole = target.parameters * size
    shared = {"features", "parallel", "sequential"}
    own = sum(bench.drafter_bytes[part] for part in shared) - drafter._head.numel() * size
    if drafter._markov is not None:  # both factors, each once
        own += drafter._markov.markov_w1.weight.numel() * size
        own -= (drafter.max_depth - 1) * drafter._markov.markov_w2.weight.numel() * size
    counted = {
        "target's weights": whole,
        "drafter's own weights": own,
        "target's cache, a request": cache_bytes(target.shape, bench.context, size),
        "drafter's cache, a request": cache_bytes(drafter.config.shape, bench.context, size),
    }
    for what, count in counted.items():
        yield {
            "section": "memory",
            "megabytes": round(count / 1e6, 3),
            "share_of_target": round(count / whole, 5),
            "bytes": count,
            "note": what,
        }
    if target.device.type == "cuda":
        allocated = torch.cuda.memory_allocated(target.device)
        note = "allocated on the device once both are loaded"
        yield {"section": "memory", "megabytes": round(allocated / 1e6, 3), "bytes": allocated, "note": note}


def agreement(bench: Bench) -> Iterator[dict[str, Any]]:
    """Whether replayed steps compute what the ordinary ones do: largest difference of a logit over the logits' size."""
    logits = []
    for graphs in VARIANTS.values():
        bench.target.graphs = graphs
        cache = _filled(bench, 3)
        batch = ragged([(s, bench.context, [5 + s] * n) for s, n in ((0, 7), (1, 1), (2, 5))], bench.target.device)
        bench.target.forward(batch, cache)
        for slot in range(3):
            cache.rollback(slot, bench.context)
        logits.append(bench.target.forward(batch, cache).logits.clone())
    error = float((logits[0] - logits[1]).nan_to_num(0.0).abs().max() / logits[0].nan_to_num(neginf=0.0).abs().max())
    tolerance = 1e-4 if bench.target.dtype is torch.float32 else 5e-2
    right = math.isfinite(error) and error <= tolerance
    yield {"section": "agreement", "right": right, "note": f"graphs against direct: {error:.2g}, at most {tolerance}"}


def steps(bench: Bench) -> Iterator[dict[str, Any]]:
    """The plain step and verification."""
    cache = _filled(bench, max(bench.batches))
    for variant, graphs in VARIANTS.items():
        bench.target.graphs = graphs
        wanted = [(batch, 1) for batch in bench.batches] + [(1, n) for n in bench.lengths if n > 1]
        depth = bench.drafter.max_depth + 1
        wanted += [(batch, depth) for batch in bench.batches if batch > 1]
        for batch, n in wanted:
            rows = [(slot, bench.context, [7] * n) for slot in range(batch)]

            def step(rows: Any = rows, batch: int = batch) -> None:
                for slot in range(batch):
                    cache.lengths[slot] = bench.context
                bench.target.forward(ragged(rows, bench.target.device), cache, bench.drafter.taps)

            row = bench.timed(step, batch, bench.target_bytes + bench.seen_bytes(batch))
            if n == 1:
                bench.plain[variant, batch] = row["milliseconds"] / 1e3
                row["tokens_per_second"] = round(batch / bench.plain[variant, batch], 1)
            over = row["milliseconds"] / 1e3 / bench.plain[variant, batch]
            section = "plain step" if n == 1 else "verify"
            yield {"section": section, "variant": variant, "tokens": n, "over_plain": round(over, 3), **row}


def stages(bench: Bench) -> Iterator[dict[str, Any]]:
    """Features in, block and head, and the loop over slots with the read of the drafted tokens."""
    drafter, shape = bench.drafter, bench.target.shape
    for batch in (b for b in (1, 8, 64) if b <= max(bench.batches)):
        contexts = [_context(i, [7] * (bench.context + 1), 0.0) for i in range(batch)]
        first, new = (
            torch.randn(n, len(drafter.taps), shape.hidden, device=bench.target.device).to(bench.target.dtype)
            for n in (bench.context - NEW_FEATURES, NEW_FEATURES)
        )
        for variant, graphs in VARIANTS.items():
            drafter.graphs = graphs
            drafter.observe(contexts, [torch.cat([first, new])] * batch)
            depths = [drafter.max_depth] * batch
            with torch.inference_mode():
                hidden, logits = (t.clone() for t in drafter.parallel(contexts, drafter.max_depth))
                calls: dict[str, Callable[[], Any]] = {
                    "features": partial(_read_features, bench, contexts, new),
                    "parallel": partial(drafter.parallel, contexts, drafter.max_depth),
                    "sequential": partial(drafter.sequential, hidden, logits, contexts, depths),
                }
                for stage, call in calls.items():
                    if variant == "graphs" and stage != "parallel":
                        continue  # only this one is recorded
                    row = bench.timed(call, batch, max(1, bench.drafter_bytes[stage]))
                    yield {"section": f"draft {stage}", "variant": variant, "tokens": drafter.max_depth, **row}
            for context in contexts:
                drafter.reset(context.request)


def _read_features(bench: Bench, contexts: list[Context], new: torch.Tensor) -> None:
    """The last rows again, of every request."""
    drafter = bench.drafter
    for context in contexts:
        drafter._slots.cache.lengths[drafter._slots.slot(context.request)] = bench.context - len(new)
    drafter.observe(contexts, [new] * len(contexts))
    drafter._read_features(contexts)


def rounds(bench: Bench) -> Iterator[dict[str, Any]]:
    """Whole rounds of the engine, everything drafted and verified, the host's work included."""
    drafter, target = bench.drafter, bench.target
    count = 12 if target.device.type == "cuda" else 3
    most = (count + 6) * (drafter.max_depth + 1)
    for batch in bench.batches:
        for variant, graphs in VARIANTS.items():
            target.graphs = drafter.graphs = graphs
            for temperature in (0.0, 1.0) if batch in (1, 8, 64) else (0.0,):
                engine = Engine(target, drafter, max_batch=batch, capacity=bench.context + most + 1)
                for i in range(batch):
                    engine.submit(_request(i, [7] * bench.context, most, temperature))
                taken = []
                for _ in range(count + 4):  # prompts, and three to warm up
                    _settle(target.device)
                    begun = time.perf_counter()
                    engine.step()
                    _settle(target.device)
                    taken.append(time.perf_counter() - begun)
                waits = _host_waits(engine) if target.device.type == "cuda" else ""
                engine._release(list(engine._running))
                kept, weights = taken[4:], bench.target_bytes + sum(bench.drafter_bytes.values())
                seconds = statistics.median(kept)
                row = bench.row(seconds, (max(kept) - min(kept)) / seconds, batch, weights + bench.seen_bytes(batch))
                if not temperature:
                    bench.rounds[variant, batch] = seconds
                over = round(seconds / bench.plain[variant, batch], 3)
                note = f"temperature {temperature:g}"
                shown = {"section": "round", "variant": variant, "tokens": drafter.max_depth, "over_plain": over}
                yield shown | {"host_waits": waits, "note": note} | row


def rates(bench: Bench) -> Iterator[dict[str, Any]]:
    """Tokens per second if each draft were accepted with a given probability: arithmetic on the rounds' times."""
    for (variant, batch), seconds in bench.rounds.items():
        for a in ACCEPTANCES:
            accepted = float(tau(a, bench.drafter.max_depth))
            yield {
                "section": "at acceptance",
                "variant": variant,
                "batch": batch,
                "tokens": bench.drafter.max_depth,
                "acceptance": a,
                "tokens_per_second": round(batch * accepted / seconds, 1),
                "speedup": round(accepted * bench.plain[variant, batch] / seconds, 3),
                "note": "computed from the round's time",
            }


def _host_waits(engine: Engine) -> int:
    """How often the host waited for the device in one round, as PyTorch warns of it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            engine.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in said)


def _filled(bench: Bench, slots: int) -> Any:
    """A cache with ``context`` tokens in every slot, of numbers that are none of a text's."""
    cache = bench.target.new_cache(slots, bench.context + max(16, *bench.lengths) + 1)
    cache.both.normal_(generator=torch.Generator(bench.target.device).manual_seed(0))
    cache.lengths = [bench.context] * slots
    return cache


def _context(request: int, tokens: list[int], temperature: float) -> Context:
    return Context(request, tokens, Sampling(temperature), KeyedDraws(0, request.to_bytes(8, "little")))


def _request(number: int, prompt: list[int], new_tokens: int, temperature: float) -> Request:
    tracker = PhaseTracker(ThinkTokens(None, None), prompt)
    return Request(_context(number, list(prompt), temperature), len(prompt), StopRule(new_tokens), tracker)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
