"""A measurement on an engine that answers as vLLM does: the same rounds as the texts say, reconciled or refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from vllm_lane.fakes import QUESTIONS, TAGS, TEXTS, FakeEngine, answered, serving
from vllm_lane.standin import Scheduler, config

from companion.phase.report import Report
from companion.phase.sources import ledger_of_rounds, steps_of_rounds, steps_of_vllm
from companion.protocols import Sampling
from companion.rounds import Rounds
from companion.serving.vllm.mixin import PolicyMixin
from companion.serving.vllm.options import Options
from companion.serving.vllm.rounds import Answer, Question, rounds_of_log, rounds_of_metrics
from companion.serving.vllm.server import Server
from companion.serving.vllm_measure import Plan, identify, measure, render, tokenizer_of

MODELS = {"target": {"name": "t", "revision": "1" * 40}, "drafter": {"name": "d", "revision": "2" * 40}}


def plan(**changes):
    given = {
        "method": "dspark",
        "depth": 5,
        "thinking": True,
        "sampling": Sampling(0.0),
        "max_new_tokens": 40,
        "group": 2,
    }
    return Plan(**(given | MODELS | changes))


class Ours(PolicyMixin, Scheduler):
    release, asynchronous = "0.32.0", False


def test_rounds_of_every_answer_in_the_file_and_in_the_ledger(tmp_path):
    engine = FakeEngine()
    rounds = measure(engine, plan(), QUESTIONS, TAGS, tmp_path / "rounds.jsonl")
    assert engine.asked == [["math/0", "math/1"], ["chat/0", "chat/1"], ["code/0", "code/1"]]
    for number, (name, text) in enumerate(TEXTS.items()):
        own = rounds.where(prompt_id=name)
        assert [t for r in own for t in r.tokens] == text[1:]
        assert {(r.request, r.domain, r.mode) for r in own} <= {(number, name[:4], "think")}
    assert Rounds.load(tmp_path / "rounds.jsonl").rows == rounds.rows
    ledger = ledger_of_rounds(rounds)
    assert ledger.origin.harness == "vllm 0.32.0"
    assert (ledger.origin.target, ledger.origin.depth, ledger.origin.untrimmed) == ("t", 5, True)
    assert list(ledger.steps) == [
        step
        for q in QUESTIONS
        for step in steps_of_vllm(
            {"per_step_accepted": [], "per_step_drafted": []} | dict(answered(q.prompt_id, 40).metrics),
            answered(q.prompt_id, 40).tokens,
            method="dspark",
            tags=TAGS,
            prompt_token_ids=q.tokens,
            cluster=q.prompt_id,
            domain=q.domain,
        ).steps
    ]
    report = Report(ledger)
    assert report.think.mean_length.value > 1
    assert report.output.steps > 0


def test_a_run_that_was_cut_asks_the_rest_and_ends_with_the_same_rounds(tmp_path):
    whole = measure(FakeEngine(), plan(), QUESTIONS, TAGS, tmp_path / "whole.jsonl")
    part = tmp_path / "part.jsonl"
    with serving(dies_after=3) as (url, _), pytest.raises(ValueError, match="after 2 of 6 prompts") as said:
        measure(Server(url, concurrency=1), plan(), QUESTIONS, TAGS, part)
    assert "same command" in str(said.value)
    assert {r.prompt_id for r in Rounds.load(part)} == {"math/0", "math/1"}
    with serving() as (url, bodies):
        rest = measure(Server(url, concurrency=1), plan(), QUESTIONS, TAGS, part)
    assert [b["vllm_xargs"]["companion_request"] for b in bodies] == ["chat/0", "chat/1", "code/0", "code/1"]
    assert rest.rows == whole.rows
    with pytest.raises(ValueError, match="other settings"):
        measure(FakeEngine(), plan(seed=1), QUESTIONS, TAGS, part)


def test_a_server_gives_what_vllm_in_this_process_gives(tmp_path):
    inside = measure(FakeEngine(), plan(), QUESTIONS, TAGS, tmp_path / "a.jsonl")
    sampling = Sampling(0.0)
    with serving() as (url, bodies):
        outside = measure(Server(f"{url}/v1/", concurrency=3), plan(), QUESTIONS, TAGS, tmp_path / "b.jsonl")
    assert outside.rows == inside.rows
    for body in bodies:  # what is not sent, a server takes from the model's generation_config.json
        assert (body["temperature"], body["top_k"], body["top_p"], body["min_p"]) == (sampling.temperature, 0, 1.0, 0.0)
        assert (body["repetition_penalty"], body["return_token_ids"], body["max_tokens"]) == (1.0, True, 40)


def test_work_of_somebody_else_is_noticed(tmp_path):
    path = tmp_path / "rounds.jsonl"
    with pytest.raises(ValueError, match="something else ran on it"):
        measure(FakeEngine(stolen=1), plan(), QUESTIONS, TAGS, path)
    assert len(Rounds.load(path)) == 0


def test_answers_that_do_not_add_up_are_refused():
    good = answered("math/0", 40)
    lists = {name: list(good.metrics[name]) for name in ("per_step_accepted", "per_step_drafted")}
    question = QUESTIONS[0]

    def read(answer, method="dspark"):
        return rounds_of_metrics(answer, question, method=method, tags=TAGS, request=0)

    assert sum(r.committed for r in read(good)) == len(good.tokens) - 1
    with pytest.raises(ValueError, match="without speculative metrics"):
        read(Answer(good.tokens, "stop"))
    with pytest.raises(ValueError, match="ngram may skip drafting"):
        read(good, "ngram")
    with pytest.raises(ValueError, match="account for"):
        read(Answer(good.tokens, "stop", {name: values[1:] for name, values in lists.items()}))
    with pytest.raises(ValueError, match="different lengths"):
        read(Answer(good.tokens, "stop", lists | {"per_step_drafted": lists["per_step_drafted"][1:]}))
    with pytest.raises(ValueError, match="not finished"):
        read(Answer(good.tokens, "abort", lists))


def test_an_answer_cut_by_the_cap_counts_what_came_out():
    answer = answered("math/0", 6)  # the first token, three of a step, and two of the next one's three
    rows = rounds_of_metrics(answer, QUESTIONS[0], method="dspark", tags=TAGS, request=0)
    assert [(r.accepted, r.committed, r.bonus, r.rejected, r.ended) for r in rows] == [
        (2, 3, True, True, None),
        (2, 2, False, False, "length"),
    ]


def test_a_policy_is_measured_from_the_schedulers_log(tmp_path):
    """ngram and depth 0 have steps that vLLM's metrics leave out."""
    for method, policy in (("ngram", None), ("dspark", {"think": 0, "output": 3})):
        log = tmp_path / f"{method}.jsonl"
        options = Options(TAGS, policy, log).to_dict()
        settings = type("Settings", (), {"async_scheduling": False})
        scheduler = Ours(vllm_config=config(5, options, scheduler_config=settings))
        asked = plan(method=method, policy=policy, log=log)
        rounds = measure(FakeEngine(scheduler=scheduler), asked, QUESTIONS, TAGS, tmp_path / f"{method}-rounds.jsonl")
        for name, text in TEXTS.items():
            assert [t for r in rounds.where(prompt_id=name) for t in r.tokens] == text[1:]
        origin = ledger_of_rounds(rounds).origin
        assert origin.untrimmed == (policy is None)
        if policy:
            assert {s.proposed for s in steps_of_rounds(rounds) if s.phases[0] == "think"} == {0}


def test_the_probes_rows_are_joined(tmp_path):
    plain = measure(FakeEngine(), plan(), QUESTIONS, TAGS, tmp_path / "plain.jsonl")
    path = tmp_path / "rows.jsonl"
    lines = [{"format": "companion.vllm-rows/1"}]
    for number, row in enumerate(plain):
        values = [number + k / 10 for k in range(row.verified + 1)]
        columns = dict.fromkeys(("entropy", "max_p", "think_end_mass"), values)
        lines.append({"request": row.prompt_id, "position": row.position} | columns)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    rounds = measure(FakeEngine(), plan(rows=path), QUESTIONS, TAGS, tmp_path / "rounds.jsonl")
    assert [row.entropy[0] for row in rounds] == list(range(len(plain)))
    assert all(len(row.max_p) == row.verified + 1 for row in rounds)


def test_a_depth_that_is_not_vllms_is_refused(tmp_path):
    with pytest.raises(ValueError, match="drafts 5 tokens, and the record would say 7"):
        measure(FakeEngine(), plan(depth=7), QUESTIONS, TAGS, tmp_path / "rounds.jsonl")


def test_a_log_of_another_run_is_refused(tmp_path):
    rows = measure(FakeEngine(), plan(), QUESTIONS, TAGS, tmp_path / "rounds.jsonl").rows
    answer = answered("math/0", 40)
    again = rounds_of_log(rows, answer, QUESTIONS[0], request=0, mode="think")
    assert again == rows[: len(again)]
    later = [replace(row, request=row.request + 9) for row in again]
    assert rounds_of_log([*rows, *later], answer, QUESTIONS[0], request=0, mode="think") == again  # asked twice
    with pytest.raises(ValueError, match="of another run"):
        rounds_of_log(rows, answer, Question("math/9", (3, 7, 1)), request=0)
    with pytest.raises(ValueError, match="lacks steps"):
        rounds_of_log(rows[1:], answer, QUESTIONS[0], request=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "medusa"}, "method must be one of"),
        ({"method": "ngram"}, "ngram may skip drafting"),
        ({"policy": {"depth": 0}}, "a policy may set depth 0"),
        ({"group": 0}, "at least 1 prompt"),
        ({"sampling": Sampling(1.0, min_p=0.1)}, "min_p"),
        ({"max_new_tokens": 1}, "at least 2 tokens"),
    ],
)
def test_a_plan_that_cannot_be_segmented_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        plan(**changes)


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ([], "no questions"),
        ([QUESTIONS[0], QUESTIONS[0]], "one prompt id"),
        ([Question("long", (3,) * 4060)], "max_model_len"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(tmp_path, questions, said):
    with pytest.raises(ValueError, match=said):
        measure(FakeEngine(), plan(), questions, TAGS, tmp_path / "rounds.jsonl")


def broken(**parts):
    return lambda record: record | parts


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"models": ("a", "b")}, "serves a, b; say which"),
        ({"counts": False}, "counts no speculation"),
        ({"change": broken(choices=[{"index": 0, "finish_reason": "stop"}])}, "without what a measurement needs"),
        ({"change": broken(choices=[])}, "without what a measurement needs"),
        ({"change": broken(metrics=None)}, "counted 1|counted [0-9]+ steps"),
        ({"change": lambda record: {"error": 400, "message": "top_k is too large"}}, "status 400.*top_k is too large"),
        ({"change": lambda record: {"error": 503, "message": "engine dead"}}, "after 0 of 6 prompts.*status 503"),
    ],
)
def test_a_server_that_is_not_what_it_should_be(tmp_path, options, said):
    with serving(**options) as (url, _), pytest.raises(ValueError, match=said):
        measure(Server(url, concurrency=1), plan(), QUESTIONS, TAGS, tmp_path / "rounds.jsonl")


def test_no_server(tmp_path):
    with pytest.raises(ValueError, match="begins with http"):
        Server("localhost:8000")
    with serving() as (url, _):
        pass
    with pytest.raises(ValueError, match="there is no vLLM server at"):
        Server(url)
    with serving(models=("tiny",)) as (url, _), pytest.raises(ValueError, match="no big"):
        Server(url, "big")


def test_models_and_prompts_as_a_record_needs_them(tmp_path):
    found = identify("tiny-qwen3")
    assert found["name"] == "tiny-qwen3"
    assert len(found["weights_sha256"]["model.safetensors"]) == 64
    assert identify("Qwen/Qwen3-4B", "c" * 40) == {"name": "Qwen/Qwen3-4B", "revision": "c" * 40}
    tokenizer = tokenizer_of("tiny-qwen3")
    thinking, plain = (render(tokenizer, "What is 3 + 4?", thinking=on) for on in (True, False))
    assert thinking != plain
    assert tokenizer.decode(thinking).count("What is 3 + 4?") == 1
    with pytest.raises(ValueError, match="no tokenizer that transformers can load"):
        tokenizer_of(str(Path(tmp_path)))
