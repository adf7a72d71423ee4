"""Labels of whole responses, and which steps lie across a boundary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase.traces import PHASES, steps

from companion.phase.straddle import POLICIES, Span, StraddleCount, label, shares
from companion.phase.tracker import PhaseTracker, ThinkTokens, straddles

TAGS = ThinkTokens(open=1, close=2, turn=3)


def read(text):
    """< opens, > closes, | begins a turn, any other letter is an ordinary token."""
    return [{"<": 1, ">": 2, "|": 3}.get(letter, 9) for letter in text]


@pytest.mark.parametrize(
    ("text", "prompt", "marks", "spans", "truncated", "opened"),
    [
        ("<ab>cd", "|u|", "ttttoo", [(0, 4, True)], False, False),  # clean
        ("abcd", "|u|", "oooo", [], False, False),  # all output
        ("<abc", "|u|", "tttt", [(0, 4, False)], True, False),  # truncated inside the span
        ("ab>cd", "|u|<x", "tttoo", [(0, 3, True)], False, True),  # opened in the prompt
        ("abc", "|u|<x", "ttt", [(0, 3, False)], True, True),  # opened in the prompt, never closed
        ("abc", "|u|<>", "ooo", [], False, False),  # the template closed it
        ("<a>b<c>d", "|u|", "tttottto", [(0, 3, True), (4, 7, True)], False, False),  # two spans
        ("<a><b>", "|u|", "tttttt", [(0, 3, True), (3, 6, True)], False, False),  # two that touch
        ("<>ab", "|u|", "ttoo", [(0, 2, True)], False, False),  # empty span
        ("a>b", "|u|", "ooo", [], False, False),  # orphan close
        ("<a<b>c", "|u|", "ttttto", [(0, 5, True)], False, False),  # a second open inside changes nothing
        ("ab", "|<quoted|u|", "oo", [], False, False),  # think text in an earlier turn
        ("", "|u|", "", [], False, False),
    ],
)
def test_known_responses(text, prompt, marks, spans, truncated, opened):
    found = label(read(text), TAGS, read(prompt))
    assert "".join(phase[0] for phase in found.phases) == marks
    assert found.spans == tuple(Span(*span) for span in spans)
    assert (found.truncated, found.opened_in_prompt) == (truncated, opened)
    if spans:
        assert found.require_span() is found
    else:
        with pytest.raises(ValueError, match="no think span"):
            found.require_span()


@given(st.text("<>ab|", max_size=30), st.text("<>ab|", max_size=10))
def test_labels_are_the_trackers_and_spans_are_where_they_think(text, prompt):
    found = label(read(text), TAGS, read(prompt))
    assert list(found.phases) == PhaseTracker(TAGS, read(prompt)).label(read(text))
    inside = {i for span in found.spans for i in range(span.start, span.end)}
    assert inside == {i for i, phase in enumerate(found.phases) if phase == "think"}
    assert all(span.closed for span in found.spans[:-1])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("exclude", (0, 0)), ("to_think", (1, 0)), ("to_output", (0, 1)), ("by_token", (0.75, 0.25))],
)
def test_policies_place_a_straddling_step(policy, expected):
    assert shares(("think",) * 3 + ("output",), policy) == expected
    assert shares(("think",), policy) == (1, 0)
    assert shares(("output",) * 2, policy) == (0, 1)


@given(st.lists(st.sampled_from("to"), min_size=1, max_size=8), st.sampled_from(POLICIES))
def test_a_step_is_never_counted_more_than_once(letters, policy):
    phases = [PHASES[letter] for letter in letters]
    weights = shares(phases, policy)
    assert all(0 <= weight <= 1 for weight in weights)
    assert sum(weights) == pytest.approx(0 if policy == "exclude" and straddles(phases) else 1)


def test_the_closing_tag_as_last_token_straddles_nothing():
    found = label(read("<ab>cd"), TAGS)
    assert not straddles(found.phases[:4])
    assert straddles(found.phases[:5])


def test_rates_by_step_and_by_token():
    count = StraddleCount.of(step.phases for step in steps("ttt tt to ooo oo"))
    assert (count.steps, count.straddling, count.tokens, count.straddling_tokens) == (5, 1, 12, 2)
    assert count.rate == pytest.approx(0.2)
    assert count.token_rate == pytest.approx(1 / 6)
    assert count.over_the_line
    nothing = StraddleCount.of([])
    assert nothing.rate is None
    assert nothing.token_rate is None
    assert not nothing.over_the_line


def test_five_percent_itself_is_on_the_line_and_not_over_it():
    at = StraddleCount.of(s.phases for s in steps("to " + "tt " * 19))
    over = StraddleCount.of(s.phases for s in steps("to " + "tt " * 18))
    assert at.rate == pytest.approx(0.05)
    assert not at.over_the_line
    assert over.over_the_line
