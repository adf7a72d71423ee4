"""What users of other engines ran into between requests: caches and drafters that remember, counts that do not add up.

Each test names the public report whose kind of failure it guards against.
"""

import numpy as np
import pytest
import torch
from engine.models import decode_ids, ours, reference_model, text_target
from engine.policies import Threshold

from companion import generate, load_drafter, load_target, metrics, stream
from companion.drafters.lookup import LookupDrafter
from companion.drafters.model import ModelDrafter
from companion.engine.draws import KeyedDraws
from companion.protocols import Context, Sampling
from companion.rounds import Rounds

MODEL, DRAFT = reference_model(1, sharpness=2.0), reference_model(1, sharpness=1.0)


# ---- caches and state


def test_a_lookup_forgets_the_text_of_another_run():
    """ggml-org/llama.cpp#27852: n-grams of the last request stayed, and a shorter prompt was never read."""
    drafter = LookupDrafter(100)

    def lookup(tokens):
        context = Context(0, tokens, Sampling(), KeyedDraws(0, b""))
        return drafter.propose([context], [3])[0].tokens

    assert lookup([1, 2, 3, 4, 5, 6, 7, 1, 2]) == [3, 4, 5]
    assert lookup([9, 1, 2, 8, 7, 1, 2]) == [8, 7, 1], "the same number, another run, no reset in between"
    assert lookup([5, 6]) == []


@pytest.mark.parametrize("kind", ["lookup", "draft"])
def test_one_drafter_serves_two_open_streams(kind):
    """vllm-project/vllm#39012: state kept by request number was applied to another request of that number."""
    target = load_target("tiny-qwen3")
    prompts = ["What is 23 + 45?", "What is 8 times 7, and what is 8 times 9, and what is 8 times 11?"]
    options = {"max_new_tokens": 60, "temperature": 0.0}
    alone = [generate(target, load_drafter(kind, target), prompt, **options) for prompt in prompts]
    shared = load_drafter(kind, target)
    streams = [stream(target, shared, prompt, **options) for prompt in prompts]
    results = {}
    while len(results) < 2:
        for number, events in enumerate(streams):
            for event in events:
                if event.result:
                    results[number] = event.result
                break
    for number, expected in enumerate(alone):
        assert results[number].tokens == expected.tokens
        assert metrics.accepted_per_round(expected.rounds) > 0
        assert [r.accepted for r in results[number].rounds] == [r.accepted for r in expected.rounds]


class Interrupted(Threshold):
    """Stops the run in the middle of a round, as Ctrl-C does."""

    def __init__(self, after):
        self.left = after

    def admit(self, frontier):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        super().admit(frontier)


def test_a_run_that_was_broken_off_leaves_nothing_behind():
    """ml-explore/mlx-lm#1528: an abort between draft and verification rewound the caches by a stale count."""
    target, prompts = text_target(), [[70, 71, 72], [80, 81]]
    options = {"max_new_tokens": 16, "stop_token_ids": ()}
    for made in (lambda: LookupDrafter(target.vocab_size), lambda: ModelDrafter(text_target(2), max_depth=4)):
        expected = [r.tokens for r in generate(target, made(), prompts, **options)]
        drafter = made()
        for after in (0, 1, 3):
            with pytest.raises(KeyboardInterrupt):
                generate(target, drafter, prompts[::-1], policy=Interrupted(after), **options)
            assert [r.tokens for r in generate(target, drafter, prompts, **options)] == expected


class OnAndOff(Threshold):
    """Depth 0 in every other round, and another depth for each request."""

    def draft_depths(self, requests):
        return [(0 if view.position % 3 else 4) + view.request for view in requests]

    def admit(self, frontier):
        for row in range(len(frontier.requests)):
            while frontier.admitted(row) < frontier.drafted(row):
                frontier.admit(row)


def test_rounds_without_a_draft_do_not_unsettle_the_drafter():
    """local-inference-lab/vllm#465, halo-box/llama.cpp#6: stale after depth 0, mixed up by unequal depths."""
    target, prompts = ours(MODEL), [[1, 2, 3], [4], [5, 6]]
    plain = [r.emitted for r in decode_ids(target, None, prompts, 30)]
    requests = decode_ids(target, ModelDrafter(ours(MODEL), max_depth=7), prompts, 30, policy=OnAndOff())
    assert [r.emitted for r in requests] == plain
    rounds = [row for r in requests for row in r.rounds]
    assert {row.drafted for row in rounds} > {0, 4}
    assert all(row.accepted == row.verified for row in rounds), "the drafter is the target: it must always be right"


def test_a_target_that_drafts_for_itself_is_always_accepted():
    """vllm-project/vllm#8783: several tokens at once gave other logits than one by one."""
    target = load_target("tiny-qwen3")
    for temperature in (0.0, 0.7):
        drafter = ModelDrafter(target, max_depth=5)
        result = generate(target, drafter, "What is 7 + 5?", max_new_tokens=40, temperature=temperature)
        assert len(result.rounds) > 3
        assert metrics.accepted_per_verified(result.rounds) == 1.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_is_not_ours_to_inherit(dtype):
    """meta-pytorch/torchtune#398: a cache or table took torch's default dtype instead of the model's."""
    weights, prompts = ours(MODEL), [[1, 2, 3, 1, 2], [4]]
    expected = [
        r.emitted for r in decode_ids(weights, ModelDrafter(ours(DRAFT)), prompts, 10, Sampling(0.8, top_p=0.9))
    ]
    torch.set_default_dtype(dtype)
    try:
        target, drafter = ours(MODEL), ModelDrafter(ours(DRAFT))
        made = decode_ids(target, drafter, prompts, 10, Sampling(0.8, top_p=0.9))
    finally:
        torch.set_default_dtype(torch.float32)
    assert [r.emitted for r in made] == expected


def test_a_long_prompt_is_indexed_once():
    """vllm-project/vllm#9333, #24986: every round scanned the whole text for the n-gram."""

    class Text(list):
        read = 0

        def __getitem__(self, key):
            Text.read += 1
            return super().__getitem__(key)

    drafter, text = LookupDrafter(1000), Text(range(900))
    context = Context(0, text, Sampling(), KeyedDraws(0, b""))
    drafter.propose([context], [4])
    Text.read = 0
    for token in range(20):
        text.append(token)
        drafter.propose([context], [4])
    assert Text.read < 20 * 10


# ---- counts


def test_counts_of_several_calls_stay_counts_of_several_responses():
    """SafeAILab/EAGLE#95: a length taken from the last response only; two tables that number their requests alike."""
    target = text_target(3)
    prompts = [[70 + i, 71, 70 + i, 71] for i in range(6)]
    options = {"max_new_tokens": 12, "stop_token_ids": ()}
    one_by_one = Rounds.concat(
        generate(target, ModelDrafter(text_target(4)), prompt, **options).rounds for prompt in prompts
    )
    together = Rounds.concat(r.rounds for r in generate(target, ModelDrafter(text_target(4)), prompts, **options))
    assert [len(rows) for rows in metrics.by_prompt(one_by_one).values()] == [
        len(rows) for rows in metrics.by_prompt(together).values()
    ]
    for metric in (metrics.committed_per_round, metrics.accepted_per_drafted):
        assert metrics.mean_over_prompts(metric, one_by_one) == metrics.mean_over_prompts(metric, together)
        assert metrics.bootstrap_interval(metric, one_by_one) == metrics.bootstrap_interval(metric, together)


def test_drafts_that_were_never_verified_are_told_apart():
    """ggml-org/llama.cpp#14104, sgl-project/sglang#13212: the denominator was not what had been tested."""

    class FirstOnly(OnAndOff):
        def draft_depths(self, requests):
            return [4] * len(requests)

        def admit(self, frontier):
            for row in range(len(frontier.requests)):
                if frontier.drafted(row):
                    frontier.admit(row)

    (done,) = decode_ids(ours(MODEL), ModelDrafter(ours(MODEL)), [[1, 2, 3]], 21, policy=FirstOnly())
    assert metrics.accepted_per_verified(done.rounds) == 1.0
    assert metrics.accepted_per_drafted(done.rounds) == 10 / sum(row.drafted for row in done.rounds) < 0.3


def test_a_terminal_round_counts_what_was_committed():
    """vllm-project/vllm#56137: the block that holds the stop token counted its dropped tail."""
    target = text_target()
    drafter = ModelDrafter(text_target(), max_depth=7)
    free = generate(target, drafter, [70, 71], temperature=0.0, max_new_tokens=9, stop_token_ids=())
    stop = free.tokens[3]
    result = generate(target, drafter, [70, 71], temperature=0.0, max_new_tokens=9, stop_token_ids=stop)
    (last,) = result.rounds
    at = free.tokens.index(stop)
    assert (last.verified, last.accepted, last.bonus) == (7, at, False)
    assert metrics.committed_per_round(result.rounds) == at


def test_settings_given_in_numpy_can_be_saved(tmp_path):
    """huggingface/transformers#10632: numpy numbers broke the result file at the end of a run."""
    target = text_target()
    settings = {
        "temperature": np.float32(0.5),
        "top_p": np.float64(0.9),
        "top_k": np.int64(20),
        "min_p": np.float16(0.1),
    }
    result = generate(
        target,
        LookupDrafter(target.vocab_size),
        [70, 71, 70, 71],
        max_new_tokens=np.int64(6),
        stop_token_ids=(),
        seed=np.uint8(3),
        labels=[{"prompt_id": np.int64(4)}],
        **settings,
    )
    result.rounds.save(tmp_path / "rounds.jsonl")
    assert Rounds.load(tmp_path / "rounds.jsonl").rows == result.rounds.rows
