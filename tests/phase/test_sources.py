"""The same response from three records gives the same steps, and a record that does not add up is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase.test_straddle import TAGS, read

from companion.phase.ledger import Step
from companion.phase.sources import Observed, ledger_of_rounds, steps_of_deepspec, steps_of_rounds, steps_of_vllm
from companion.phase.tracker import PhaseTracker
from companion.rounds import Round, Rounds

PROMPT = read("|u|")


def vllm(text, accepted, drafted=None, prompt=PROMPT, method="dspark", **changes):
    metrics = {"per_step_accepted": accepted, "per_step_drafted": drafted or [7] * len(accepted)} | changes
    return steps_of_vllm(
        metrics, read(text), method=method, tags=TAGS, prompt_token_ids=prompt, cluster="a", domain="math"
    )


def deepspec(accepted, lengths=None, proposed=None, *, emitted, end=-1, thinking=True, start=3, **changes):
    record = {
        "num_input_tokens": start,
        "num_output_tokens": emitted,
        "acceptance_lengths": [a + 1 for a in accepted] if lengths is None else lengths,
        "proposal_lengths": [7] * len(accepted) if proposed is None else proposed,
        "accepted_draft_lengths": accepted,
        "think_end_index": end,
    }
    return steps_of_deepspec(record | changes, thinking=thinking, cluster="a", domain="math")


def marks(observed):
    return " ".join("".join(phase[0] for phase in step.phases) for step in observed.steps)


def test_vllm_steps_lie_along_the_tokens():
    """The first token belongs to no step; then three steps, the second one across the boundary."""
    found = vllm("<ab>cdef", [1, 2, 1])
    assert marks(found) == "tt too oo"
    assert [(s.accepted, s.proposed, s.position) for s in found.steps] == [(1, 7, 4), (2, 7, 6), (1, 7, 9)]
    assert {s.domain for s in found.steps} == {"math"}


def test_vllm_span_opened_in_the_prompt_and_truncated():
    assert marks(vllm("ab>cd", [1, 1], prompt=read("|u|<"))) == "tt oo"
    assert marks(vllm("<abcd", [1, 1])) == "tt tt"
    assert marks(vllm("<a>b<c>d", [3, 2])) == "ttot tto"


def test_vllm_counts_accepted_tokens_that_the_cap_cut_off():
    """The last step claims four accepted and a bonus; two tokens of it came out."""
    found = vllm("<ab>cd", [2, 4])
    assert found.steps[-1] == Step("a", ("output",) * 2, 7, 2, 7, "math")
    assert not found.steps[-1].whole


def test_vllm_refuses_drifted_offsets():
    with pytest.raises(ValueError, match="account for 5 tokens and 6 came out"):
        vllm("<ab>cd", [1, 1])
    with pytest.raises(ValueError, match="account for"):
        vllm("<ab>", [1, 1, 1, 1])  # whole steps behind the end
    with pytest.raises(ValueError, match="ngram may skip drafting"):
        vllm("<ab>cd", [1, 2], method="ngram")
    with pytest.raises(ValueError, match="drafted nothing"):
        vllm("<ab>cd", [1, 2], [7, 0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_step_accepted": None}, "per_step_accepted must be a list"),
        ({"per_step_accepted": [1, -1]}, "per_step_accepted"),
        ({"per_step_accepted": [1, 1.0]}, "per_step_accepted"),
        ({"per_step_drafted": [7]}, "different lengths"),
        ({"per_step_drafted": [7, 1]}, "accepted 2 tokens of 1"),
    ],
)
def test_vllm_refuses_broken_arrays(changes, said):
    with pytest.raises(ValueError, match=said):
        vllm("<ab>cd", [1, 2], **changes)
    with pytest.raises(ValueError, match="per_step_accepted"):  # level "summary"
        steps_of_vllm({}, [9], method="dspark", tags=TAGS, prompt_token_ids=PROMPT, cluster="a")


def test_deepspec_lists_give_the_same_steps_as_vllms():
    end = len(PROMPT) + 3  # `</think>`, counted from the prompt's first token
    assert deepspec([1, 2, 1], emitted=8, end=end) == vllm("<ab>cdef", [1, 2, 1])


def test_deepspec_rounds_without_a_draft_are_steps_of_one_token():
    found = deepspec([0, 2], proposed=[0, 7], emitted=5, end=-1)
    assert [(s.length, s.proposed, s.whole) for s in found.steps] == [(1, 0, True), (3, 7, True)]


def test_deepspec_last_round_without_bonus():
    """It ended on an accepted stop token: three committed and none of them the target's."""
    found = deepspec([1, 3], [2, 3], [7, 3], emitted=6)
    assert [s.length for s in found.steps] == [2, 3]
    assert [s.whole for s in found.steps] == [True, False]
    with pytest.raises(ValueError, match="round 0 accepted 1 drafts and claims 1"):
        deepspec([1, 3], [1, 4], emitted=6)  # only the last round may lack it
    with pytest.raises(ValueError, match="round 1 accepted 0 drafts and claims 0"):
        deepspec([1, 0], [2, 0], emitted=3)
    with pytest.raises(ValueError, match="claims 5"):
        deepspec([1, 3], [2, 5], emitted=8)


def test_deepspec_tokens_past_the_cap():
    """Ten tokens claimed, eight let out; and a last round that ran although nothing more was let out."""
    cut = deepspec([3, 4], emitted=8)
    assert [s.length for s in cut.steps] == [4, 3]
    assert [s.accepted for s in cut.steps] == [3, 3]
    assert cut.discarded == 0
    extra = deepspec([3, 2, 5], emitted=8)
    assert [s.length for s in extra.steps] == [4, 3]
    assert extra.discarded == 1
    with pytest.raises(ValueError, match="account for"):
        deepspec([3, 2, 5, 1], emitted=8)


def test_deepspec_phases_from_the_index_alone():
    assert marks(deepspec([1, 1], emitted=5)) == "tt tt"  # never closed: all of it thinks
    assert marks(deepspec([1, 1], emitted=5, thinking=False)) == "oo oo"
    assert marks(deepspec([1, 1], emitted=5, end=2)) == "oo oo"  # the template closed it in the prompt
    assert marks(deepspec([1, 1], emitted=5, end=2, thinking=False)) == "oo oo"
    assert marks(deepspec([1, 1], emitted=5, end=3)) == "oo oo"  # the very first token closed it
    assert marks(deepspec([1, 1], emitted=5, end=7)) == "tt tt"  # the very last one did
    with pytest.raises(ValueError, match="think_end_index 8 lies behind the last token, 7"):
        deepspec([1, 1], emitted=5, end=8)


def test_deepspec_a_response_of_one_token_has_no_rounds():
    assert deepspec([], emitted=1) == Observed(())


@pytest.mark.parametrize("name", ["num_input_tokens", "num_output_tokens", "think_end_index", "acceptance_lengths"])
def test_deepspec_needs_every_field(name):
    with pytest.raises(ValueError, match=name):
        deepspec([1, 1], emitted=5, **{name: None})


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(4, 7)), max_size=12), st.integers(0, 5), st.data())
def test_whatever_was_cut_the_steps_add_up_to_the_tokens(drawn, cut, data):
    accepted = [a for a, _ in drawn]
    emitted = 1 + sum(a + 1 for a in accepted)
    emitted -= min(cut, accepted[-1]) if accepted else 0
    end = data.draw(st.integers(-1, 2 + emitted))
    found = deepspec(accepted, proposed=[g for _, g in drawn], emitted=emitted, end=end)
    assert sum(s.length for s in found.steps) == emitted - 1
    assert [p for s in found.steps for p in s.phases] == [
        "think" if end < 0 or index <= end - 3 else "output" for index in range(1, emitted)
    ]
    text = "".join("ab"[i % 2] for i in range(emitted))
    if end < 0:
        same = vllm(text, accepted, [g for _, g in drawn], prompt=read("|u<"))
        assert same == found


def rows(prompt_id="math/0", **changes):
    made, position = [], 10
    for index, text in enumerate(("<ab", ">", "cd")):
        fields = {"request": 0, "round": index, "position": position, "drafted": 7, "verified": 7}
        made.append(
            Round(
                **fields | {"accepted": len(text) - 1, "rejected": True, "bonus": True, "tokens": read(text)} | changes,
                phases=PhaseTracker(TAGS, read("|<")).label(read(text)) if index < 2 else ["output"] * 2,
                prompt_id=prompt_id,
                domain="math",
                ended="stop" if index == 2 else None,
            )
        )
        position += len(text)
    return made


def test_rounds_are_steps():
    found = steps_of_rounds(rows())
    assert [(s.length, s.accepted, s.proposed, s.position) for s in found] == [
        (3, 2, 7, 10),
        (1, 0, 7, 13),
        (2, 1, 7, 14),
    ]
    assert {(s.cluster, s.domain) for s in found} == {("math/0", "math")}
    assert len({s.cluster for s in steps_of_rounds(rows(None) + rows(None))}) == 2  # unnamed responses are kept apart
    assert len({s.cluster for s in steps_of_rounds(rows() + rows())}) == 1  # one prompt is one cluster


RECORD = {
    "harness": {"name": "companion", "version": "0.1.0", "commit": "c" * 40},
    "recorded_at": "2026-08-07T12:00:00+00:00",
    "target": {"name": "tiny-qwen3", "revision": None, "weights_sha256": {"model.safetensors": "a" * 64}},
    "drafter": {"name": "dspark", "revision": "main"},
    "thinking": True,
    "sampling": {"temperature": 1.0, "top_k": None, "top_p": 1.0, "min_p": 0.0},
    "seeds": [0],
    "prompt_set": "0" * 64,
    "settings": {"depth": 7, "untrimmed": True},
    "system": {"processor": "a processor"},
}


def test_a_table_brings_its_own_origin():
    ledger = ledger_of_rounds(Rounds(rows(), RECORD), "by_token")
    assert ledger.origin.target == "tiny-qwen3"
    assert ledger.origin.hardware == "a processor"
    assert (ledger.straddle, len(ledger.steps)) == ("by_token", 3)
    assert ledger_of_rounds(Rounds(rows(), RECORD | {"system": {"gpu": "a gpu"}})).origin.hardware == "a gpu"


def test_a_table_without_a_description_is_no_measurement():
    with pytest.raises(ValueError, match="no provenance"):
        ledger_of_rounds(Rounds(rows()))
    with pytest.raises(ValueError, match="does not describe"):
        ledger_of_rounds(Rounds(rows(), {"target": "tiny-qwen3"}))


def test_a_table_that_says_untrimmed_and_is_not():
    with pytest.raises(ValueError, match="3 of 3 rounds verified less"):
        ledger_of_rounds(Rounds(rows(verified=5), RECORD))
    trimmed = RECORD | {"settings": {"depth": 7, "untrimmed": False}}
    assert not ledger_of_rounds(Rounds(rows(verified=5), trimmed)).origin.untrimmed
