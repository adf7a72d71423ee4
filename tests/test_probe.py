"""The probe of the think span and its exit decision: the note's arithmetic, and what becomes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.phase.exit_rules import (
    AnswerCertain,
    AnswerSettled,
    Exit,
    ExitControl,
    ExitRule,
    FixedLength,
    NoteExit,
    Watch,
    replay,
)
from companion.phase.probe import ProbeSettings, RunningMean, Sample, SpanClock, SpanProbe, Start
from companion.phase.tracker import ThinkTokens

OPEN, CLOSE, WORD, END = 1, 2, 3, 4
TAGS = ThinkTokens(OPEN, CLOSE)


def sample(n: int, mass: float = 0.0, entropy: float = 0.0, **answers: float) -> Sample:
    return Sample(n, mass, entropy, 1.0, answers)


def spaced(rule: ExitRule, length: int, mass: float = 0.0, entropy: float = 0.0) -> list[Sample]:
    """One and the same row at every place where the rule is sampled."""
    assert rule.probe_every is not None
    return [sample(n, mass, entropy) for n in range(rule.probe_every, length + 1, rule.probe_every)]


def test_defaults_and_start_are_the_notes() -> None:
    s, probe = ProbeSettings(), SpanProbe()
    assert (s.ema_alpha, s.transition_entropy_threshold, s.rpdi_threshold) == (0.05, 2.5, 3.0)
    assert (s.eat_ema_variance_threshold, s.min_think_tokens, s.max_think_tokens) == (0.001, 512, 32_768)
    assert (s.probe_every, s.running_mean) == (32, "tokens")
    assert (probe.mean, probe.second_moment, probe.rpdi_local, probe.rpdi_global) == (0.5, 0.25, 0.0, 0.0)
    assert probe.rpdi_ratio is None


@given(
    rows=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 12)), min_size=1, max_size=30),
    alpha=st.floats(0.01, 1.0),
    every=st.integers(1, 40),
    mean=st.sampled_from(["tokens", "samples"]),
    begin=st.sampled_from(["prior", "sample"]),
)
def test_statistics_are_the_formulas(
    rows: list[tuple[float, float]], alpha: float, every: int, mean: RunningMean, begin: Start
) -> None:
    probe = SpanProbe(ProbeSettings(ema_alpha=alpha, probe_every=every, running_mean=mean, start=begin))
    n = len(rows)
    for k, (mass, entropy) in enumerate(rows, start=1):
        probe.update(sample(k * every, mass, entropy))
    weights = [alpha * (1 - alpha) ** (n - k) for k in range(1, n + 1)]  # the recursions, solved
    start = (1 - alpha) ** n
    jumps = [float(entropy > 2.5) for _, entropy in rows]
    first = rows[0][0] if begin == "sample" else 0.5
    mu = first * start + sum(w * mass for w, (mass, _) in zip(weights, rows, strict=True))
    nu = first**2 * start + sum(w * mass**2 for w, (mass, _) in zip(weights, rows, strict=True))
    assert probe.mean == pytest.approx(mu)
    assert probe.variance == pytest.approx(max(nu - mu * mu, 0.0), abs=1e-12)
    assert probe.rpdi_local == pytest.approx(sum(w * j for w, j in zip(weights, jumps, strict=True)))
    overall = 0.0
    for k, jump in enumerate(jumps, start=1):
        d = k * every if mean == "tokens" else k
        overall = (overall * (d - 1) + jump) / d
    assert probe.rpdi_global == pytest.approx(overall, abs=1e-12)
    if mean == "samples":
        assert probe.rpdi_global == pytest.approx(sum(jumps) / n, abs=1e-12)
    ratio = probe.rpdi_ratio
    assert ratio is None if overall <= 0.001 else ratio == pytest.approx(probe.rpdi_local / overall)


def test_a_mass_that_never_moves_converges_on_nothing() -> None:
    """e = 0 throughout: the variance peaks near 1/16 and is below 0.001 at the 108th sample, not before."""
    probe, variances = SpanProbe(), []
    for k in range(1, 121):
        probe.update(sample(32 * k))
        variances.append(probe.variance)
        x = 0.95**k
        assert probe.variance == pytest.approx(0.25 * x * (1 - x))
    assert variances.index(max(variances)) + 1 in (13, 14)
    assert max(variances) == pytest.approx(1 / 16, abs=1e-4)
    assert next(k for k, v in enumerate(variances, start=1) if v < 0.001) == 108
    rule = NoteExit()
    assert replay(rule, spaced(rule, 4000), 4000) == Exit("converged", 108 * 32)
    # the repair asks for readiness as well, and then silence is no reason to end
    assert replay(replace(rule, least_mean=0.01), spaced(rule, 4000), 4000) is None
    # a start from the data alone is no repair: there never is a variance, and the floor is where it ends
    fresh = replace(rule, settings=ProbeSettings(start="sample"))
    assert replay(fresh, spaced(rule, 4000), 4000) == Exit("converged", 512)
    assert replay(replace(fresh, least_mean=0.01), spaced(rule, 4000), 4000) is None
    # and a mass that is really there and still does converge under both
    ready = spaced(rule, 4000, mass=0.9)
    assert replay(rule, ready, 4000) == replay(replace(rule, least_mean=0.01), ready, 4000) is not None


def test_with_a_mass_that_stays_at_nothing_the_rule_is_a_clock() -> None:
    """With e = 0 throughout nothing of the response is in the decision: x (1 - x) < 4 threshold, x = (1 - alpha)^k."""
    for alpha in (0.05, 0.1, 0.2, 0.4):
        for threshold in (0.01, 0.001, 0.0001):
            rule = NoteExit(
                ProbeSettings(
                    ema_alpha=alpha, eat_ema_variance_threshold=threshold, min_think_tokens=64, probe_every=8
                ),
                reasons=("converged",),
            )
            small = (1 - math.sqrt(1 - 16 * threshold)) / 2
            k = max(8, math.floor(math.log(small) / math.log(1 - alpha)) + 1)
            assert replay(rule, spaced(rule, 3000), 3000) == Exit("converged", 8 * k)


def test_the_running_mean_of_sparse_samples_is_biased_low() -> None:
    """Every sampled row a transition: the true share is 1. As specified it is 1 - prod (1 - 1/(32 j)), repaired 1."""
    biased = SpanProbe()
    repaired = SpanProbe(ProbeSettings(running_mean="samples"))
    left = 1.0
    for k in range(1, 101):
        left *= 1 - 1 / (32 * k)
        for probe in (biased, repaired):
            probe.update(sample(32 * k, entropy=5.0))
        assert biased.rpdi_global == pytest.approx(1 - left)
        assert repaired.rpdi_global == pytest.approx(1.0)
    assert biased.rpdi_global < 0.16  # after 3,200 tokens of nothing but transitions
    assert biased.rpdi_ratio is not None
    assert biased.rpdi_ratio > 6
    assert repaired.rpdi_ratio == pytest.approx(1 - 0.95**100)
    # sampled at every token the two are one
    dense = SpanProbe(ProbeSettings(probe_every=1))
    for n in range(1, 50):
        dense.update(sample(n, entropy=5.0 * (n % 3 == 0)))
    assert dense.rpdi_global == pytest.approx(16 / 49)


def test_the_bias_ends_a_span_that_does_not_change() -> None:
    """A span as restless at its end as at its start is no overthinking, and is ended at the floor all the same."""
    as_specified = NoteExit(reasons=("overthinking",))
    repaired = NoteExit(ProbeSettings(running_mean="samples"), reasons=("overthinking",))
    rows = spaced(as_specified, 5000, entropy=5.0)
    assert replay(as_specified, rows, 5000) == Exit("overthinking", 512)
    assert replay(repaired, rows, 5000) is None
    late = spaced(as_specified, 3200) + [sample(n, entropy=5.0) for n in range(3232, 5001, 32)]
    assert replay(repaired, late, 5000) == Exit("overthinking", 3232)  # a change is seen by both
    assert replay(as_specified, late, 5000) == Exit("overthinking", 3232 + 3 * 32)  # once the mean passes 0.001


@given(
    rows=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 12)), max_size=15),
    least_mean=st.sampled_from([0.0, 0.1]),
)
def test_the_defaults_never_fire_on_a_span_of_some_hundred_tokens(
    rows: list[tuple[float, float]], least_mean: float
) -> None:
    """Whatever the rows: the floor is 512 tokens."""
    rule = NoteExit(least_mean=least_mean)
    samples = [sample(32 * k, mass, entropy) for k, (mass, entropy) in enumerate(rows, start=1)]
    assert replay(rule, samples, min(511, 32 * len(rows) + 31)) is None


def test_floor_cap_and_ties() -> None:
    still = ProbeSettings(ema_alpha=1.0, probe_every=8, min_think_tokens=24, max_think_tokens=60)
    rule = NoteExit(still)
    assert replay(rule, spaced(rule, 100), 100) == Exit("converged", 24)  # variance is 0 from the first sample on
    restless = [sample(8, entropy=0.0), sample(16, entropy=0.0), *(sample(8 * k, 0.0, 9.0) for k in range(3, 13))]
    both = NoteExit(replace(still, rpdi_threshold=1.5))
    assert replay(both, restless, 100) == Exit("converged", 24)  # converged wins ties
    assert replay(replace(both, reasons=("overthinking",)), restless, 100) == Exit("overthinking", 24)
    assert replay(replace(both, reasons=()), restless, 100) == Exit("hard_cap", 60)  # regardless of the spacing
    assert replay(replace(both, reasons=()), spaced(rule, 59), 59) is None
    assert Exit("hard_cap", 60).used == 61  # the closing tag counts


def test_one_exit_a_response_and_nested_openings() -> None:
    control = ExitControl(FixedLength(3), TAGS)
    assert control.decide(None) is None  # not in a span yet
    for token in (OPEN, WORD, OPEN):  # an opening inside the span restarts nothing
        control.push(token)
        assert control.decide(None) is None
    control.push(WORD)
    assert control.decide(None) == Exit("fixed_length", 3)
    for token in (CLOSE, WORD, OPEN, WORD, WORD, WORD, WORD, WORD):  # a second span
        control.push(token)
        assert not control.armed
        assert control.decide(None) is None
    assert control.exit == Exit("fixed_length", 3)
    assert control.clock.used == 4 + 5


def test_a_span_that_ended_by_itself_leaves_the_rule_armed_and_fresh() -> None:
    rule = AnswerSettled(threshold=10.0, probe_every=1)  # fires at the second sample of a span, whatever it is
    control = ExitControl(rule, TAGS)
    for token in (OPEN, WORD):
        control.push(token)
    assert control.due
    assert control.decide(sample(1, **{"": 0.5})) is None
    for token in (CLOSE, WORD, OPEN, WORD):
        control.push(token)
    assert control.decide(sample(1, **{"": 0.5})) is None  # the first sample of a new span again
    control.push(WORD)
    assert control.decide(sample(2, **{"": 0.5})) == Exit("answer_settled", 2)
    assert control.clock.spans == 2


def test_a_span_that_the_prompt_opened_is_clocked_from_the_first_new_token() -> None:
    clock = SpanClock(TAGS, [WORD, OPEN, WORD])
    assert (clock.thinking, clock.think_tokens, clock.spans) == (True, 0, 1)
    for token in (WORD, CLOSE, WORD):
        clock.push(token)
    assert (clock.thinking, clock.think_tokens, clock.used) == (False, None, 2)
    orphan = SpanClock(TAGS)
    orphan.push(CLOSE)
    assert (orphan.used, orphan.spans) == (0, 0)


def test_answer_rules() -> None:
    def row(n: int, nats: float) -> Sample:
        return sample(n, **{"": nats})

    certain = AnswerCertain(0.1, min_think_tokens=16, probe_every=8)
    assert replay(certain, [row(8, 0.0), row(16, 0.2), row(24, 0.05), row(32, 0.0)], 32) == Exit("answer_certain", 24)
    values = [2.0] + [1.0] * 11
    stops = []
    for corrected in (True, False):  # the recursion by hand; without the correction it would stop one sample early
        mean, spread, k = 0.0, 0.0, 0
        for k, x in enumerate(values, start=1):
            mean = 0.8 * mean + 0.2 * x
            spread = 0.8 * spread + 0.2 * (x - mean) ** 2
            if k > 1 and spread / (1 - 0.8**k if corrected else 1) < 0.2:
                break
        stops.append(k)
    assert stops == [8, 7]
    rows = [row(8 * i, x) for i, x in enumerate(values, start=1)]
    assert replay(AnswerSettled(0.2, 0.2, probe_every=8), rows, 96) == Exit("answer_settled", 64)
    assert replay(AnswerSettled(0.2, 0.2, min_think_tokens=72, probe_every=8), rows, 96) == Exit("answer_settled", 72)


def test_watching_never_fires() -> None:
    rule = Watch(8)
    assert replay(rule, spaced(rule, 400, mass=1.0, entropy=9.0), 400) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProbeSettings(ema_alpha=0.0), "ema_alpha"),
        (lambda: ProbeSettings(rpdi_threshold=math.nan), "rpdi_threshold"),
        (lambda: ProbeSettings(probe_every=0), "probe_every"),
        (lambda: ProbeSettings(min_think_tokens=600, max_think_tokens=512), "max_think_tokens .* at least 600"),
        (lambda: ProbeSettings(running_mean="median"), "running_mean"),  # type: ignore[arg-type]
        (lambda: ProbeSettings(start="zero"), "start must be 'prior'"),  # type: ignore[arg-type]
        (lambda: NoteExit(reasons=("hard_cap",)), "reasons"),
        (lambda: NoteExit(least_mean=1.5), "least_mean"),
        (lambda: FixedLength(-1), "tokens"),
        (lambda: AnswerSettled(0.1, alpha=2.0), "alpha"),
        (lambda: AnswerCertain(math.nan), "threshold"),
        (lambda: Watch(0), "probe_every"),
        (lambda: ExitControl(Watch(), ThinkTokens(None, None)), "nothing that an exit could force"),
        (lambda: replay(Watch(8), [], 9), "no sample after 8"),
        (lambda: SpanProbe().update(sample(0)), "after its first token"),
        (lambda: SpanProbe().update(sample(1, mass=math.nan)), "logits are broken"),
        (lambda: SpanProbe().update(sample(1, entropy=-1.0)), "logits are broken"),
    ],
)
def test_bad_input_is_one_sentence(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make()  # type: ignore[operator]
    assert "\n" not in str(error.value)
