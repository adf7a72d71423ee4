r"""A response that was recorded with a block drafted at each of its tokens, made to be decoded again at any depth.

A round at anchor i (token i of the response) that verifies l drafts accepts m = min(l, accept bits in a row) and moves
on to anchor i + m + 1; the response is over with its last token.

*Greedy recordings* are replayed exactly. The target's text is one and the same whatever was drafted, an accepted draft
is a token of it, and what a drafter drafts at an anchor depends on the text before it alone: the rounds are those of
the real loop, for every policy. (For a drafter whose block at depth l is the beginning of a deeper one, and up to the
rounding of sums in another batch.)

*Sampled recordings* are replayed approximately. At an anchor everything is as in a real round: draft, confidences and
bits have exactly the law of a round there, together. But the text goes on as it was recorded and not with the accepted
drafts and the correction, so it does not know how the round went. In a real loop it does: behind a rejection stands a
token that the drafter found unlikely. So anchors are visited at somewhat other places than in a real loop, and a
response has its recorded length whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from companion.protocols import Draft, Phase, Sampling

F64 = NDArray[np.float64]
_NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Replay:
    """``length`` tokens; the block of anchor i has K drafts, ``leading[i]`` of which would be accepted."""

    name: str
    length: int
    prompt_length: int
    drafted: list[list[int]]  # [length - 1][K]
    leading: list[int]  # [length - 1] accept bits in a row from slot 1 on
    confidence: list[list[float]] | None = None  # [length - 1][K]
    entropy: list[float] | None = None  # [length - 1] nats, of the target's row behind anchor i
    phases: Sequence[Phase] = ()  # [length], or none: all of it output
    domain: str = ""
    mode: str = ""
    limit: int = _NO_LIMIT  # max_new_tokens of the recorded loop
    sampling: Sampling = field(default_factory=Sampling)

    @classmethod
    def of(
        cls,
        drafted: ArrayLike,  # [A, K]
        accepted: ArrayLike,  # [A, K] each slot judged by itself
        confidence: ArrayLike | None = None,  # [A, K] probabilities
        *,
        name: str = "",
        prompt_length: int = 1,
        entropy: ArrayLike | None = None,  # [A]
        phases: Sequence[Phase] = (),
        domain: str = "",
        mode: str = "",
        limit: int | None = None,
        sampling: Sampling | None = None,
    ) -> Replay:
        """From what was recorded at anchors 0, 1, .. A - 1 of a response of A + 1 tokens.

        ValueError for a response without an anchor, shapes that disagree, or confidences that are no probabilities.
        """
        tokens, bits = np.asarray(drafted), np.asarray(accepted, dtype=bool)
        if tokens.ndim != 2 or not tokens.size or tokens.shape != bits.shape:
            raise ValueError(
                f"response {name!r}: drafts and accept bits are tables of anchors by slots with one of each at least, "
                f"got shapes {list(tokens.shape)} and {list(bits.shape)}"
            )
        c = None if confidence is None else np.asarray(confidence, dtype=np.float64)
        if c is not None and (c.shape != bits.shape or not ((c >= 0) & (c <= 1)).all()):
            raise ValueError(f"response {name!r}: confidences must be probabilities, one for each of {bits.size} slots")
        length = len(tokens) + 1
        rows = None if entropy is None else np.asarray(entropy, dtype=np.float64).tolist()
        for what, values, wanted in (("phases", phases or None, length), ("entropies", rows, length - 1)):
            if values is not None and len(values) != wanted:
                raise ValueError(f"response {name!r} of {length} tokens needs {wanted} {what}, got {len(values)}")
        if prompt_length < 1 or (limit is not None and limit < length):
            raise ValueError(
                f"response {name!r} of {length} tokens needs a prompt of 1 token at least and a limit that it fits in, "
                f"got {prompt_length} and {limit}"
            )
        return cls(
            name=name,
            length=length,
            prompt_length=prompt_length,
            drafted=tokens.tolist(),
            leading=bits.cumprod(1).sum(1).tolist(),
            confidence=None if c is None else c.tolist(),
            entropy=rows,
            phases=phases,
            domain=domain,
            mode=mode,
            limit=_NO_LIMIT if limit is None else limit,
            sampling=sampling or Sampling(),
        )

    @property
    def depth(self) -> int:
        """K."""
        return len(self.drafted[0])

    def draft(self, anchor: int, depth: int) -> Draft:
        """What was drafted there, the first ``depth`` of it."""
        confidence = self.confidence[anchor][:depth] if self.confidence is not None else None
        return Draft(self.drafted[anchor][:depth], confidence=confidence)

    def with_confidence(self, confidence: ArrayLike) -> Replay:  # [A, K]
        """The same with other confidences, such as calibrated ones."""
        return replace(self, confidence=np.asarray(confidence, dtype=np.float64).tolist())


def workload(
    pool: Sequence[Replay],
    count: int,
    *,
    seed: int | None = 0,
    mix: Mapping[tuple[str, str], float] | None = None,
) -> list[Replay]:
    """``count`` responses in the order in which their requests arrive.

    With a seed the pool is resampled first, response by response within each (domain, mode), so that runs with several
    seeds differ as runs with other prompts would; then each request is of a (domain, mode) drawn by ``mix`` (relative
    weights; default: all that the pool has alike) and takes one of its responses. With seed None the pool is taken in
    turn, as it is. ValueError for an empty pool, a count below 1, or a mix of what the pool lacks.
    """
    if not pool or count < 1:
        raise ValueError(f"a workload needs responses to replay and 1 request at least, got {len(pool)} and {count}")
    cells: dict[tuple[str, str], list[Replay]] = {}
    for replay in pool:
        cells.setdefault((replay.domain, replay.mode), []).append(replay)
    weights = dict(mix) if mix is not None else dict.fromkeys(cells, 1.0)
    if missing := [cell for cell, weight in weights.items() if weight > 0 and cell not in cells]:
        raise ValueError(f"the mix asks for {missing[0]}, and the recording has only {sorted(cells)}")
    if min(weights.values(), default=0.0) < 0 or not np.isfinite(sum(weights.values())) or sum(weights.values()) <= 0:
        raise ValueError(f"the weights of a mix must be numbers of at least 0 that are not all 0, got {weights}")
    if seed is None:
        chosen = [replay for replay in pool if weights.get((replay.domain, replay.mode), 0.0) > 0]
        return [chosen[i % len(chosen)] for i in range(count)]
    generator = np.random.default_rng(seed)
    names = [cell for cell, weight in weights.items() if weight > 0]
    shares = np.array([weights[cell] for cell in names])
    drawn = {
        cell: [cells[cell][i] for i in generator.integers(len(cells[cell]), size=len(cells[cell]))] for cell in names
    }
    which = generator.choice(len(names), size=count, p=shares / shares.sum())
    return [(own := drawn[names[i]])[int(generator.integers(len(own)))] for i in which]
