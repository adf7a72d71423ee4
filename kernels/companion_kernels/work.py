r"""work: what each step must move, and how many operations it does, from its shapes alone.

Bytes are those of the large tensors, each as often as the step cannot do without it; ids, lengths and sums of a few
numbers a row are left out. With N rows of V logits of b bytes,

    probe       N V b                    each row once
    overlap     2 N V b                  each row once; the kernel reads it twice, from the cache where it fits
    verify      (N + n + 2 R) V b        N = R + n rows of p and n of q once, and of each request again those where it
                                         stops: which they are is known only when all were read
    markov      K (V r w + R V (b + 4))  W_2 in each step, w bytes a number; U read, l written in fp32
    candidates  R K C (r w + b + 4 + 8)  of C tokens alone, with their ids; finding them is K R V b more
    attention   2 R n h d b              keys and values of n tokens in h heads, once for all new tokens
    schedule    12 R K + 8 + 4 R         confidences, the times of all sizes, and the lengths

Operations are counted as the kernels do them: subtract, multiply, exponential, add and compare are one each.
"""

from __future__ import annotations

from companion.roofline import Work

SUM = 8  # operations on an entry of a row: convert, peak, subtract, scale, exponential, and the two sums of the probe


def probe_work(rows: int, width: int, size: int = 2) -> Work:
    """``rows`` of ``width`` logits of ``size`` bytes."""
    return Work(SUM * rows * width, rows * width * size)


def overlap_work(rows: int, width: int, size: int = 2) -> Work:
    """As many rows of the target and of the drafter."""
    return Work((2 * SUM + 10) * rows * width, 2 * rows * width * size)


def verify_work(requests: int, depth: int, width: int, size: int = 2) -> Work:
    """``depth`` drafts of each request, drawn from logits of ``size`` bytes; both laws are normalised on the way."""
    once, again = requests * (2 * depth + 1), 2 * requests
    return Work((SUM * once + 6 * again) * width, (once + again) * width * size)


def markov_work(requests: int, steps: int, width: int, rank: int, *, weight: float = 2, size: int = 4) -> Work:
    """``weight`` bytes of each number of W_2 (in fp8 with its scales 1 + 4 / r), logits U of ``size``."""
    per_row = requests * width * (size + 4)
    operations = steps * requests * width * (2 * rank + SUM)
    return Work(operations, round(steps * (width * rank * weight + per_row)))


def candidates_work(requests: int, steps: int, count: int, rank: int, *, weight: float = 2, size: int = 4) -> Work:
    """``count`` candidates of each position, their ids in eight bytes."""
    tokens = requests * steps * count
    return Work(tokens * (2 * rank + SUM), round(tokens * (rank * weight + size + 4 + 8)))


def attention_work(
    requests: int, new: int, context: int, *, heads: int, kv_heads: int, head_dim: int, size: int = 2
) -> Work:
    """One layer: ``new`` tokens of each request against ``context`` keys and values, themselves among them."""
    operations = 4 * requests * new * heads * context * head_dim
    return Work(operations, 2 * requests * context * kv_heads * head_dim * size)


def schedule_work(requests: int, depth: int) -> Work:
    """Algorithm 1 on fp32 confidences: a rank is a comparison of each slot with each, twice for its ties."""
    slots = requests * depth
    return Work(4 * slots**2, 4 * slots + 8 * (slots + 1) + 4 * requests)


def fp8_weight(rank: int) -> float:
    """Bytes of a number of a matrix in `companion.kernels.fp8`: one, and its share of the row's scale."""
    return 1 + 4 / rank
