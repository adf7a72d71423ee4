"""Every count from committed tokens: a property over random targets, drafters, depths, stops and caps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion import metrics
from companion.engine.decode import Engine
from companion.engine.draws import KeyedDraws, request_key
from companion.engine.request import Request, StopRule
from companion.exact.tables import TableDrafter, TableTarget, random_law
from companion.phase.tracker import PhaseTracker, ThinkTokens
from companion.protocols import Context, Sampling
from companion.scheduling.fixed import FixedDepth

VOCAB, OPEN, CLOSE, STOP = 5, 1, 2, 4
TAGS = ThinkTokens(OPEN, CLOSE)


def run(*, seed=0, depth=3, caps=(8,), temperature=1.0, mode="sampled", max_batch=2, drafter=None):
    """Requests of one batch, one per cap, with a stop token and think tags among five tokens."""
    target = TableTarget(VOCAB, random_law(VOCAB, seed))
    drafter = drafter or TableDrafter(VOCAB, random_law(VOCAB, seed + 1), mode)
    engine = Engine(target, drafter, FixedDepth(depth), max_batch=max_batch)
    requests = []
    for i, cap in enumerate(caps):
        prompt = [0, 3, i % VOCAB]
        context = Context(i, list(prompt), Sampling(temperature), KeyedDraws(seed, request_key(prompt, i)))
        requests.append(Request(context, 3, StopRule(cap, frozenset({STOP})), PhaseTracker(TAGS, prompt)))
        engine.submit(requests[-1])
    list(engine.run())
    return requests


def check(request, cap, depth):
    """What must hold of every finished request."""
    emitted, rounds = request.emitted, request.rounds
    assert 1 <= len(emitted) <= cap
    assert STOP not in emitted[:-1]
    assert request.finish_reason == ("stop" if emitted[-1] == STOP else "length")
    assert request.finish_reason == "stop" or len(emitted) == cap
    # the first token comes from the prefill; the rest is the rounds' and nothing else
    assert [t for row in rounds for t in row.tokens] == emitted[1:]
    phases = PhaseTracker(TAGS, request.context.tokens[:3]).label(emitted)
    assert [p for row in rounds for p in row.phases] == phases[1:]
    counts = metrics.phase_counts(rounds)
    assert counts["think"] + counts["output"] == len(emitted) - 1
    position = 3 + 1
    for number, row in enumerate(rounds, start=1):
        assert (row.round, row.position) == (number, position)
        position += row.committed
        assert 0 <= row.accepted <= row.verified <= row.drafted <= depth
        assert row.committed == row.accepted + row.bonus
        assert not (row.rejected and row.accepted == row.verified)
        assert bool(row.ended) == (row is rounds[-1])
        columns = (row.entropy, row.max_p, row.think_end_mass, row.served_entropy, row.served_max_p)
        assert {len(column) for column in columns} == {row.verified + 1}
        assert row.confidence is None or len(row.confidence) == row.drafted
        assert row.bonus or row.ended


@given(
    seed=st.integers(0, 10_000),
    depth=st.integers(0, 6),
    caps=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    mode=st.sampled_from(["sampled", "greedy"]),
    max_batch=st.integers(1, 3),
)
def test_the_rounds_hold_exactly_what_was_committed(seed, depth, caps, temperature, mode, max_batch):
    requests = run(seed=seed, depth=depth, caps=caps, temperature=temperature, mode=mode, max_batch=max_batch)
    for request, cap in zip(requests, caps, strict=True):
        check(request, cap, depth)


def test_the_property_sees_a_round_that_counts_past_the_stop():
    """Its own negative control: one token too many in the last round of one request."""
    request = next(r for r in run(caps=(9, 9, 9, 9), seed=3) if r.finish_reason == "stop" and r.rounds)
    check(request, 9, 3)
    last = request.rounds[-1]
    request.rounds[-1] = replace(last, tokens=[*last.tokens, 0], phases=[*last.phases, "output"])
    with pytest.raises(AssertionError):
        check(request, 9, 3)


def test_rates_use_what_was_really_drafted():
    """A drafter that often finds nothing: depth times rounds would overcount its drafts."""

    class Sometimes(TableDrafter):
        def propose(self, contexts, depths):
            return super().propose(
                contexts, [d if len(c.tokens) % 3 else 0 for c, d in zip(contexts, depths, strict=True)]
            )

    drafter = Sometimes(VOCAB, random_law(VOCAB, 2))
    rounds = [row for r in run(caps=(40, 40, 40), drafter=drafter, depth=2, seed=1) for row in r.rounds]
    drafted = sum(row.drafted for row in rounds)
    assert 0 < drafted < 2 * len(rounds)
    rate = metrics.accepted_per_drafted(rounds)
    assert rate == sum(row.accepted for row in rounds) / drafted
    assert rate > sum(row.accepted for row in rounds) / (2 * len(rounds))


def test_tau_counts_the_bonus_and_plain_decoding_has_one():
    p = random_law(VOCAB, 7)
    same = run(caps=(13,) * 8, drafter=TableDrafter(VOCAB, p), depth=2, seed=7)
    rounds = [row for r in same for row in r.rounds]
    assert all(not row.rejected for row in rounds)
    whole = [row for row in rounds if not row.ended]
    assert metrics.committed_per_round(whole) == 3.0
    assert metrics.accepted_per_round(whole) == 2.0
    plain = [row for r in run(caps=(13, 13), depth=0) for row in r.rounds]
    assert metrics.committed_per_round(plain) == 1.0


def test_the_recorded_entropy_is_that_of_the_row():
    """Temperature 1 and unfiltered beside what was served, both in nats, per verified row."""
    (request,) = run(caps=(12,), temperature=0.5, seed=3)
    law = random_law(VOCAB, 3)
    for row in request.rounds:
        text = list(request.context.tokens[: row.position])
        p = np.asarray(law(tuple(text)))
        served = p**2 / (p**2).sum()
        assert row.entropy[0] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-9)
        assert row.max_p[0] == pytest.approx(p.max())
        assert row.think_end_mass[0] == pytest.approx(p[CLOSE])
        assert row.served_entropy[0] == pytest.approx(-(served * np.log(served)).sum(), rel=1e-9)
        assert row.served_max_p[0] == pytest.approx(served.max())


def test_a_greedy_request_serves_a_one_hot_row():
    (request,) = run(caps=(12,), temperature=0.0, seed=3)
    for row in request.rounds:
        assert row.served_entropy == [0.0] * (row.verified + 1)
        assert row.served_max_p == [1.0] * (row.verified + 1)
        assert min(row.entropy) > 0


def test_the_policy_sees_both_entropies_of_the_row_that_made_the_anchor():
    seen, filtered = [], Sampling(temperature=0.6, top_k=2)

    class Watching(FixedDepth):
        def draft_depths(self, requests):
            seen.extend(requests)
            return super().draft_depths(requests)

    prompt = [0, 3, 0]
    engine = Engine(TableTarget(VOCAB, random_law(VOCAB, 3)), TableDrafter(VOCAB, random_law(VOCAB, 4)), Watching(3))
    request = Request(
        Context(0, list(prompt), filtered, KeyedDraws(0, b"")), 3, StopRule(12), PhaseTracker(TAGS, prompt)
    )
    engine.submit(request)
    list(engine.run())
    for view in seen:
        p = np.asarray(random_law(VOCAB, 3)(tuple(request.context.tokens[: view.position - 1])))
        assert view.last_entropy == pytest.approx(-(p * np.log(p)).sum(), rel=1e-9)
        served = np.sort(p)[-2:] ** (1 / 0.6) / (np.sort(p)[-2:] ** (1 / 0.6)).sum()
        assert view.last_served_entropy == pytest.approx(-(served * np.log(served)).sum(), rel=1e-6)
        assert view.room == 12 - (view.position - 3)
    assert len(seen) == len(request.rounds)


def test_a_step_without_drafts_asks_the_drafter_for_nothing():
    class Silent(TableDrafter):
        def propose(self, contexts, depths):
            raise AssertionError("a draft of no tokens costs nothing")

    drafter = Silent(VOCAB, random_law(VOCAB, 4))
    engine = Engine(TableTarget(VOCAB, random_law(VOCAB, 3)), drafter, FixedDepth(0))
    request = Request(Context(0, [0, 3, 0], Sampling(), KeyedDraws(0, b"")), 3, StopRule(5), PhaseTracker(TAGS, [0]))
    engine.submit(request)
    list(engine.run())
    assert [row.drafted for row in request.rounds] == [0] * 4
