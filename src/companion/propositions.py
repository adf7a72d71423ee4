r"""The note's propositions as functions that compute both sides, each by its own route, for a test to compare.

Every function takes fp64 distributions along the last axis (NumPy or torch) and returns the sides of its statement;
none of them asserts anything. An acceptance rate always comes from the accept/reject rule (`overlap`), never from the
identity that the proposition claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from companion.acceptance import one_hot, overlap
from companion.arrays import Array, namespace
from companion.ceiling import eat_mass, entropy, entropy_ceiling, entropy_floor, top_m_ceiling

T = TypeVar("T")


class Sides(NamedTuple, Generic[T]):
    """The two sides of an equality, or of ``left <= right``."""

    left: T
    right: T


class Bracket(NamedTuple, Generic[T]):
    """``floor <= mode <= ceiling``."""

    floor: T
    mode: T
    ceiling: T


class Boundary(NamedTuple, Generic[T]):
    """Prop. 3: ``acceptance <= eat``, with equality exactly where ``covers``."""

    acceptance: T
    eat: T
    covers: T  # bool: p_d(v) >= p_t(v) for every v in E


def proposition_1(p_t: Array, token: int) -> Sides[Array]:
    """Point-mass identity: c* of the drafter that always proposes ``token`` equals p_t(token)."""
    return Sides(overlap(p_t, one_hot(token, p_t)), p_t[..., token])


def corollary_2(p_t: Array, think_end: int) -> Sides[Array]:
    """EAT is an acceptance rate: c* of the drafter that always proposes `</think>` equals the mass e on it."""
    return Sides(overlap(p_t, one_hot(think_end, p_t)), eat_mass(p_t, [think_end]))


def proposition_3(p_t: Array, p_d: Array, boundary: Sequence[int]) -> Boundary[Array]:
    """EAT ceilings any boundary-supported drafter: supp(p_d) within E gives c* <= e = p_t(E).

    The condition for equality reads min(p_d, p_t) = p_t on E. It holds by itself when E is one token, as then p_d = 1
    there. Raises ValueError when p_d puts mass outside ``boundary``: the statement is not about such a drafter.
    """
    acceptance, mass = overlap(p_t, p_d), eat_mass(p_t, boundary)
    ids = list(boundary)
    outside = namespace(p_d).ones_like(p_d)
    outside[..., ids] = 0
    if bool((p_d * outside > 0).any()):
        raise ValueError("p_d puts mass outside the boundary set, and Prop. 3 does not cover it; restrict its support")
    return Boundary(acceptance, mass, namespace(p_t).all(p_d[..., ids] >= p_t[..., ids], -1))


def proposition_4(p_t: Array) -> Bracket[Array]:
    """Entropy brackets the mode: e^-H <= max_v p_t(v) <= p*(H, V)."""
    h = entropy(p_t)
    return Bracket(entropy_floor(h), namespace(p_t).amax(p_t, -1), entropy_ceiling(h, p_t.shape[-1]))


def corollary_5(p_t: Array, token: int) -> Sides[Array]:
    """Every deterministic drafter satisfies c* <= p*(H, V)."""
    return Sides(overlap(p_t, one_hot(token, p_t)), entropy_ceiling(entropy(p_t), p_t.shape[-1]))


def top_m_bound(p_t: Array, p_d: Array) -> Sides[Array]:
    """Every drafter whose support has m tokens satisfies c* <= P*_m(H, V); m is counted from ``p_d``, row by row."""
    support = (p_d > 0).sum(-1)
    return Sides(overlap(p_t, p_d), top_m_ceiling(entropy(p_t), p_t.shape[-1], support))
