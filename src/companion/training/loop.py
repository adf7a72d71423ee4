"""The training loop: two optimisers, one or more processes, and a run that ends the same however often it is killed."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn import Module
from tqdm import tqdm

from .checkpoint import load_run, save_run, saved_step, trainable
from .group import is_first
from .interrupt import Interrupt
from .muon import Muon

LOG = "log.jsonl"

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Schedule:
    """Steps and step sizes: linear warm-up, a constant stretch, then a linear fall to ``final`` of the peak."""

    steps: int
    warmup: int = 50
    constant_until: float = 0.4  # as a share of ``steps``
    final: float = 0.01
    lr_matrices: float = 0.02  # Muon
    lr_rest: float = 0.004  # AdamW, embedding and norms
    momentum: float = 0.95
    weight_decay: float = 0.01
    ns_steps: int = 4
    clip: float = 1.0
    checkpoint_every: int = 200
    log_every: int = 20

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.constant_until < 1:
            raise ValueError(
                f"a schedule needs steps >= 1 and 0 <= constant_until < 1, got {self.steps} and {self.constant_until}"
            )

    def factor(self, step: int) -> float:
        """Learning-rate factor of ``step`` (counted from 0)."""
        turn = self.constant_until * self.steps
        fall = 1.0 if step < turn else 1 - (1 - self.final) * (step - turn) / (self.steps - turn)
        return min((step + 1) / max(1, self.warmup), fall)


class Sized(Protocol):
    """What one forward and backward pass reads."""

    @property
    def tokens(self) -> int:
        """Padded tokens, for the throughput in the log."""
        ...


B = TypeVar("B", bound=Sized)


class Task(Protocol[B]):
    """What is trained: must be picklable, and every method a function of its arguments alone."""

    def model(self) -> Module:
        """A freshly initialised model, the same on each call."""
        ...

    def pool(self, index: int) -> list[tuple[B, ...]]:
        """The steps of data pool ``index``, each a few batches."""
        ...

    def loss(self, model: Module, batch: B) -> tuple[Tensor, float]:
        """Weighted sum (not mean) of the loss, and the sum of weights that a step's losses are divided by.

        The model is on the device that it trains on; what the batch reads is the task's to bring there.
        """
        ...


@dataclass(frozen=True)
class TrainResult:
    """Where a run stands. ``finished`` is False after an interrupt; the same call then carries on."""

    folder: Path
    step: int
    finished: bool


def fit(
    task: Task[B],
    schedule: Schedule,
    folder: Path,
    workers: int = 1,
    threads: int = 1,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
) -> TrainResult:
    """Train ``task`` and keep everything in ``folder``; continues from its checkpoint if there is one.

    The batches of each step are split over processes: those of a group that is joined (`companion.training.group`), or
    else ``workers`` that are started here, on the CPU. ``precision`` "bf16" computes losses under autocast and keeps
    parameters, gradients and optimisers in fp32. An interrupt (Ctrl-C) writes a checkpoint first. Errors of a process
    are raised here.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if precision not in ("fp32", "bf16"):
        raise ValueError(f"precision must be fp32 or bf16, got {precision!r}")
    device = torch.device(device)
    folder.mkdir(parents=True, exist_ok=True)
    if workers == 1 or dist.is_initialized():
        before = torch.get_num_threads()
        try:
            step = _train(task, schedule, folder, threads, device, precision)
        finally:
            torch.set_num_threads(before)
    elif device.type != "cpu":
        raise ValueError(f"{workers} workers share CPUs; for several GPUs start the command with torchrun")
    else:
        with tempfile.TemporaryDirectory() as meeting:
            shared = (task, schedule, folder, workers, threads, precision, f"{meeting}/store")
            context = mp.spawn(_worker, shared, workers, join=False)
            assert context is not None
            forward = Interrupt([p.pid for p in context.processes])
            with forward:
                while not context.join():
                    pass
        step = saved_step(folder)
    result = TrainResult(folder, step, step >= schedule.steps)
    if not result.finished and is_first():
        print(f"Stopped at step {step} of {schedule.steps}; the same command continues from there.", file=sys.stderr)
    return result


def _worker(
    rank: int,
    task: Task[B],
    schedule: Schedule,
    folder: Path,
    world: int,
    threads: int,
    precision: Precision,
    store: str,
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        _train(task, schedule, folder, threads, torch.device("cpu"), precision)
    finally:
        dist.destroy_process_group()


def _positions(task: Task[B], pool: int, index: int) -> Iterator[tuple[tuple[B, ...], int, int]]:
    """Steps from (pool, index) on, each with the position after it."""
    while True:
        steps = task.pool(pool)
        for i in range(index, len(steps)):
            yield steps[i], *((pool, i + 1) if i + 1 < len(steps) else (pool + 1, 0))
        pool, index = pool + 1, 0


def _optimisers(model: Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    tables = ("embed", "markov_w")  # one row a token: most rows have no gradient, and no common direction

    def is_matrix(name: str, p: Tensor) -> bool:
        return p.ndim == 2 and not any(table in name for table in tables)

    matrices = [p for n, p in trainable(model).items() if is_matrix(n, p)]
    rest = [p for n, p in trainable(model).items() if not is_matrix(n, p)]
    return [
        Muon(matrices, schedule.lr_matrices, schedule.momentum, schedule.weight_decay, schedule.ns_steps),
        torch.optim.AdamW(rest, schedule.lr_rest, betas=(0.9, 0.98), weight_decay=0.0, foreach=True),
    ]


def _backward(
    task: Task[B], model: Module, batches: tuple[B, ...], device: torch.device, precision: Precision
) -> tuple[float, float]:
    """Gradients of this process's batches (zero without any); returns their weight and their loss."""
    for p in trainable(model).values():
        p.grad = torch.zeros_like(p)
    weight = total = 0.0
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"), warnings.catch_warnings():
            # norms read bf16 rows with fp32 weights, which is meant
            warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
            loss, its_weight = task.loss(model, batch)
        loss.backward()
        weight, total = weight + its_weight, total + float(loss.detach())
    return weight, total


def _reduce_gradients(model: Module, extra: list[float], rank_sum: bool) -> tuple[list[float], float]:
    """Sum gradients and ``extra`` over processes, divide the gradients by extra[0]; returns extra and the norm."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([torch.tensor(extra, device=grads[0].device), *[g.reshape(-1) for g in grads]])
    if rank_sum:
        dist.all_reduce(flat)
    sums = flat[: len(extra)].tolist()
    flat = flat[len(extra) :] / max(sums[0], 1e-9)
    norm = float(flat.norm())
    for g, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        g.copy_(part.view_as(g))
    return sums, norm


def _train(
    task: Task[B], schedule: Schedule, folder: Path, threads: int, device: torch.device, precision: Precision
) -> int:
    torch.set_num_threads(threads)
    many = dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if many else (0, 1)
    model = task.model().to(device)
    optimisers = _optimisers(model, schedule)
    step, pool, index = load_run(folder, model, optimisers)
    bar = tqdm(total=schedule.steps, initial=step, desc="train", unit="step", disable=None if rank == 0 else True)
    started, tokens = time.monotonic(), 0
    stream = _positions(task, pool, index)
    total_loss = total_weight = 0.0
    with Interrupt() as interrupt:
        while step < schedule.steps:
            batches, pool, index = next(stream)
            for o, lr in zip(optimisers, (schedule.lr_matrices, schedule.lr_rest), strict=True):
                o.param_groups[0]["lr"] = lr * schedule.factor(step)
            extra = [*_backward(task, model, batches[rank::world], device, precision), float(interrupt.seen)]
            (weight, loss_sum, stop), norm = _reduce_gradients(model, extra, many)
            if not norm < float("inf"):
                raise ValueError(f"the gradient is not finite at step {step}: lower the learning rates and start anew")
            if norm > schedule.clip:
                torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], schedule.clip / norm)
            for o in optimisers:
                o.step()
            step += 1
            tokens += sum(b.tokens for b in batches)
            total_loss, total_weight = total_loss + loss_sum, total_weight + weight
            bar.update()
            last = step == schedule.steps or stop > 0
            if rank == 0 and (step % schedule.log_every == 0 or last):
                seconds = time.monotonic() - started
                _log(folder, step, total_loss / total_weight, norm, tokens / seconds, seconds)
                bar.set_postfix(loss=f"{total_loss / total_weight:.3f}")
                total_loss = total_weight = 0.0
            if rank == 0 and (step % schedule.checkpoint_every == 0 or last):
                save_run(folder, model, optimisers, {"step": step, "pool": pool, "index": index})
            if stop:
                break
    bar.close()
    if many:
        dist.barrier()
    return step


def _log(folder: Path, step: int, loss: float, norm: float, speed: float, seconds: float) -> None:
    line = {
        "step": step,
        "loss": round(loss, 4),
        "grad_norm": round(norm, 3),
        "tokens_per_s": round(speed),
        "seconds": round(seconds, 1),
    }
    with (folder / LOG).open("a") as f:
        f.write(json.dumps(line) + "\n")
