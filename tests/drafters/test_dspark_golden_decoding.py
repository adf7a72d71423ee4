"""The real engine with the golden drafters against DeepSpec's own decoding loop."""

import pytest
import torch
from drafters.golden import ALL, COLUMNS, drafter, read, read_json, target_of
from engine.models import decode_ids

from companion.engine.decode import Engine
from companion.engine.request import Request, StopRule
from companion.phase.tracker import PhaseTracker, ThinkTokens
from companion.protocols import Context, Sampling
from companion.scheduling.threshold import Threshold

BEYOND = 8  # DeepSpec drafts whole blocks up to its cap; ours shortens the last ones, so let it run on
THRESHOLDS = ("0.4", "0.6", "0.8")


def prompts():
    return read_json("e2e")["prompts"]


def same_rounds(request, golden):
    """Tokens, proposed and accepted lengths of every round that DeepSpec ran."""
    count = len(golden["accepted_draft_lengths"])
    assert request.emitted[: len(golden["new_token_ids"])] == golden["new_token_ids"]
    assert [row.accepted for row in request.rounds][:count] == golden["accepted_draft_lengths"]
    assert [row.verified for row in request.rounds][:count] == golden["proposal_lengths"]


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "one batch"])
@pytest.mark.parametrize("name", ALL)
def test_greedy_decoding(name, together):
    golden = read_json("e2e")["runs"][name]["temperature0"]
    requests = []
    for part in [prompts()] if together else [[p] for p in prompts()]:
        requests += decode_ids(target_of(name), drafter(name), part, 48 + BEYOND)
    for request, run in zip(requests, golden, strict=True):
        same_rounds(request, run)
    assert sum(sum(run["accepted_draft_lengths"]) for run in golden) > 0 or name in ("dspark_rnn", "dflash")


@pytest.mark.parametrize("name", ["dspark_vanilla", "dspark_easy"])
@pytest.mark.parametrize("number", range(4))
def test_stop_tokens(name, number):
    runs = read_json("e2e")["runs"][name]
    stops = frozenset(runs["stop_token_ids"][number])
    (request,) = decode_ids(target_of(name), drafter(name), [prompts()[number]], 48, stops=stops)
    golden = runs["temperature0_with_stop"][number]
    assert request.emitted == golden["new_token_ids"]
    assert [row.accepted for row in request.rounds] == golden["accepted_draft_lengths"]
    assert request.finish_reason == "stop"


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_confidence_thresholds(threshold):
    golden = read_json("e2e")["runs"]["dspark_easy"][f"temperature0_threshold{threshold}"]
    policy = Threshold(float(threshold), "slot", depth=5)  # the public code's static rule
    requests = decode_ids(target_of("dspark_easy"), drafter("dspark_easy"), prompts(), 48 + BEYOND, policy=policy)
    for request, run in zip(requests, golden, strict=True):
        same_rounds(request, run)
    assert len({n for run in golden for n in run["proposal_lengths"]}) > 2, "the threshold cut nothing"


class Replay:
    """The recorded choices of one run; every accept test must ask for the recorded probability."""

    def __init__(self, golden):
        self.first, self.rounds, self.drawn = golden["new_token_ids"][0], golden["rounds"], []
        self.current = None

    def token(self, probs, purpose, position):
        if purpose == "target":
            if self.current is None:
                return self.first
            assert position == self.current["start"] + 1 + self.current["accepted"]
            return self.current["next_token"]
        self.current = self.rounds[int(purpose.removeprefix("draft/")) - 1]  # round 0 is the prefill
        self.drawn.append(probs)
        return self.current["verify_input_ids"][position - self.current["start"]]

    def accept(self, probability, position):
        k = position - 1 - self.current["start"]
        assert probability == pytest.approx(min(1.0, self.current["accept_probs"][k]), abs=1e-4)
        return self.current["uniforms"][k] < probability


@pytest.mark.parametrize("name", ["dspark_easy", "dspark_vanilla", "dflash"])
@pytest.mark.parametrize("number", [0, 1])
def test_temperature_one_with_the_recorded_numbers(name, number):
    golden, prompt = read_json("e2e")["temperature1"][name][number], prompts()[number]
    draws = Replay(golden)
    request = Request(
        context=Context(0, list(prompt), Sampling(1.0), draws),
        prompt_length=len(prompt),
        stop=StopRule(24 + BEYOND),
        tracker=PhaseTracker(ThinkTokens(None, None), prompt),
    )
    engine = Engine(target_of(name), drafter(name), max_batch=1)
    engine.submit(request)
    for _ in range(1 + len(golden["rounds"])):
        engine.step()
    assert [row.accepted for row in request.rounds] == golden["accepted_draft_lengths"]
    assert request.emitted[:24] == golden["new_token_ids"]
    if (name, number) == ("dspark_easy", 0):
        _same_draft_distributions(draws.drawn)


def _same_draft_distributions(drawn):
    numbers = read("verify_t1")
    for number in range(6):
        ours = torch.stack(drawn[5 * number : 5 * number + 5])
        golden = numbers[f"round{number + 1}.draft_probs"]
        torch.testing.assert_close(ours[:, COLUMNS], golden, atol=1e-5, rtol=0)


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("name", ALL)
def test_every_depth_gives_the_greedy_text(name, depth):
    """Fewer tokens than the block was trained for change the rounds and not one token."""
    golden = read_json("e2e")["runs"][name]["temperature0"]
    made = drafter(name, max_depth=depth, proposal="greedy" if depth % 2 else "sampled")
    requests = decode_ids(target_of(name), made, prompts(), 24)
    for request, run in zip(requests, golden, strict=True):
        assert request.emitted == run["new_token_ids"][:24]
        assert max(row.drafted for row in request.rounds) == depth
    if name == "dspark_easy":
        assert sum(row.accepted for r in requests for row in r.rounds) > 0
