"""At temperature 0 no drafter, depth or batch size changes a token of tiny-qwen3, in three domains and both modes."""

import itertools

import pytest
import torch
from engine.tiny import drafter, plain, prompts, tiny
from tiers import sampled

from companion.engine.compare import Divergence, compare_greedy, first_divergence
from companion.engine.generate import generate
from companion.engine.load import find_model
from companion.scheduling.fixed import FixedDepth

EACH, NEW = 2, 40
GRID = list(itertools.product(["lookup", "sampled", "greedy"], range(1, 16), range(1, 9)))


@pytest.mark.parametrize(("kind", "depth", "batch"), sampled(GRID, 9))
def test_speculation_changes_no_token(kind, depth, batch):
    ids = [list(p) for p in prompts(EACH)]
    results = generate(
        tiny(),
        drafter(kind, depth),
        ids,
        temperature=0.0,
        max_new_tokens=NEW,
        max_batch=batch,
        policy=FixedDepth(depth),
    )
    comparison = compare_greedy(tiny(), plain(EACH, NEW), results)
    assert comparison.verdict() == "holds", comparison
    rounds = [row for result in results for row in result.rounds]
    assert max(row.drafted for row in rounds) == depth
    assert sum(row.accepted for row in rounds) > 0, "nothing was accepted: plain was compared with plain"
    assert max(row.batch for row in rounds) == batch


def test_plain_decoding_equals_generate_of_transformers():
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(str(find_model("tiny-qwen3").path), dtype=torch.float32)
    reference.generation_config.pad_token_id = 0
    for number, (ids, ours) in enumerate(zip(prompts(1), plain(1, NEW), strict=True)):
        theirs = reference.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW)[0, len(ids) :].tolist()
        found = first_divergence(tiny(), ids, ours.tokens, theirs, prompt=number)
        assert found is None or abs(found.margin) < 1e-4, found


def test_a_wrong_token_is_found_with_its_margin():
    ours = plain(1, NEW)[0]
    row = tiny().logits([*ours.prompt_tokens, *ours.tokens[:7]])[-1]
    runner_up = int(row.topk(2).indices[1])
    assert int(row.argmax()) == ours.tokens[7]
    wrong = [*ours.tokens[:7], runner_up, *ours.tokens[8:]]
    found = first_divergence(tiny(), ours.prompt_tokens, ours.tokens, wrong)
    margin = float(row.max() - row[runner_up])
    assert found == Divergence(0, 7, ours.tokens[7], runner_up, pytest.approx(margin, abs=1e-4))


def test_a_text_that_only_ends_elsewhere_is_no_tie():
    ours = plain(1, NEW)[0]
    short = first_divergence(tiny(), ours.prompt_tokens, ours.tokens, ours.tokens[:-1])
    assert (short.position, short.got, short.margin) == (len(ours.tokens) - 1, None, float("inf"))
    assert first_divergence(tiny(), ours.prompt_tokens, ours.tokens, ours.tokens) is None


def test_a_comparison_without_drafts_is_inconclusive():
    """Plain against plain is equal, and proves nothing."""
    comparison = compare_greedy(tiny(), plain(1, NEW), plain(1, NEW))
    assert comparison.divergences == []
    assert comparison.verdict() == "inconclusive"
    assert compare_greedy(tiny(), [], []).verdict() == "inconclusive"


def test_a_divergence_passes_only_below_the_stated_margin():
    ids = list(prompts(1)[0])
    results = [generate(tiny(), drafter("lookup", 3), ids, temperature=0.0, max_new_tokens=NEW)]
    comparison = compare_greedy(tiny(), plain(1, NEW)[:1], results)
    comparison.divergences.append(Divergence(0, 3, 1, 2, 5e-5))
    assert comparison.verdict() == "holds"
    assert comparison.verdict(tie=1e-5) == "fails"


def test_results_of_other_prompts_are_refused():
    with pytest.raises(ValueError, match="same prompts in the same order"):
        compare_greedy(tiny(), plain(1, NEW), plain(1, NEW)[::-1])
