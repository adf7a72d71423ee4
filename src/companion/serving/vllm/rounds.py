"""One response of vLLM as rounds, from its detailed metrics or from our scheduler's file; reconciled, or refused.

The metrics have an entry for each step that drafted. Where a method drafts in every step they tell all, and the first
token with what the steps committed must be the response, to the token. Where it may skip drafting (ngram, or a policy
that sets depth 0) offsets drift unseen, and only the scheduler's own file will do: its tokens must be the response's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from companion.phase.sources import steps_of_vllm
from companion.phase.tracker import ThinkTokens
from companion.rounds import Round


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt as vLLM reads it."""

    prompt_id: str
    tokens: tuple[int, ...]
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came out: token ids with the stop token, why it ended, and ``spec_decode_metrics`` as a dictionary."""

    tokens: tuple[int, ...]
    finish_reason: str | None
    metrics: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """The engine's own counts of speculation: steps with a draft, drafted and accepted tokens."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    def since(self, before: Counters) -> Counters:
        return Counters(self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted)


def counted(answers: Iterable[Answer]) -> Counters:
    """What the answers account for of the engine's counts."""
    found = Counters()
    for answer in answers:
        accepted, drafted = (_steps(answer, name) for name in ("per_step_accepted", "per_step_drafted"))
        found = Counters(found.drafts + len(drafted), found.drafted + sum(drafted), found.accepted + sum(accepted))
    return found


def rounds_of_metrics(
    answer: Answer, question: Question, *, method: str, tags: ThinkTokens, request: int, mode: str | None = None
) -> list[Round]:
    """Rounds of one answer from its metrics at level "detailed".

    ValueError for a method that may skip drafting, and where steps and tokens do not add up.
    """
    if answer.metrics is None and len(answer.tokens) > 1:
        raise ValueError(
            f"the answer to {question.prompt_id} came without speculative metrics; start vLLM with a "
            'speculative_config and per_request_spec_decode_metrics="detailed"'
        )
    # an empty list is left out of vLLM's dictionary
    lists = {name: _steps(answer, name) for name in ("per_step_accepted", "per_step_drafted")}
    found = steps_of_vllm(
        lists,
        answer.tokens,
        method=method,
        tags=tags,
        prompt_token_ids=question.tokens,
        cluster=question.prompt_id,
        domain=question.domain,
    )
    rows = []
    for number, step in enumerate(found.steps, start=1):
        at = step.position - len(question.tokens)
        rows.append(
            Round(
                request=request,
                round=number,
                position=step.position,
                drafted=step.proposed,
                verified=step.proposed,
                accepted=step.accepted,
                rejected=step.whole and step.accepted < step.proposed,
                bonus=step.whole,
                tokens=list(answer.tokens[at : at + step.length]),
                phases=list(step.phases),
                prompt_id=question.prompt_id,
                domain=question.domain,
                mode=mode,
            )
        )
    return _ended(rows, answer, question)


def rounds_of_log(
    rows: Sequence[Round], answer: Answer, question: Question, *, request: int, mode: str | None = None
) -> list[Round]:
    """Rounds of one answer from the rows that our scheduler wrote of it; ValueError unless their tokens are its.

    The scheduler numbers vLLM's requests; of several with one name the last is meant.
    """
    named = [row for row in rows if row.prompt_id == question.prompt_id]
    last = max((row.request for row in named), default=-1)
    ours = [replace(row, request=request, domain=question.domain, mode=mode) for row in named if row.request == last]
    written = [token for row in ours for token in row.tokens]
    if written != list(answer.tokens[1:]):
        raise ValueError(
            f"the scheduler wrote {len(written)} tokens of {question.prompt_id} and {len(answer.tokens)} came out, the "
            "first one from the prefill: its file is of another run, or lacks steps"
        )
    return _ended(ours, answer, question)


def _ended(rows: list[Round], answer: Answer, question: Question) -> list[Round]:
    """The rows with the reason in the last of them."""
    reason: Any = answer.finish_reason
    if reason not in ("stop", "length"):
        raise ValueError(f"the answer to {question.prompt_id} was not finished (finish_reason {reason!r}); ask again")
    ended: Literal["stop", "length"] = reason
    return [*rows[:-1], replace(rows[-1], ended=ended)] if rows else []


def _steps(answer: Answer, name: str) -> list[Any]:
    return list((answer.metrics or {}).get(name) or [])
