"""The numbers of the texts that follow from arithmetic, one small function each, as rows of the claims table name them.

Nothing is typed here that another module knows: each function puts a text's own inputs into the package's functions.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from companion import accepted_length, costs, planning
from companion.acceptance import overlap, total_variation
from companion.ceiling import entropy_ceiling, entropy_floor, spike_entropy
from companion.collision import best_parallel_second, conditional_acceptance, log_linear, with_memory
from companion.roofline import H200, bias_ways, round_work
from companion.scheduling.capacity import Capacity
from companion.scheduling.prefix import ThroughputPath, prefix_lengths, throughput_path

if TYPE_CHECKING:
    import pandas as pd

QWEN3_VOCABULARY = costs.QWEN3_4B.vocab_size
TARGET, DRAFT = np.array([0.7, 0.3]), np.array([0.5, 0.5])  # the paper's Appendix A, over A and B

# ---- the rule


def example_overlap() -> float:
    """sum of minima of the appendix's two distributions."""
    return float(overlap(TARGET, DRAFT))


def example_distance() -> float:
    """Their L1 distance, twice the total variation."""
    return 2 * float(total_variation(TARGET, DRAFT))


def example_law(rule: str) -> float:
    """P(A) of the emitted token under one of the rules of `companion.experiments.acceptance_rule`."""
    from companion.experiments.acceptance_rule import RULES

    law = {one.name: one for one in RULES}[rule].law(TARGET, DRAFT)
    return float(law[0])


def pinsker_excess(pairs: int, tokens: int) -> float:
    """The largest TV - sqrt(KL / 2) over random pairs of distributions, both directions of KL; Pinsker: at most 0."""
    generator = np.random.default_rng(0)
    sharpness = 10 ** generator.uniform(-1, 1, (2, pairs, 1))
    p, q = generator.standard_gamma(np.broadcast_to(sharpness, (2, pairs, tokens))) + 1e-300
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    tv = total_variation(p, q)
    divergences = [(a * np.log(a / b)).sum(-1) for a, b in ((p, q), (q, p))]
    return float(max((tv - np.sqrt(np.maximum(kl, 0) / 2)).max() for kl in divergences))


# ---- the ceiling


def ceiling(entropy: float, vocabulary: int = QWEN3_VOCABULARY) -> float:
    return float(entropy_ceiling(entropy, vocabulary))


def ceiling_of_uniform() -> float:
    """At the largest entropy, ln V; in millionths."""
    return 1e6 * float(entropy_ceiling(math.log(QWEN3_VOCABULARY), QWEN3_VOCABULARY))


def floor(entropy: float) -> float:
    return float(entropy_floor(entropy))


def largest_entropy() -> float:
    return math.log(QWEN3_VOCABULARY)


def planned_depth(entropy: float, planner: planning.Planner) -> float:
    """At the note's placeholder costs."""
    return float(planning.plan_depths(entropy_ceiling(entropy, QWEN3_VOCABULARY), planner=planner))


def certified_until() -> float:
    """The entropy up to which the certified planner answers the full depth."""
    return float(spike_entropy(planning.CostModel().certified_threshold, QWEN3_VOCABULARY))


# ---- lengths and times


def tau(acceptance: float, gamma: int) -> float:
    return float(accepted_length.tau(acceptance, gamma))


def rate_of_steps(acceptance: float, gamma: int) -> float:
    """Accepted with bonus over proposed plus one, which the note's ledger calls the token acceptance rate."""
    return tau(acceptance, gamma) / (gamma + 1)


def leverage(position: int, acceptance: float, gamma: int, rise: float) -> float:
    """Percent by which the expected number of accepted drafts grows when one c_k of equal ones grows by ``rise``."""
    curve = np.full(gamma, acceptance)
    raised = curve.copy()
    raised[position - 1] *= 1 + rise / 100
    before, after = (float(accepted_length.tau_from_conditional(c)) - 1 for c in (curve, raised))
    return 100 * (after / before - 1)


def latency(t_draft: float, t_verify: float, length: float) -> float:
    return costs.latency_per_token(t_draft, t_verify, length)


def speedup(t_plain: float, t_draft: float, t_verify: float, length: float) -> float:
    return costs.speedup(t_plain, t_draft, t_verify, length)


def speed_ratio(new: float, old: float) -> float:
    return costs.speedup_ratio(new, old)


def less_time(new: float, old: float) -> float:
    """Percent less time a token, for two accepted lengths and equal times of a round."""
    return 100 * (1 - 1 / costs.speedup_ratio(new, old))


def weights_gb(parameters_billion: float, bits: int) -> float:
    return parameters_billion * bits / 8


# ---- operations and bytes


def loop_gflop(gamma: int, rank: int, vocabulary: int) -> float:
    return costs.markov_head_flops(gamma, rank, vocabulary) / 1e9


def backbone_over_loop(active_billion: float) -> float:
    """Operations of the parallel part over those of the loop, for the review's sizes."""
    return 2 * active_billion * 5 / loop_gflop(5, 256, 128_000)


def loop_share(of: str) -> float:
    """Percent of the drafter's ``flops`` or ``bytes`` that the Markov head is, for Qwen3-4B and the paper's drafter."""
    work = round_work(costs.QWEN3_4B, gamma=7, rank=256, drafter_layers=5)
    parts = {name: getattr(w, of) for name, w in work.items() if name != "target"}
    return 100 * parts["Markov head"] / sum(parts.values())


def overhead_over_bytes(stated_percent: float, round_ms: float) -> float:
    """A stated overhead of a round, over what the loop's bytes or operations need on an H200 at batch 128."""
    loop = round_work(costs.QWEN3_4B, gamma=7, rank=256, drafter_layers=5, batch=128)["Markov head"]
    return stated_percent / 100 * round_ms / 1e3 / H200.seconds(loop)


def table_gb() -> float:
    """A full table over pairs of tokens, two bytes an entry."""
    ways = bias_ways(QWEN3_VOCABULARY, rank=256, gamma=7)
    return ways["row of a full table"].stored_bytes / 1e9


def pair_entries(vocabulary: int) -> float:
    return float(vocabulary) ** 2 / 1e10


def logit_terabytes(states_terabytes: float) -> float:
    """What the logits of as many tokens of Qwen3-4B would take, as fill so much with the states that are stored."""
    from companion.training.features import FeatureSpec
    from companion.training.recipe import spread_layers

    spec = FeatureSpec("Qwen/Qwen3-4B", {}, spread_layers(36), costs.QWEN3_4B.hidden_size, "bfloat16")
    return states_terabytes * 2 * QWEN3_VOCABULARY / spec.bytes_per_token


# ---- of problem


def second_token(drafter: str) -> float:
    """Acceptance of the second token of the two-phrase example, by drafter."""
    joint = np.array([[0.6, 0.0], [0.0, 0.4]])
    first, second = with_memory(joint, memory=1)
    sign = np.array([1.0, -1.0])
    seconds = {
        "autoregressive": second,
        "parallel": with_memory(joint, memory=0)[1],
        "best parallel": best_parallel_second(first, second),
        "bigram": log_linear(np.log([0.6, 0.4]), 1.5 * np.outer(sign, sign)),
    }
    return float(conditional_acceptance(joint, [first, seconds[drafter]])[1])


def third_token(memory: int) -> float:
    """Acceptance of the third token where two phrases share their second."""
    phrases = np.array([[[0.5, 0.0]], [[0.0, 0.5]]])
    return float(conditional_acceptance(phrases, with_memory(phrases, memory))[2])


# ---- Table 1


@cache
def _table() -> pd.DataFrame:
    from companion.experiments import paper_table

    return paper_table.load()


def table_gain(target: str, over: str, drafter: str = "DSpark") -> float:
    """Percent more accepted length, as a ratio of the plain means over the nine benchmarks."""
    from companion.experiments import paper_table

    return paper_table.gain(_table(), target, over, "ratio of means", drafter).value


def domain_mean(domain: str, target: str = "Qwen3-4B", drafter: str = "DSpark") -> float:
    from companion.experiments import paper_table

    means = paper_table.domain_means(_table()).loc[[(target, drafter)]]
    return float(means[domain].to_numpy(np.float64)[0])


def table_largest(domain: str) -> float:
    """The largest of a domain's three benchmarks, Qwen3-4B with DSpark."""
    from companion.experiments import paper_table

    row = _table().loc[[("Qwen3-4B", "DSpark")]]
    return float(row[list(paper_table.DOMAINS[domain])].to_numpy(np.float64).max())


def figure_5_length(domain: str) -> float:
    """Accepted length by the paper's Figure 5, whose rate at threshold 0 counts eight slots, the bonus included."""
    return 8 * {"math": 0.769, "code": 0.676, "chat": 0.457}[domain]


def head_against_step(target: str) -> float:
    """DSpark's gain over DFlash less DFlash's over Eagle3, in points."""
    return table_gain(target, "DFlash") - table_gain(target, "Eagle3", "DFlash")


# ---- the scheduler's examples

_EXAMPLES = {
    "two": ([[0.9, 0.5], [0.6, 0.6]], {2: 1.0, 3: 0.8, 4: 0.55, 5: 0.5, 6: 0.3}),
    "three": (
        [[0.95, 0.85, 0.70], [0.80, 0.55, 0.30], [0.65, 0.25, 0.10]],
        dict(enumerate([1.0, 0.85, 0.70, 0.60, 0.42, 0.30, 0.20, 0.12, 0.07, 0.04], start=3)),
    ),
    "behind A": ([[0.8, 0.9]], {1: 1.0, 2: 0.5, 3: 0.45}),
}


def _path(example: str) -> ThroughputPath:
    confidence, steps = _EXAMPLES[example]
    return throughput_path(confidence, Capacity.of_steps(steps))


def theta(example: str, admitted: int) -> float:
    """Expected throughput after so many admissions in the texts' order."""
    return float(_path(example).theta[admitted])


def theta_behind_b() -> float:
    """The appendix's second case: a second token that cannot survive, priced all the same."""
    _, steps = _EXAMPLES["behind A"]
    return (1 + 0.8 + 0.0) * steps[3]


def survival(example: str, request: int, position: int) -> float:
    confidence, _ = _EXAMPLES[example]
    return float(np.prod(confidence[request - 1][:position]))


def verified(example: str, request: int) -> float:
    """How many slots of a request Algorithm 1 verifies."""
    confidence, steps = _EXAMPLES[example]
    return float(prefix_lengths(confidence, Capacity.of_steps(steps))[request - 1])


def rise_behind_the_dip(example: str) -> float:
    """The largest rise of Theta behind its first fall; a unimodal curve has none."""
    steps = np.diff(_path(example).theta)
    first_fall = int(np.argmax(steps < 0))
    return float(steps[first_fall:].max())
