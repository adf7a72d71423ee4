"""Verification steps from three records of them: our Rounds table, vLLM's detailed metrics, DeepSpec's lists.

All three end with the same demand: the first token and what the steps committed must add up to the tokens that came
out. Where they do not, offsets have drifted and phases would be wrong, so the record is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from companion.metrics import by_prompt
from companion.phase.ledger import Ledger, Step
from companion.phase.origin import Measured
from companion.phase.straddle import StraddlePolicy, label
from companion.phase.tracker import ThinkTokens
from companion.protocols import Phase
from companion.rounds import Round, Rounds

# vLLM's methods that draft in every step of decoding; the others leave steps without a draft out of their arrays
DRAFTS_EVERY_STEP = frozenset({"dspark", "dflash", "eagle", "eagle3", "draft_model"})


@dataclass(frozen=True, slots=True)
class Observed:
    """Steps of one response; ``discarded`` counts those that committed nothing."""

    steps: tuple[Step, ...]
    discarded: int = 0


def steps_of_rounds(rounds: Iterable[Round]) -> list[Step]:
    """Each round as a step, with what was verified as its proposal; responses to one prompt are one cluster."""
    return [
        Step(
            cluster=f"{prompt}" if prompt is not None else f"request {request}, response {nth}",
            phases=tuple(row.phases),
            proposed=row.verified,
            accepted=row.accepted,
            position=row.position,
            domain=row.domain,
        )
        for (prompt, request, nth), rows in by_prompt(rounds).items()
        for row in rows
    ]


def ledger_of_rounds(rounds: Rounds, straddle: StraddlePolicy = "exclude") -> Ledger[Measured]:
    """A measured ledger, its origin read from the table itself.

    ValueError when the table's provenance does not describe the run, or says untrimmed of rounds that were trimmed.
    """
    if rounds.provenance is None:
        raise ValueError("the table has no provenance, so it is no measurement; record the run with it")
    origin = Measured.of(rounds.provenance)
    trimmed = sum(row.verified < row.drafted for row in rounds)
    if origin.untrimmed and trimmed:
        raise ValueError(
            f"the provenance says untrimmed, but {trimmed} of {len(rounds)} rounds verified less than was drafted"
        )
    return Ledger(origin, tuple(steps_of_rounds(rounds)), straddle)


def steps_of_vllm(
    metrics: Mapping[str, Any],
    token_ids: Sequence[int],
    *,
    method: str,
    tags: ThinkTokens,
    prompt_token_ids: Sequence[int],
    cluster: str,
    domain: str | None = None,
) -> Observed:
    """From one completion's ``spec_decode_metrics.to_dict()`` at level "detailed" and its token ids.

    ``method`` is the speculative method: one that may skip drafting leaves no entry for such steps, and the offsets of
    all later ones drift unseen, so it is refused. Accepted tokens of the last step that a stop token or max_tokens cut
    off are not counted. ValueError also where the arrays are missing or do not add up.
    """
    if method not in DRAFTS_EVERY_STEP:
        raise ValueError(
            f"vLLM leaves no entry for a step without a draft, and {method} may skip drafting; segment runs of "
            f"{', '.join(sorted(DRAFTS_EVERY_STEP))}"
        )
    accepted, drafted = _counts(metrics, "per_step_accepted"), _counts(metrics, "per_step_drafted")
    if 0 in drafted:
        raise ValueError("a step drafted nothing; such steps are recorded in part only, and offsets drift")
    phases = label(token_ids, tags, prompt_token_ids).phases
    lengths = [a + 1 for a in accepted]
    return _walk(phases, accepted, drafted, lengths, len(prompt_token_ids), cluster, domain)


def steps_of_deepspec(
    record: Mapping[str, Any], *, thinking: bool, cluster: str, domain: str | None = None
) -> Observed:
    """From one response's lists: num_input_tokens, num_output_tokens, acceptance_lengths, proposal_lengths,
    accepted_draft_lengths, and think_end_index, the index of `</think>` in prompt and response together (-1: none).

    The record has no tokens, so one span is all it can tell: with ``thinking`` it runs from the first new token to
    `</think>`, or to the end where there is none (truncated); an index inside the prompt means that the template closed
    it. The last round has no bonus token when it ended on an accepted stop token, and tokens past the cap, or a whole
    round past it, are not counted. ValueError on a record that does not add up.
    """
    accepted, proposed = _counts(record, "accepted_draft_lengths"), _counts(record, "proposal_lengths")
    lengths = _counts(record, "acceptance_lengths")
    start, emitted, end = (_whole(record, n) for n in ("num_input_tokens", "num_output_tokens", "think_end_index"))
    for index, (length, kept) in enumerate(zip(lengths, accepted, strict=False)):
        if length != kept + 1 and not (length == kept > 0 and index == len(lengths) - 1):
            raise ValueError(f"round {index} accepted {kept} drafts and claims {length} committed tokens")
    if end >= start + emitted:
        raise ValueError(f"think_end_index {end} lies behind the last token, {start + emitted - 1}")
    inside = (end - start + 1 if end >= 0 else emitted) if thinking else 0
    phases: list[Phase] = ["think" if index < inside else "output" for index in range(emitted)]
    return _walk(phases, accepted, proposed, lengths, start, cluster, domain)


def _walk(
    phases: Sequence[Phase],  # of each emitted token; the first belongs to no step
    accepted: Sequence[int],
    proposed: Sequence[int],
    lengths: Sequence[int],
    start: int,
    cluster: str,
    domain: str | None,
) -> Observed:
    """Lay the steps along the emitted tokens, the last ones cut where the tokens end."""
    if not len(accepted) == len(proposed) == len(lengths):
        raise ValueError("the lists of accepted, proposed and committed counts have different lengths")
    steps: list[Step] = []
    at, discarded = 1, 0
    for kept, drafted, length in zip(accepted, proposed, lengths, strict=True):
        if kept > drafted:
            raise ValueError(f"a step accepted {kept} tokens of {drafted} proposed")
        taken = phases[at : at + length]
        if taken:
            steps.append(Step(cluster, tuple(taken), drafted, min(kept, len(taken)), start + at, domain))
        else:
            discarded += 1
        at += length
    if at < len(phases) or discarded > 1:
        raise ValueError(
            f"the steps account for {at} tokens and {len(phases)} came out; steps without a draft are missing, or the "
            "record belongs to another response"
        )
    return Observed(tuple(steps), discarded)


def _counts(record: Mapping[str, Any], name: str) -> list[int]:
    values = record.get(name)
    if not isinstance(values, Sequence) or not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(f"{name} must be a list of counts, one for each step, got {values!r}")
    return list(values)


def _whole(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int or value < -1:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return value
