"""Our policy in a scheduler of vLLM's shape: depths take effect, the text stays, every step is written down."""

import logging
from dataclasses import dataclass

import pytest
from vllm_lane.standin import AsyncScheduler, Request, Scheduler, config, run

from companion.phase.tracker import ThinkTokens, straddles
from companion.protocols import Outcome
from companion.rounds import Rounds
from companion.scheduling.fixed import FixedDepth
from companion.serving.vllm.mixin import PolicyMixin
from companion.serving.vllm.options import Options
from companion.serving.vllm.rounds import Answer, Question, rounds_of_log, rounds_of_metrics

TAGS = ThinkTokens(open=1, close=2, turn=3)
PROMPT = [3, 7, 1]  # the template has opened the span
TEXT = [*[8] * 11, 2, *[6] * 14, 0]  # 11 tokens of thought, the closing tag, 14 of answer, stop


class Ours(PolicyMixin, Scheduler):
    release, asynchronous = "0.32.0", False


class OursAsync(PolicyMixin, AsyncScheduler):
    release, asynchronous = "0.32.0", True


BOTH = pytest.mark.parametrize("kind", [Ours, OursAsync])


@pytest.fixture
def made(tmp_path):
    """A scheduler with ``policy``, and its log."""

    def make(kind, policy, depth=5, **changes):
        options = Options(TAGS, policy, tmp_path / "log.jsonl").to_dict()
        changes = {"scheduler_config": Settings(kind.asynchronous)} | changes
        return kind(vllm_config=config(depth, options, **changes)), tmp_path / "log.jsonl"

    return make


@dataclass
class Settings:
    async_scheduling: bool


def ask(name="a", text=TEXT, **options):
    return Request(name, PROMPT, text, **options)


@BOTH
def test_depth_follows_the_phase_and_the_text_stays(made, kind):
    scheduler, log = made(kind, {"think": 1, "output": 4})
    request = ask()
    worker = run(scheduler, [request], depth=5)
    assert request.output_token_ids == TEXT
    rounds = Rounds.load(log).rows
    assert all(r.drafted == 5 for r in rounds)
    think = [r for r in rounds if set(r.phases) == {"think"}]
    late = 0 if kind is Ours else 2  # steps that were on their way when the phase changed
    output = [r for r in rounds if set(r.phases) == {"output"}]
    assert {r.verified for r in think} == {1}
    assert {r.verified for r in output[late:]} == {4}
    assert [r.verified for r in output[:late]] == [1] * late
    assert worker.verified["a"][1 : 1 + len(rounds)] == [r.verified for r in rounds]


@BOTH
def test_the_log_is_the_response(made, kind):
    scheduler, log = made(kind, {"think": 2, "output": 5})
    request = ask()
    run(scheduler, [request], depth=5)
    rounds = Rounds.load(log).rows
    assert [t for r in rounds for t in r.tokens] == TEXT[1:]  # the first token is the prefill's
    assert [r.position for r in rounds] == [
        len(PROMPT) + 1 + sum(r.committed for r in rounds[:i]) for i in range(len(rounds))
    ]
    assert [r.round for r in rounds] == list(range(1, len(rounds) + 1))
    assert [r.ended for r in rounds] == [None] * (len(rounds) - 1) + ["stop"]
    assert [p for r in rounds for p in r.phases] == ["think"] * 11 + ["output"] * 15
    assert all(r.accepted == min(2, r.verified) for r in rounds[:-1])


@BOTH
def test_without_a_policy_log_and_metrics_tell_the_same(made, kind):
    scheduler, log = made(kind, None)
    requests = [ask("a"), ask("b", max_tokens=17), ask("c", TEXT[8:])]
    run(scheduler, requests, depth=5, right=lambda request, at: at * 7 % 4)
    rows = Rounds.load(log).rows
    for number, request in enumerate(requests):
        answer = Answer(
            tuple(request.output_token_ids), str(request.reason), scheduler.drafted_metrics[request.request_id]
        )
        question = Question(request.request_id, tuple(PROMPT), "math")
        told = rounds_of_metrics(answer, question, method="dspark", tags=TAGS, request=number)
        written = rounds_of_log(rows, answer, question, request=number)
        for row in written:
            row.batch = 1
        assert told == written
        assert told[-1].ended == ("length" if number == 1 else "stop")


@BOTH
def test_depth_0_is_a_round_of_its_own(made, kind):
    """What vLLM's metrics leave out, so that offsets would drift."""
    scheduler, log = made(kind, {"think": 0, "output": 3})
    request = ask()
    run(scheduler, [request], depth=5)
    rounds = Rounds.load(log).rows
    think = [r for r in rounds if r.phases[0] == "think"]
    assert {(r.verified, r.accepted, r.bonus, r.committed) for r in think} == {(0, 0, True, 1)}
    assert [t for r in rounds for t in r.tokens] == TEXT[1:]
    answer = Answer(tuple(TEXT), "stop", scheduler.drafted_metrics["a"])
    with pytest.raises(ValueError, match="account for"):
        rounds_of_metrics(answer, Question("a", tuple(PROMPT)), method="dspark", tags=TAGS, request=0)


@BOTH
def test_a_request_may_stay_out_or_ask_for_less(made, kind, caplog):
    scheduler, log = made(kind, {"depth": 3})
    asks = {"a": None, "b": "off", "c": 1, "d": 9, "e": "all", "f": True}
    requests = [ask(n, extra=None if v is None else {"companion_depth": v}) for n, v in asks.items()]
    with caplog.at_level(logging.WARNING, "companion.vllm"):
        run(scheduler, requests, depth=5)
    depths = {name: {r.verified for r in Rounds.load(log).where(prompt_id=name)} for name in asks}
    assert depths == {"a": {3}, "b": {5}, "c": {1}, "d": {3}, "e": {5}, "f": {5}}
    assert [r.output_token_ids for r in requests] == [TEXT] * 6
    assert "'all'" in caplog.text
    assert "True" in caplog.text
    assert "request b" not in caplog.text  # it asked for that


def test_a_name_of_its_own_is_written(made):
    scheduler, log = made(Ours, {"depth": 3})
    run(scheduler, [ask("cmpl-17", extra={"companion_request": "math/4"})], depth=5)
    assert {r.prompt_id for r in Rounds.load(log)} == {"math/4"}


def test_placeholders_are_shared_and_never_cut_in_place(made):
    scheduler, _ = made(OursAsync, {"depth": 2})
    run(scheduler, [ask("a"), ask("b", extra={"companion_depth": "off"})], depth=5)
    assert scheduler.placeholders == [-1] * 5


class Picky(FixedDepth):
    """Plans for greedy requests only, as measured rates hold for one sampling."""

    def draft_depths(self, requests):
        if any(not view.sampling.greedy for view in requests):
            raise ValueError("the rates were measured at temperature 0")
        return super().draft_depths(requests)


class Failing(FixedDepth):
    """Has second thoughts."""

    def admit(self, frontier):
        raise ValueError("no depth today")


@BOTH
def test_a_request_the_policy_cannot_plan_for_keeps_vllms_depth(made, kind, caplog):
    scheduler, log = made(kind, {"factory": f"{__name__}:Picky", "arguments": {"depth": 2}})
    with caplog.at_level(logging.WARNING, "companion.vllm"):
        run(scheduler, [ask("a"), ask("b", temperature=0.7)], depth=5)
    assert {r.verified for r in Rounds.load(log).where(prompt_id="a")} == {2}
    assert {r.verified for r in Rounds.load(log).where(prompt_id="b")} == {5}
    assert "measured at temperature 0" in caplog.text


@BOTH
def test_a_policy_that_fails_later_ends_no_engine(made, kind, caplog):
    scheduler, log = made(kind, {"factory": f"{__name__}:Failing", "arguments": {"depth": 2}})
    request = ask()
    with caplog.at_level(logging.WARNING, "companion.vllm"):
        run(scheduler, [request], depth=5)
    assert request.output_token_ids == TEXT
    assert {r.verified for r in Rounds.load(log)} == {5}
    assert caplog.text.count("no depth today") == 1  # once, not with every step


class Learning(FixedDepth):
    def __init__(self, depth):
        super().__init__(depth)
        self.seen: list[Outcome] = []

    def observe(self, outcomes):
        self.seen.extend(outcomes)


class Looking(FixedDepth):
    def __init__(self, depth):
        super().__init__(depth)
        self.tokens: list[int] = []

    def admit(self, frontier):
        frontier.admit(0)
        self.tokens.extend(frontier.revealed(0))
        frontier.admit(0)


def test_outcomes_reach_the_policy_of_its_own_requests_only(made):
    scheduler, log = made(Ours, {"factory": f"{__name__}:Learning", "arguments": {"depth": 3}})
    run(scheduler, [ask("a"), ask("b", extra={"companion_depth": "off"})], depth=5)
    rounds = Rounds.load(log).where(prompt_id="a")
    assert [(o.verified, o.accepted, o.rejected) for o in scheduler.steering.policy.seen] == [
        (r.verified, r.accepted, r.rejected) for r in rounds
    ]
    assert any(o.rejected for o in scheduler.steering.policy.seen)


def test_drafted_tokens_are_seen_where_they_exist(made, caplog):
    policy = {"factory": f"{__name__}:Looking", "arguments": {"depth": 3}}
    scheduler, log = made(Ours, policy)
    run(scheduler, [ask()], depth=5)
    assert set(scheduler.steering.policy.tokens) == {5}
    assert {r.verified for r in Rounds.load(log)} == {2}
    scheduler, log = made(OursAsync, policy)
    with caplog.at_level(logging.WARNING, "companion.vllm"):
        run(scheduler, [ask()], depth=5)
    assert "has none of them" in caplog.text
    assert {r.verified for r in Rounds.load(log)} == {5}


def test_requests_are_forgotten_when_they_end(made):
    for kind in (Ours, OursAsync):
        scheduler, _ = made(kind, {"depth": 3})
        run(scheduler, [ask("a"), ask("b", TEXT[9:])], depth=5)
        assert not scheduler.steering._followed
        aborted = ask("c")
        scheduler.add_request(aborted)
        scheduler.schedule()
        del scheduler.requests["c"]  # the client has gone
        scheduler.finished_req_ids.add("c")
        scheduler.schedule()
        assert not scheduler.steering._followed


def test_straddling_rounds_are_seen(made):
    scheduler, log = made(Ours, {"depth": 5})
    run(scheduler, [ask()], depth=5, right=lambda request, at: 5)
    assert [straddles(r.phases) for r in Rounds.load(log)] == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (Ours, {"depth": 0}, "without a speculative_config"),
        (Ours, {"scheduler_config": Settings(True)}, "vllm_scheduler.AsyncPolicyScheduler"),
        (OursAsync, {"scheduler_config": Settings(False)}, "vllm_scheduler.PolicyScheduler"),
        (Ours, {"additional_config": {}}, "no table"),
        (Ours, {"parallel_config": type("P", (), {"data_parallel_size": 2})}, "data-parallel"),
    ],
)
def test_a_setup_that_cannot_work_is_refused_at_the_start(made, kind, changes, said):
    with pytest.raises(ValueError, match=said):
        made(kind, {"depth": 3}, **changes)


def test_another_release_is_refused_at_the_start(made, monkeypatch, tmp_path):
    monkeypatch.setattr(Ours, "release", "0.99.1+cpu")
    with pytest.raises(ValueError, match=r"this is vLLM 0\.99\.1"):
        made(Ours, {"depth": 3})
    options = Options(TAGS, {"depth": 3}, untested=True).to_dict()
    assert Ours(vllm_config=config(5, options, scheduler_config=Settings(False))).steering.policy.depth == 3
