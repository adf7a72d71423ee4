"""Muon in fp32, batched over matrices of one shape and shared among the processes of a training run.

torch.optim.Muon orthogonalises one matrix at a time in bf16, which is slow on a CPU without bf16 units; the update here
is the same one (a test compares them).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic Newton-Schulz iteration of the Muon optimiser


def orthogonalise(
    g: Tensor,  # [n, rows, cols]
    steps: int,
) -> Tensor:
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrices; singular values end up near 1."""
    a, b, c = _COEFFICIENTS
    x = g / g.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    tall = x.size(-2) > x.size(-1)
    x = x.mT.contiguous() if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Nesterov), with decoupled weight decay, for the 2-D weights of a network.

    With ``torch.distributed`` initialised, each process orthogonalises its share of the matrices and all exchange them.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0, ns_steps: int = 5
    ) -> None:
        super().__init__(list(params), {"lr": lr})
        self.momentum, self.weight_decay, self.ns_steps = momentum, weight_decay, ns_steps

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update from the gradients; they must be equal in all processes."""
        params = [p for group in self.param_groups for p in group["params"]]
        lr = self.param_groups[0]["lr"]
        directions = self._exchange([self._momentum(p) for p in params])
        for p, direction in zip(params, directions, strict=True):
            p.mul_(1 - lr * self.weight_decay)
            p.add_(direction, alpha=-lr * math.sqrt(max(1.0, p.size(0) / p.size(1))))

    def _momentum(self, p: Tensor) -> Tensor:
        assert p.grad is not None
        buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
        buffer.lerp_(p.grad, 1 - self.momentum)
        return p.grad.lerp(buffer, self.momentum)

    def _exchange(self, updates: list[Tensor]) -> list[Tensor]:
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        shapes: dict[torch.Size, list[int]] = defaultdict(list)
        for i, u in enumerate(updates):
            shapes[u.shape].append(i)
        done = [torch.zeros_like(u) for u in updates]
        for indices in shapes.values():
            mine = indices[rank::world]
            if mine:
                made = orthogonalise(torch.stack([updates[i] for i in mine]), self.ns_steps)
                for i, m in zip(mine, made, strict=True):
                    done[i] = m
        if world > 1:
            flat = torch.cat([d.reshape(-1) for d in done])
            dist.all_reduce(flat)
            done = [f.view_as(d) for f, d in zip(flat.split([d.numel() for d in done]), done, strict=True)]
        return done
