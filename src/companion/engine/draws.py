"""Random numbers keyed by (seed, request, purpose, position), so that batch mates change no token."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from companion.kernels import philox


def request_key(prompt: Sequence[int], occurrence: int) -> bytes:
    """A request's identity from its own prompt: the n-th copy of a prompt has the same key in every batch and order."""
    digest = hashlib.blake2b(np.asarray(prompt, dtype=np.int64).tobytes(), digest_size=16)
    digest.update(occurrence.to_bytes(8, "little"))
    return digest.digest()


class KeyedDraws:
    """The engine's `Draws`: one Philox stream per purpose, addressed by position.

    A drafter names its purpose ``draft/<round>``. Discarded drafts may steer later capacity through stale confidences,
    so a position that is drafted again must see a fresh number; accept tests and target draws are used once per
    position.
    """

    def __init__(self, seed: int, key: bytes) -> None:
        if not hasattr(seed, "__index__") or not -(2**127) <= int(seed) < 2**127:
            raise ValueError(f"seed must be an integer of less than 128 bits, got {seed!r}")
        digest = hashlib.blake2b(int(seed).to_bytes(16, "little", signed=True) + key, digest_size=16).digest()
        self.words = np.frombuffer(digest, dtype=np.uint64)  # [2] the request's key, which kernels draw with too
        self._chunks: dict[tuple[str, int], np.ndarray] = {}

    def uniform(self, purpose: str, position: int) -> float:
        """A number in [0, 1) that depends on seed, request, purpose and position alone."""
        index, offset = divmod(position, philox.CHUNK)
        chunk = self._chunks.get((purpose, index))
        if chunk is None:
            chunk = philox.chunk(self.words, purpose, index)
            if len(self._chunks) > 8:  # draft streams are one per round: keep the last few
                self._chunks.pop(next(iter(self._chunks)))
            self._chunks[purpose, index] = chunk
        return float(chunk[offset])

    def token(self, probs: Tensor, purpose: str, position: int) -> int:  # probs: [V]
        return inverse_cdf(probs, self.uniform(purpose, position))

    def accept(self, probability: float, position: int) -> bool:
        return self.uniform("accept", position) < probability


def inverse_cdf(probs: Tensor, u: float) -> int:  # probs: [V], any positive total
    """The smallest id whose cumulative mass exceeds ``u`` times the total, summed in fp64."""
    cumulative = np.cumsum(probs.cpu().numpy(), dtype=np.float64)
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
