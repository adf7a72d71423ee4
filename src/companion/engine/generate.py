"""`generate`: prompts in, text and the Rounds table out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Number
from typing import Any, Literal, TypedDict, Unpack, overload

from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.load import TextTarget
from companion.engine.request import Request, StopRule
from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, Drafter, Phase, Policy, Sampling
from companion.rounds import Rounds
from companion.scheduling.retrospective import Retrospective


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One finished response: new tokens, their text and phases, why it ended, and its rounds.

    The first token comes from the prefill and belongs to no round, so
    ``len(tokens) == 1 + sum(r.committed for r in rounds)``.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    phases: list[Phase]
    text: str
    finish_reason: Literal["stop", "length"]
    rounds: Rounds


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Newly committed tokens of one request; ``text`` is what they add, held back while it ends inside a character."""

    request: int
    tokens: list[int]
    text: str
    result: GenerationResult | None = None  # set by the last event of a request


Prompts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]


class DecodeOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`; names as in transformers."""

    max_new_tokens: int  # 256
    temperature: float  # 1.0; 0 is greedy
    top_k: int | None  # None or 0: all
    top_p: float  # 1.0: all
    min_p: float  # 0.0: all
    stop_token_ids: int | Iterable[int] | None  # None: the model's own
    stop_strings: str | Iterable[str] | None  # none; a special token's name stops at that token
    seed: int  # 0
    policy: Policy | Retrospective | None  # None: draft and verify the drafter's full depth
    thinking: bool  # True; for the chat template, no effect on token ids
    max_batch: int  # 8 requests at once; the rest wait
    labels: Sequence[dict[str, Any]] | None  # prompt_id, domain and mode of each request's rounds
    allow_lossy: bool  # False; True lets the retrospective counterexample run


@overload
def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] to the type checker, one prompt to us
    target: TextTarget, drafter: Drafter | None, prompts: str | Sequence[int], **options: Unpack[DecodeOptions]
) -> GenerationResult: ...
@overload
def generate(
    target: TextTarget,
    drafter: Drafter | None,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    **options: Unpack[DecodeOptions],
) -> list[GenerationResult]: ...
@overload
def generate(
    target: TextTarget,
    drafter: Drafter | None = None,
    prompts: None = None,
    *,
    input_ids: Any,
    **options: Unpack[DecodeOptions],
) -> GenerationResult | list[GenerationResult]: ...
def generate(
    target: TextTarget,
    drafter: Drafter | None = None,
    prompts: Any = None,
    *,
    input_ids: Any = None,
    **options: Unpack[DecodeOptions],
) -> GenerationResult | list[GenerationResult]:
    """Decode one prompt or many, losslessly, with or without a drafter; options as in `DecodeOptions`.

    ``prompts`` is a user message, a list of them, or token ids (a list of ints, a list of lists, a [T] or [B, T]
    tensor); ``input_ids=`` may be used for ids. One prompt gives one result, a list gives a list in the same order.
    ``drafter`` None is plain decoding. Random numbers are keyed by (seed, prompt, position, purpose), so that a
    request's tokens do not depend on its batch mates. Raises ValueError on bad input, before anything is decoded.
    """
    if (prompts is None) == (input_ids is None):
        raise ValueError("give either prompts or input_ids, one of the two")
    listed, many = _listed(prompts if input_ids is None else input_ids)
    engine = _submitted(target, drafter, listed, **options)
    finished = {c.request.context.request: c.request for c in engine.run() if c.request.finish_reason}
    results = [_result(target, engine, finished[i], target.decode(finished[i].emitted)) for i in range(len(finished))]
    return results if many else results[0]


def stream(
    target: TextTarget, drafter: Drafter | None, prompts: Prompts, **options: Unpack[DecodeOptions]
) -> Iterator[StreamEvent]:
    """As `generate`, yielding tokens as they are committed; bad input is refused here, not at the first event."""
    return _events(target, _submitted(target, drafter, _listed(prompts)[0], **options))


def _submitted(
    target: TextTarget,
    drafter: Drafter | None,
    listed: list[Any],
    *,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    stop_token_ids: int | Iterable[int] | None = None,
    stop_strings: str | Iterable[str] | None = None,
    seed: int = 0,
    policy: Policy | Retrospective | None = None,
    thinking: bool = True,
    max_batch: int = 8,
    labels: Sequence[dict[str, Any]] | None = None,
    allow_lossy: bool = False,
) -> Engine:
    """An engine with every prompt queued."""
    if not isinstance(target, TextTarget):
        raise ValueError(f"target must be a loaded model, got {target!r}; load it with load_target")
    sampling = Sampling(temperature, top_k, top_p, min_p)
    encoded = [_encode(target, prompt, thinking) for prompt in listed]
    stops, strings = _stops(target, stop_token_ids, stop_strings)
    rule = StopRule(max_new_tokens, stops, strings, None if target.tokenizer is None else target.decode)
    if labels is not None and len(labels) != len(encoded):
        raise ValueError(f"there are {len(encoded)} prompts and {len(labels)} labels; give one for each")
    if unknown := sorted({name for label in labels or () for name in label} - {"prompt_id", "domain", "mode"}):
        raise ValueError(f"there is no label {unknown[0]!r}; rounds are labelled with prompt_id, domain and mode")
    capacity = max(len(ids) for ids in encoded) + max_new_tokens
    if capacity > target.max_context:
        longest = max(len(ids) for ids in encoded)
        raise ValueError(
            f"the longest prompt has {longest} tokens and max_new_tokens is {max_new_tokens}; the context of "
            f"{target.name} holds {target.max_context}: at most {max(0, target.max_context - longest)} new tokens fit"
        )
    fits = min(max_batch, len(encoded)) if hasattr(max_batch, "__index__") else max_batch  # the engine refuses it
    engine = Engine(target, drafter, policy, max_batch=fits, capacity=capacity, allow_lossy=allow_lossy)
    copies: Counter[tuple[int, ...]] = Counter()
    switched = any(isinstance(prompt, str) for prompt in listed) and target.thinking_switch
    for index, (prompt, ids) in enumerate(zip(listed, encoded, strict=True)):
        # the mode is known only of a prompt that a template with a switch rendered
        known = {"mode": "think" if thinking else "no_think"} if switched and isinstance(prompt, str) else {}
        key = request_key(ids, copies[tuple(ids)])
        copies[tuple(ids)] += 1
        engine.submit(
            Request(
                context=Context(index, list(ids), sampling, KeyedDraws(seed, key)),
                prompt_length=len(ids),
                stop=rule,
                tracker=PhaseTracker(target.tags, ids),
                labels=dict(labels[index]) if labels else known,
            )
        )
    return engine


def _events(target: TextTarget, engine: Engine) -> Iterator[StreamEvent]:
    held: dict[int, list[int]] = defaultdict(list)  # tokens whose text is not out yet
    for commit in engine.run():
        request, tokens = commit.request, held[commit.request.context.request]
        tokens.extend(commit.tokens)
        text, result = target.decode(tokens), None
        if request.finish_reason:
            result = _result(target, engine, request, target.decode(request.emitted))
        elif text.endswith("\N{REPLACEMENT CHARACTER}"):
            text = ""
        if text or result:
            tokens.clear()
        yield StreamEvent(request.context.request, commit.tokens, text, result)


def _result(target: TextTarget, engine: Engine, request: Request, text: str) -> GenerationResult:
    assert request.finish_reason is not None
    prompt = request.context.tokens[: request.prompt_length]
    phases = PhaseTracker(target.tags, prompt).label(request.emitted)
    rounds = Rounds(request.rounds, _provenance(target, engine, request))
    return GenerationResult(prompt, request.emitted, phases, text, request.finish_reason, rounds)


def _provenance(target: TextTarget, engine: Engine, request: Request) -> dict[str, Any]:
    """What decided the tokens; `companion.provenance.collect` adds the harness, the machine and the date to a study."""
    drafter = engine.drafter
    return {
        "target": target.source,
        "drafter": drafter and {"name": drafter.name, "max_depth": drafter.max_depth, "one_hot": drafter.deterministic},
        "policy": engine.policy.name,
        "sampling": asdict(request.context.sampling),
    }


def _listed(prompts: Any) -> tuple[list[Any], bool]:
    """Prompts as a list of messages or id lists, and whether they came as a list; ValueError when there is none."""
    if isinstance(prompts, str):
        return [prompts], False
    prompts = [_plain(prompt) for prompt in _iterable(prompts)]
    if not prompts:
        raise ValueError("there is no prompt; give a message, a list of messages, or token ids")
    return ([prompts], False) if all(isinstance(p, Number) for p in prompts) else (prompts, True)


def _encode(target: TextTarget, prompt: Any, thinking: bool) -> list[int]:
    """Token ids of one prompt; ValueError on an empty prompt or an id outside the vocabulary."""
    ids = target.render(prompt, thinking=thinking) if isinstance(prompt, str) else _token_ids(target, prompt)
    if not ids:
        raise ValueError("a prompt has no tokens; give at least one")
    return ids


def _stops(target: TextTarget, token_ids: Any, strings: Any) -> tuple[frozenset[int], tuple[str, ...]]:
    """Stop tokens and stop strings; ValueError on what could never stop anything.

    A special token is not part of the text, so a string that names one becomes a stop token.
    """
    strings = (strings,) if isinstance(strings, str) else tuple(strings or ())
    if not all(isinstance(string, str) for string in strings):
        raise ValueError(f"stop_strings must be text, got {strings}; token ids go into stop_token_ids")
    token_ids = _plain(token_ids)
    if token_ids is None:
        stops = target.eos_token_ids
    else:
        stops = frozenset(_token_ids(target, [token_ids] if isinstance(token_ids, str | Integral) else token_ids))
    named = {} if target.tokenizer is None else target.tokenizer.get_added_vocab()
    return stops | {named[string] for string in strings if string in named}, strings


def _token_ids(target: TextTarget, given: Any) -> list[int]:
    """Token ids in any form as a list of ints; ValueError on anything that the tokenizer could not have made."""
    ids = [_plain(token) for token in _iterable(given)]
    for token in ids:
        if not isinstance(token, Integral) or not 0 <= int(token) < target.usable_vocab:
            raise ValueError(
                f"token id {token!r} is outside the vocabulary of {target.name} (0 to {target.usable_vocab - 1})"
            )
    return [int(token) for token in ids]


def _iterable(prompts: Any) -> Iterable[Any]:
    prompts = _plain(prompts)
    if isinstance(prompts, Mapping | bytes) or not isinstance(prompts, Iterable):
        raise ValueError(
            f"a prompt is a message or a list of token ids, got {type(prompts).__name__}: of what a tokenizer returns "
            "pass the 'input_ids', and render a conversation with the chat template first"
        )
    return prompts


def _plain(value: Any) -> Any:
    """A tensor or an array as Python numbers."""
    return value.tolist() if hasattr(value, "tolist") else value
