"""Losslessness as a theorem about this code: every branch of every random choice of the real engine, in fp64.

The law of what the engine emits, summed over all branches, equals the law of plain sampling to 1e-12.
"""

import pytest
from engine.policies import DepthFromLength, LooksAtTheNeighbour, SharedBudget, Threshold

from companion.drafters.lookup import LookupDrafter
from companion.exact.laws import decode, distance, engine_law, exact_law, plain_law, product
from companion.exact.tables import TableDrafter, TableTarget, random_law, sparse_law
from companion.protocols import Sampling
from companion.scheduling.fixed import FixedDepth

EXACT = 1e-12
PROMPT = (0, 1, 0, 1, 0)


def drafter_of(mode, vocab_size, law, depth):
    return LookupDrafter(vocab_size, max_depth=depth) if mode == "lookup" else TableDrafter(vocab_size, law, mode)


@pytest.mark.parametrize(
    ("vocab_size", "depth", "new_tokens"),
    [(2, 1, 4), (2, 2, 4), (2, 3, 5), (2, 4, 5), (3, 1, 3), (3, 2, 4), (4, 1, 3), (4, 2, 3), (5, 1, 3), (5, 2, 3)],
)
@pytest.mark.parametrize("mode", ["sampled", "greedy", "lookup"])
def test_output_has_the_law_of_plain_sampling(vocab_size, depth, new_tokens, mode):
    p, q = random_law(vocab_size, 11 * vocab_size + depth), random_law(vocab_size, 5)
    drafter = drafter_of(mode, vocab_size, q, depth)
    law = engine_law(TableTarget(vocab_size, p), drafter, FixedDepth(depth), [PROMPT], Sampling(), new_tokens)
    assert distance(law, plain_law(p, PROMPT, Sampling(), new_tokens)) < EXACT


@pytest.mark.parametrize("depth", range(1, 16))
@pytest.mark.parametrize("mode", ["sampled", "greedy", "lookup"])
def test_every_depth_to_fifteen(depth, mode):
    """Long blocks, with mostly certain rows to keep the tree small."""
    p, q = sparse_law(3, 5, min(0.7, 3 / depth)), sparse_law(3, 5, min(0.7, 2 / depth))
    new_tokens = depth + 2
    target = TableTarget(3, p)
    law = engine_law(target, drafter_of(mode, 3, q, depth), FixedDepth(depth), [PROMPT], Sampling(), new_tokens)
    assert distance(law, plain_law(p, PROMPT, Sampling(), new_tokens)) < EXACT
    if mode != "lookup":
        assert target.deepest == depth + 1, "no block of the full depth was ever verified"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.5),
        Sampling(2.0),
        Sampling(1.0, top_k=2),
        Sampling(0.7, top_k=1),
        Sampling(1.0, top_p=0.7),
        Sampling(1.0, min_p=0.3),
        Sampling(0.8, top_k=3, top_p=0.9, min_p=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["sampled", "greedy", "lookup"])
def test_with_filters_the_law_is_that_of_the_filtered_target(sampling, mode):
    p, q = random_law(4, 21), random_law(4, 22)
    law = engine_law(TableTarget(4, p), drafter_of(mode, 4, q, 2), FixedDepth(2), [PROMPT], sampling, 3)
    assert distance(law, plain_law(p, PROMPT, sampling, 3)) < EXACT
    assert distance(law, plain_law(p, PROMPT, Sampling(), 3)) > 1e-3, "the filter changed nothing: a vacuous case"


@pytest.mark.parametrize("mode", ["sampled", "greedy"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_where_target_and_drafter_forbid_different_tokens(mode, seed):
    p, q = random_law(3, seed, zeros=True), random_law(3, seed + 50, zeros=True)
    law = engine_law(TableTarget(3, p), TableDrafter(3, q, mode), FixedDepth(2), [PROMPT], Sampling(), 4)
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4)) < EXACT


def test_a_drafter_equal_to_the_target_is_always_accepted():
    p = random_law(3, 9)
    target, drafter = TableTarget(3, p), TableDrafter(3, p)
    law, branches = exact_law(
        lambda branch: tuple(decode(branch, target, drafter, FixedDepth(2), [PROMPT], Sampling(), 4)[0].emitted)
    )
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4)) < EXACT
    assert branches == 3**4, "a rejection happened although p equals q: more branches than texts"


def test_temperature_zero_has_one_branch_and_the_greedy_text():
    p, q = random_law(4, 31), random_law(4, 32)
    law = engine_law(TableTarget(4, p), TableDrafter(4, q), FixedDepth(3), [PROMPT], Sampling(0.0), 8)
    assert law == plain_law(p, PROMPT, Sampling(0.0), 8)


@pytest.mark.parametrize("mode", ["sampled", "greedy"])
def test_stop_token_anywhere_in_a_block(mode):
    """The text ends with the stop token, be it a draft, a correction or a bonus, and its law does not change."""
    stops = frozenset({2})
    p, q = random_law(3, 41), random_law(3, 42)
    law = engine_law(TableTarget(3, p), TableDrafter(3, q, mode), FixedDepth(2), [PROMPT], Sampling(), 4, stops)
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4, stops)) < EXACT
    assert {len(text) for text in law} == {1, 2, 3, 4}


@pytest.mark.parametrize("policy", [Threshold(), SharedBudget(), LooksAtTheNeighbour()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("max_batch", [1, 2])
def test_two_requests_are_exact_together(policy, max_batch):
    """The joint law of both texts is the product of their plain laws, whether they run together or one by one."""
    p, q = random_law(2, 61), random_law(2, 62)
    prompts = [(0, 1), (1, 1, 0)]
    law = engine_law(TableTarget(2, p), TableDrafter(2, q), policy, prompts, Sampling(), 3, max_batch=max_batch)
    assert distance(law, product(p, prompts, 3)) < EXACT


def test_three_requests_join_and_leave():
    p, q = random_law(2, 71), random_law(2, 72)
    prompts, stops = [(0, 1), (1, 1, 0), (0,)], frozenset({1})
    law = engine_law(TableTarget(2, p), TableDrafter(2, q), SharedBudget(), prompts, Sampling(), 3, stops, max_batch=2)
    assert distance(law, product(p, prompts, 3, stops)) < EXACT


@pytest.mark.parametrize("policy", [FixedDepth(3), DepthFromLength()], ids=lambda p: type(p).__name__)
def test_a_drafter_that_ends_its_draft_on_what_it_drew(policy):
    """The drafter stops after token 0, so its length tells its tokens; no policy can see that length too early."""
    p, q = random_law(2, 81), random_law(2, 82)
    drafter = TableDrafter(2, q, ends_after=0)
    law = engine_law(TableTarget(2, p), drafter, policy, [PROMPT], Sampling(), 4)
    assert distance(law, plain_law(p, PROMPT, Sampling(), 4)) < EXACT
