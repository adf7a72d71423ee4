"""The three seams (Target, Drafter, Policy) and the small records that pass through them.

One round of speculative decoding, in the order in which things become known::

    policy.draft_depths(views)        how many tokens may each request draft       (sees history only)
    drafter.propose(contexts, depths) the drafts, with the very q they came from
    policy.admit(frontier)            how many drafted tokens are verified         (sees slot k only after k-1 is in)
    target.forward(batch, cache)      one ragged pass over anchors and admitted drafts
    accept / reject / resample        committed tokens
    drafter.observe(contexts, ...)    what the target saw; cache.rollback drops the rejected suffix
    policy.observe(outcomes)          what became of the round, for decisions on later ones

Nothing here imports anything of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

Phase = Literal["think", "output"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How logits become the distribution that is sampled and verified; names as in transformers.

    ``temperature`` 0 means greedy. ``top_k`` None (or 0) keeps all, ``top_p`` 1 keeps all, ``min_p`` 0 keeps all.
    Raises ValueError on values outside their range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            if not isinstance(value, Real):
                raise ValueError(f"{name} must be a number, got {value!r}")
            object.__setattr__(self, name, float(value))  # numpy's numbers cannot be written to a result file
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number >= 0, got {self.temperature}; 0 means greedy")
        if self.top_k is not None and (not hasattr(self.top_k, "__index__") or self.top_k < 0):
            raise ValueError(f"top_k must be a positive integer, or 0 or None for no limit, got {self.top_k}")
        object.__setattr__(self, "top_k", None if self.top_k is None else int(self.top_k))
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}; 1 keeps every token")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p must lie in [0, 1], got {self.min_p}; 0 keeps every token")
        if self.greedy and (self.top_k or self.top_p < 1.0 or self.min_p > 0.0):
            raise ValueError(
                "temperature 0 is greedy, so top_k, top_p and min_p would have no effect; "
                "drop them, or set a temperature above 0"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class Draws(Protocol):
    """Every random choice of the engine and of a drafter goes through here.

    The default (`companion.engine.draws.KeyedDraws`) turns a uniform keyed by (seed, request, purpose, position) into
    the choice; the exact tests pass one that enumerates all outcomes with their weights.
    """

    def token(self, probs: Tensor, purpose: str, position: int) -> int:  # probs: [V], sums to 1
        """A token id drawn from ``probs``."""
        ...

    def accept(self, probability: float, position: int) -> bool:
        """True with ``probability``: the accept test of the drafted token at ``position``."""
        ...


@dataclass(slots=True)
class Context:
    """What a drafter may see of one request: its committed text and how it is sampled."""

    request: int  # identity within one engine run
    tokens: list[int]  # prompt and committed tokens; the last one is the anchor, which the target has not yet read
    sampling: Sampling
    draws: Draws
    round: int = 0  # rounds of this request so far; draft draws are keyed by it


@dataclass(slots=True)
class Draft:
    """A proposed block for one request.

    ``probs`` is the very tensor each token was drawn from, after temperature and filters; None means that the
    proposal was deterministic, so that q is one-hot.
    """

    tokens: list[int]  # [k]
    probs: Tensor | None = None  # [k, V] fp32 (fp64 in exact tests)
    confidence: list[float] | None = None  # [k]: estimate of conditional acceptance, c_k of Eq. 7

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class RequestView:
    """What a policy may see of a request before this round's draft exists."""

    request: int
    position: int  # of the first token to be drafted
    phase: Phase  # phase of the next token
    room: int  # tokens that may still be emitted
    last_entropy: float | None = None  # nats, of the row that produced the anchor: at temperature 1, unfiltered
    sampling: Sampling = field(default_factory=Sampling)
    last_served_entropy: float | None = None  # of that row after temperature and filters; None: not known


class Frontier(Protocol):
    """Drafted slots, revealed one at a time: admitting a slot is final, and only then is the next one visible.

    Whatever a policy computes from a Frontier, the decision on slot k of a request uses only what was revealed before
    x_k, in one sequential order for the whole batch; so every policy written against it is lossless.
    """

    @property
    def requests(self) -> Sequence[RequestView]: ...
    def drafted(self, row: int) -> int:
        """Slots of the request in ``row`` known to exist: the admitted ones, and one more if the draft goes on.

        The whole length stays hidden, since a drafter may end its draft because of a token not yet revealed.
        """
        ...

    def admitted(self, row: int) -> int:
        """Slots admitted so far."""
        ...

    def confidence(self, row: int) -> float | None:
        """Conditional acceptance estimate of the next, not yet admitted slot; None without a confidence head."""
        ...

    def revealed(self, row: int) -> Sequence[int]:
        """Tokens of the admitted slots."""
        ...

    def admit(self, row: int) -> None:
        """Admit the next slot of ``row``, for good. IndexError when none is left."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request's draft, once its round is over and nothing of it can be decided any more."""

    request: int
    confidence: Sequence[float] | None  # [drafted], those of slots that were not verified too: all of it is past
    verified: int
    accepted: int  # committed drafts
    rejected: bool  # a verified draft was turned down


@runtime_checkable
class Policy(Protocol):
    """Decides how much to draft and how much of it to verify.

    One that learns keeps what it learnt: give each run its own.
    """

    name: str

    def draft_depths(self, requests: Sequence[RequestView]) -> Sequence[int]:
        """Tokens to draft for each request, from history alone."""
        ...

    def admit(self, frontier: Frontier) -> None:
        """Admit drafted slots, one after another, until enough."""
        ...

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """The round that was decided last, request by request; it may shape the rounds to come."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Proposes blocks of tokens; keeps its own state per request."""

    @property
    def name(self) -> str: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_context(self) -> int | None:
        """Longest text it can read; None: no limit."""
        ...

    @property
    def deterministic(self) -> bool:
        """True when every proposal is one-hot, so that the entropy ceiling binds."""
        ...

    @property
    def taps(self) -> Sequence[int]:
        """Target layers whose outputs it reads (-1: the embedding); empty when it reads none."""
        ...

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        """Up to ``depths[i]`` tokens for each context; a shorter (or empty) draft is allowed.

        A draft may end after any token it holds, but a token that was drawn may not be dropped because of what it is.
        """
        ...

    def observe(self, contexts: Sequence[Context], features: Sequence[Tensor | None]) -> None:
        """After a round: contexts hold the newly committed tokens; ``features[i]`` [n, taps, d] are the target's
        tapped hidden states of the tokens that entered its cache for good (None when nothing is tapped)."""
        ...

    def reset(self, request: int) -> None:
        """The request is over: forget its state."""
        ...


@dataclass(slots=True)
class RaggedBatch:
    """The tokens of all requests in one flat stream; only attention knows where a request begins.

    Row i of the stream belongs to cache slot ``slots[r]`` for starts[r] <= i < starts[r+1] and sits at
    ``positions[i]`` of that request; its keys and values are written there.
    """

    tokens: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    slots: list[int]  # [R] cache slot of each request
    starts: list[int]  # [R+1] offsets into the stream
    lengths: list[int]  # [R] tokens already in the cache of each request
    logit_rows: Tensor | None = None  # [M] int64 rows whose logits are wanted; None: all


@dataclass(slots=True)
class TargetOutput:
    logits: Tensor  # [M, V]
    features: Tensor | None = None  # [N, taps, d], outputs of the tapped layers


class KVCache(Protocol):
    @property
    def capacity(self) -> int:
        """Tokens per slot."""
        ...

    def rollback(self, slot: int, length: int) -> None:
        """Keep the first ``length`` tokens of a slot. A length, no copy."""
        ...


@runtime_checkable
class Target(Protocol):
    """The model whose distribution the output follows."""

    name: str
    vocab_size: int  # logits' width
    max_context: int
    device: torch.device

    def new_cache(self, slots: int, capacity: int) -> KVCache: ...
    def forward(self, batch: RaggedBatch, cache: KVCache, taps: Sequence[int] = ()) -> TargetOutput: ...
