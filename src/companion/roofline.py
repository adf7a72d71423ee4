r"""Operations against bytes: how long a step must take at least, on hardware of which only two peaks are known.

A step with F operations on M bytes of memory takes at least max(F / peak operations, M / bandwidth) seconds (the
roofline model, Williams et al. 2009). F / M is its arithmetic intensity; below the device's ridge, peak operations /
bandwidth, the bytes decide. Counted are the weights a step reads, as in `companion.costs`; activations are left out.

Everything here is arithmetic on published numbers. A time that a device really took is measured elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from companion.costs import TransformerShape, markov_head_flops, round_bytes


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of weights read."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes


@dataclass(frozen=True, slots=True)
class Device:
    """Two peaks and a cache: what a data sheet says of a chip."""

    name: str
    flops_per_second: float
    bytes_per_second: float
    cache_bytes: int  # the last level that all of the chip shares

    @property
    def ridge(self) -> float:
        """Operations per byte from which on arithmetic, and not memory, decides."""
        return self.flops_per_second / self.bytes_per_second

    def seconds(self, work: Work) -> float:
        """The roofline's lower bound."""
        return max(work.flops / self.flops_per_second, work.bytes / self.bytes_per_second)

    def attainable(self, intensity: float) -> float:
        """Operations per second that the roof allows at this intensity."""
        return min(self.flops_per_second, intensity * self.bytes_per_second)


# NVIDIA's data sheet of the H200 SXM: 4.8 TB/s; 1,979 TFLOP/s of bf16 with structured sparsity, so half of it for the
# dense products of a language model. The 50 MB of L2 are from NVIDIA's paper on the H100, which has the same chip.
H200 = Device("NVIDIA H200", 989e12, 4.8e12, 50_000_000)


def round_work(
    shape: TransformerShape, *, gamma: int, rank: int, drafter_layers: int, batch: int = 1, bytes_per_weight: int = 2
) -> dict[str, Work]:
    """One round of DSpark for ``batch`` requests, by part. The drafter's layers and the head see all gamma positions of
    all requests at once and the target one more of each; the Markov head sees one position of each request, gamma
    times, so that W_2 is read gamma times. ValueError for sizes that are none.
    """
    if batch < 1:
        raise ValueError(f"a round serves at least one request, got a batch of {batch}")
    count = round_bytes(shape, gamma=gamma, rank=rank, drafter_layers=drafter_layers, bytes_per_weight=bytes_per_weight)
    layers, head = shape.layer_parameters, shape.head_parameters
    block, verified = 2 * batch * gamma, 2 * batch * (gamma + 1)  # times a matrix' size: multiply and add
    return {
        "target": Work(verified * (shape.num_hidden_layers * layers + head), count.target),
        "drafter's layers": Work(block * drafter_layers * layers, count.drafter_layers),
        "shared head": Work(block * head, count.shared_head),
        "Markov head": Work(batch * markov_head_flops(gamma, rank, shape.vocab_size), count.markov_head),
    }


@dataclass(frozen=True, slots=True)
class BiasWay:
    """One way to get the bias of all drafted tokens of a round, and what has to be kept for it."""

    work: Work
    stored_bytes: int


def bias_ways(
    vocab_size: int, rank: int, gamma: int, *, batch: int = 1, candidates: int = 1024, bytes_per_weight: int = 2
) -> dict[str, BiasWay]:
    """Ways to compute B(x, .) = W_1[x] W_2 for gamma tokens in turn, for each of ``batch`` requests.

    The last one has no rank: it keeps the V x V table that the product stands for and looks a row up, at no operation.
    ``candidates``: the bias of so many tokens of each position only, the draft distribution being defined on them.
    ValueError for more candidates than tokens.
    """
    if not 1 <= candidates <= vocab_size:
        raise ValueError(f"candidates must lie in 1 to {vocab_size}, the size of the vocabulary; got {candidates}")
    b, matrix, flops = bytes_per_weight, rank * vocab_size, batch * markov_head_flops(gamma, rank, vocab_size)
    few = batch * markov_head_flops(gamma, rank, candidates)
    factors = 2 * matrix * b
    return {
        "product with $W_2$, every token": BiasWay(Work(flops, gamma * matrix * b), factors),
        "the same, $W_2$ in one byte": BiasWay(Work(flops, gamma * matrix), matrix * (b + 1)),
        "the same, $W_2$ kept on the chip": BiasWay(Work(flops, matrix * b), factors),
        f"{candidates:,} candidates a token": BiasWay(Work(few, batch * gamma * rank * candidates * b), factors),
        "row of a full table": BiasWay(Work(0, batch * gamma * vocab_size * b), vocab_size**2 * b),
    }
