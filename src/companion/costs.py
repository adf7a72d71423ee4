r"""What a round costs: the latency equation (paper Eq. 1), speed-ups (review Eq. 16), and operations and bytes.

Bytes matter more than operations: at batch 1 a forward pass waits for its weights, not for its arithmetic. The counts
here are of weights read once per pass; activations and the cache of keys and values are left out, which is right for a
short context and too kind for a long one.
"""

from __future__ import annotations

from dataclasses import dataclass


def latency_per_token(t_draft: float, t_verify: float, tau: float) -> float:
    """L = (T_draft + T_verify) / tau (paper Eq. 1), in the unit of the two times; tau includes the bonus token."""
    if not (t_draft >= 0.0 and t_verify > 0.0):
        raise ValueError(f"expected T_draft >= 0 and T_verify > 0, got {t_draft} and {t_verify}")
    if not tau >= 1.0:
        raise ValueError(f"tau must be at least 1 (it includes the bonus token), got {tau}")
    return (t_draft + t_verify) / tau


def speedup(t_plain: float, t_draft: float, t_verify: float, tau: float) -> float:
    """Plain decoding's time per token over speculative decoding's: T_plain tau / (T_draft + T_verify)."""
    if not t_plain > 0.0:
        raise ValueError(f"the time of one plain decoding step must be positive, got {t_plain}")
    return t_plain / latency_per_token(t_draft, t_verify, tau)


def breakeven_tau(t_plain: float, t_draft: float, t_verify: float) -> float:
    """The accepted length at which a speculative round costs just what plain decoding would: `speedup` equals 1."""
    if not t_plain > 0.0:
        raise ValueError(f"the time of one plain decoding step must be positive, got {t_plain}")
    return latency_per_token(t_draft, t_verify, 1.0) / t_plain


def speedup_ratio(tau_new: float, tau_old: float) -> float:
    """L_old / L_new = tau_new / tau_old for two drafters with equal T_draft and T_verify (review Eq. 16).

    The latency falls by 1 - tau_old / tau_new: a ratio of 1.57 is 36 % less time per token, not 57 %.
    """
    if not min(tau_new, tau_old) >= 1.0:
        raise ValueError(f"accepted lengths are at least 1 (the bonus token), got {tau_new} and {tau_old}")
    return tau_new / tau_old


def markov_head_flops(gamma: int, rank: int, vocab_size: int) -> int:
    """2 gamma r V (review Eq. 15): per drafted token a row of W_1 [V, r] times W_2 [r, V], multiply and add."""
    if min(gamma, rank) < 0 or vocab_size < 1:
        raise ValueError(f"expected gamma, rank >= 0 and vocab_size >= 1, got {gamma}, {rank}, {vocab_size}")
    return 2 * gamma * rank * vocab_size


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """The sizes of a Qwen3-like decoder that decide how many weights a pass reads (names as in its config.json)."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int

    @property
    def layer_parameters(self) -> int:
        """Matrices of one layer: q, k, v, o and the three of the gated MLP (its norms are a few thousand, left out)."""
        query, key = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return self.hidden_size * (2 * query + 2 * key + 3 * self.intermediate_size)

    @property
    def head_parameters(self) -> int:
        """The LM head, [V, hidden]; an embedding look-up reads one row only and is not counted."""
        return self.vocab_size * self.hidden_size


QWEN3_4B = TransformerShape(2560, 36, 9728, 32, 8, 128, 151_936)


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """Bytes of weights read in one round at batch 1: three reads of the drafter and one of the target."""

    drafter_layers: int
    shared_head: int
    markov_head: int  # W_2, read again for each of the gamma tokens, since token k's row depends on token k-1
    target: int  # all layers and the head, once for the whole block: that is why verifying is cheap

    @property
    def drafter(self) -> int:
        return self.drafter_layers + self.shared_head + self.markov_head


def round_bytes(
    shape: TransformerShape, *, gamma: int, rank: int, drafter_layers: int, bytes_per_weight: int = 2
) -> RoundBytes:
    """Count the large weights that one DSpark round reads: ``drafter_layers`` layers of the target's shape, the shared
    head once, W_2 [r, V] once per drafted token, and the target once.

    Left out: the projection W_c of the target's features (paper Eq. 2: d times m d for m tapped layers, 66 MB for
    Qwen3-4B with m = 5), norms, the confidence head, and the few rows of W_1 and of the embedding that are looked up.
    """
    if min(gamma, rank, drafter_layers) < 0 or bytes_per_weight < 1:
        raise ValueError("gamma, rank and drafter_layers must be >= 0, and bytes_per_weight at least 1")
    return RoundBytes(
        drafter_layers=drafter_layers * shape.layer_parameters * bytes_per_weight,
        shared_head=shape.head_parameters * bytes_per_weight,
        markov_head=gamma * rank * shape.vocab_size * bytes_per_weight,
        target=(shape.num_hidden_layers * shape.layer_parameters + shape.head_parameters) * bytes_per_weight,
    )
