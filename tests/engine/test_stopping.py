"""Where a response ends: stop tokens, stop strings and the cap, inside blocks and across them."""

import pytest
from engine.models import byte_tokenizer, text_target

from companion.drafters.lookup import LookupDrafter
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.generate import generate, stream
from companion.engine.request import Request, StopRule
from companion.exact.laws import NO_TAGS
from companion.exact.tables import TableDrafter, TableTarget, script_law
from companion.phase.tracker import PhaseTracker
from companion.protocols import Context, Sampling
from companion.scheduling.fixed import FixedDepth

TOKENIZER = byte_tokenizer()
SIZE = len(TOKENIZER)


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def text_of(tokens):
    return TOKENIZER.decode(list(tokens), skip_special_tokens=True)


def write(script, depth, *, cap=60, stops=(), strings=(), prompt="? "):
    """Let a target write ``script`` (text or ids) with a drafter that knows it, ``depth`` tokens ahead."""
    start = ids(prompt)
    law = script_law(SIZE, len(start), ids(script) if isinstance(script, str) else script)
    drafter = TableDrafter(SIZE, law, "greedy")
    engine = Engine(TableTarget(SIZE, law), drafter if depth else None, FixedDepth(depth))
    request = Request(
        Context(0, start, Sampling(), KeyedDraws(0, request_key(start, 0))),
        len(start),
        StopRule(cap, frozenset(stops), tuple(strings), text_of),
        PhaseTracker(NO_TAGS, start),
    )
    engine.submit(request)
    for _ in engine.run():
        pass
    assert len(request.emitted) == 1 + sum(row.committed for row in request.rounds)
    return request


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 5, 15])
def test_a_stop_token_ends_the_block_where_it_stands(depth):
    """Accepted inside a block: the commit ends with it, nothing after it, no bonus, and the cache agrees."""
    request = write("abcd!efgh", depth, stops=ids("!"))
    assert text_of(request.emitted) == "abcd!"
    assert request.finish_reason == "stop"
    assert request.cached == len(request.context.tokens) - 1
    last = request.rounds[-1]
    assert (last.ended, last.tokens[-1]) == ("stop", ids("!")[0])
    assert [row.ended for row in request.rounds[:-1]] == [None] * (len(request.rounds) - 1)
    if depth == 15:
        assert (last.verified, last.accepted, last.bonus, last.rejected) == (15, 4, False, False)


def test_a_stop_token_as_correction_as_bonus_and_from_the_prefill():
    assert write("!abc", 3, stops=ids("!")).emitted == ids("!")
    request = write("abcd!efgh", 3, stops=ids("!"))  # a from the prefill, bcd drafted, ! the bonus
    assert (request.rounds[-1].accepted, request.rounds[-1].bonus, request.rounds[-1].ended) == (3, True, "stop")


def test_stop_tokens_of_the_prompt_do_not_stop():
    assert text_of(write("abc!", 2, stops=ids("!"), prompt="so! ").emitted) == "abc!"


@pytest.mark.parametrize("cap", range(1, 12))
@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_the_cap_inside_a_block(cap, depth):
    """Exactly ``cap`` tokens are emitted, and nothing is drafted that could not be: no extra round at the end."""
    request = write("abcdefghijklmnop", depth, cap=cap)
    assert text_of(request.emitted) == "abcdefghijklmnop"[:cap]
    assert request.finish_reason == "length"
    assert len(request.rounds) == -(-(cap - 1) // (depth + 1))
    emitted = 1
    for row in request.rounds:
        assert row.drafted == min(depth, cap - emitted - 1)
        emitted += row.committed
    assert [row.ended for row in request.rounds] == [None] * (len(request.rounds) - 1) + ["length"] * bool(cap > 1)


def test_a_stop_token_that_is_also_the_last_one_allowed_is_a_stop():
    assert write("abc!def", 2, cap=4, stops=ids("!")).finish_reason == "stop"


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4, 15])
def test_a_stop_string_inside_a_block_and_across_blocks(depth):
    """Ids, text and rounds are trimmed together, at the token that completes the string."""
    request = write("say END now", depth, strings=["END", "nowhere"])
    assert text_of(request.emitted) == "say END"
    assert request.finish_reason == "stop"
    assert [t for row in request.rounds for t in row.tokens] == request.emitted[1:]


@pytest.mark.parametrize("depth", [0, 2, 7])
def test_a_stop_string_of_characters_cut_into_bytes(depth):
    """Each byte is a token: the string is complete only when its last character is."""
    request = write("un café 日本 plus", depth, strings=["é 日"])
    assert text_of(request.emitted) == "un café 日"


@pytest.mark.parametrize("depth", [0, 3])
def test_a_stop_string_with_control_tokens_in_between(depth):
    """Control tokens decode to nothing, so many of them may lie between two characters of the string."""
    control = ids("<|im_start|>")
    request = write([*ids("xEN"), *control * 20, *ids("Dy")], depth, strings=["END"])
    assert text_of(request.emitted) == "xEND"


def test_a_stop_string_may_end_inside_a_token():
    """The token stays whole, as in transformers: text after the string is kept, ids and text still agree."""
    request = write([*ids("a"), *ids("<think>"), *ids("b")], 3, strings=["<th"])
    assert text_of(request.emitted) == "a<think>"


def test_a_stop_string_is_looked_for_in_the_response_only():
    request = write("D and END", 3, strings=["END"], prompt="EN")
    assert text_of(request.emitted) == "D and END"


@pytest.mark.parametrize("longer_first", [True, False])
def test_the_first_of_several_stop_strings_wins(longer_first):
    strings = ["abcdef", "cd"] if longer_first else ["cd", "abcdef"]
    assert text_of(write("xabcdefg", 15, strings=strings).emitted) == "xabcd"


def test_stop_rules_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="max_new_tokens must be an integer of at least 1, got 0"):
        StopRule(0)
    with pytest.raises(ValueError, match="it would match everywhere"):
        StopRule(5, strings=("",), decode=text_of)
    with pytest.raises(ValueError, match="use stop_token_ids"):
        StopRule(5, strings=("a",))


def test_generate_stops_at_the_models_own_token_unless_told_otherwise():
    target = text_target(sharpness=2.0)
    prompt = ids("hello there")
    free = generate(target, LookupDrafter(target.vocab_size), prompt, max_new_tokens=30, stop_token_ids=())
    assert (len(free.tokens), free.finish_reason) == (30, "length")
    target.eos_token_ids = frozenset([free.tokens[11]])
    stopped = generate(target, LookupDrafter(target.vocab_size), prompt, max_new_tokens=30)
    first = free.tokens.index(free.tokens[11])
    assert stopped.tokens == free.tokens[: first + 1]
    assert stopped.finish_reason == "stop"


def test_streamed_pieces_add_up_and_never_show_half_a_character():
    target = text_target(3, sharpness=2.0)
    prompts = [ids("one"), ids("three and four")]
    whole = generate(target, None, prompts, max_new_tokens=40, stop_token_ids=())
    pieces: dict[int, list] = {0: [], 1: []}
    for event in stream(target, LookupDrafter(target.vocab_size), prompts, max_new_tokens=40, stop_token_ids=()):
        pieces[event.request].append(event)
    for number, events in pieces.items():
        assert [e.result is not None for e in events] == [False] * (len(events) - 1) + [True]
        result = events[-1].result
        assert "".join(e.text for e in events) == result.text
        assert [t for e in events for t in e.tokens] == result.tokens
        assert len(result.tokens) == len(whole[number].tokens) == 40


def test_a_streamed_character_waits_for_its_last_byte(monkeypatch):
    """The four bytes of an emoji arrive in four rounds; nothing is shown before the fourth."""
    target = text_target()
    prompt, script = ids("? "), ids("a🙂b")
    law = script_law(target.vocab_size, len(prompt), script)
    table = TableTarget(target.vocab_size, law)
    monkeypatch.setattr(target, "new_cache", table.new_cache, raising=False)
    monkeypatch.setattr(target, "forward", table.forward, raising=False)
    shown = [e.text for e in stream(target, None, prompt, max_new_tokens=6, stop_token_ids=())]
    assert shown == ["a", "", "", "", "🙂", "b"]
