"""The phase hook as a rule: what the note's code pins, what may be planned with, and what a round costs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phase_runs import DEAR, FLAT, SERVING, calibrated, hook, phase_rate, rates_of, view

from companion.accepted_length import tau
from companion.ceiling import entropy_ceiling
from companion.phase.origin import Synthetic
from companion.phase.rates import MeasuredRates
from companion.planning import CostModel
from companion.protocols import Sampling
from companion.resampling import Interval
from companion.scheduling.capacity import Capacity, CapacityTable, Curve
from companion.scheduling.phase_hook import survivals
from companion.scheduling.step_cycle import StepCycle

QWEN3_V = 151_936

entropies = st.one_of(st.none(), st.floats(-1, 13), st.sampled_from([math.nan, math.inf, -math.inf]))
phases = st.sampled_from(["think", "output"])
samplings = st.builds(
    Sampling,
    temperature=st.floats(0.05, 3),
    top_k=st.one_of(st.none(), st.integers(1, 60)),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.9),
)
bounds = st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 5)).map(
    lambda b: {"min_depth": b[0], "baseline": b[0] + b[1], "max_depth": b[0] + b[1] + b[2]}
)
costs = st.one_of(
    st.none(),
    st.builds(
        CostModel,
        draft_token_us=st.floats(0, 900),
        verify_fixed_us=st.floats(1, 2000),
        verify_token_us=st.floats(0, 900),
    ),
    st.sampled_from([FLAT, DEAR, CapacityTable((8, 90), (DEAR.verify, FLAT.verify), (FLAT.draft, FLAT.draft))]),
)
planners = st.sampled_from(["iid", "certified"])


# What the note's code pins.


def test_the_notes_table_of_best_depths():
    H = (0.5, 2.0, 4.0, 8.0, 11.0, math.log(QWEN3_V))
    assert [hook().decide("think", float(entropy_ceiling(h, QWEN3_V))).depth for h in H] == [7, 7, 5, 2, 1, 1]
    assert hook().draft_depths([view("output", h) for h in H]) == [7, 7, 5, 2, 1, 1]
    found = hook().decide("output", float(entropy_ceiling(8.0, QWEN3_V)))
    assert found.basis == "entropy_ceiling"
    assert found.rate == pytest.approx(0.385, abs=5e-4)
    assert found.tau == pytest.approx(tau(found.rate, 2))


@given(entropies, phases, samplings, bounds, costs, planners)
def test_uncalibrated_is_never_deeper_than_the_baseline(entropy, phase, sampling, bounds, costs, planner):
    made = hook(**bounds, costs=costs, planner=planner)
    (depth,) = made.draft_depths([view(phase, entropy, sampling)])
    assert bounds["min_depth"] <= depth <= bounds["baseline"]


@given(phases, bounds, costs, planners, st.floats(0, 13))
def test_without_a_signal_or_with_the_ceiling_off_nothing_changes(phase, bounds, costs, planner, entropy):
    options = {**bounds, "costs": costs, "planner": planner}
    silent = [view(phase), view(phase, math.nan), view(phase, entropy, Sampling(0.0))]
    for made, views in (
        (hook(**options), silent),
        (hook(**options, use_entropy_ceiling=False), [view(phase, entropy)]),
        (hook(**options | {"deterministic": False}), [view(phase, entropy)]),
    ):
        assert made.draft_depths(views) == [bounds["baseline"]] * len(views)
        for one in views:
            found = made.decide(phase, made.ceiling(one))
            assert (found.basis, found.rate, found.tau) == ("baseline", None, None)


@given(st.lists(st.floats(0, 13), min_size=2, max_size=6), phases, samplings, bounds, costs, planners)
def test_depth_never_rises_with_entropy(entropies, phase, sampling, bounds, costs, planner):
    made = hook(**bounds, costs=costs, planner=planner)
    depths = [made.draft_depths([view(phase, h, sampling)])[0] for h in sorted(entropies)]
    assert depths == sorted(depths, reverse=True)


rates = st.floats(0, 1)
curves = st.lists(rates, min_size=3, max_size=7)


@given(rates, rates, curves, curves, entropies, phases, st.sampled_from(["iid", "certified", "curve"]), costs)
def test_calibrated_depths_keep_the_bounds_and_do_not_rise_with_entropy(
    think, output, inside, outside, entropy, phase, planner, costs
):
    made = calibrated(
        phase_rate(think, inside), phase_rate(output, outside), planner=planner, costs=costs, min_depth=1, baseline=2
    )
    (depth,) = made.draft_depths([view(phase, entropy)])
    assert 1 <= depth <= 7
    if planner == "curve":
        assert depth <= len(inside if phase == "think" else outside)
    depths = [made.draft_depths([view(phase, h)])[0] for h in np.linspace(0, 12, 9)]
    assert depths == sorted(depths, reverse=True)


def test_a_measured_rate_unlocks_raising():
    made = calibrated(0.3, 0.95, depth=12, baseline=2)
    found = made.decide("output")
    assert (found.basis, found.rate) == ("measured_prior", 0.95)
    assert found.depth > 2
    assert hook(baseline=2, max_depth=12).decide("output").depth == 2


@given(rates, rates, costs, planners)
def test_a_lower_rate_inside_the_span_never_drafts_deeper_there(one, other, costs, planner):
    low, high = sorted((one, other))
    made = calibrated(low, high, costs=costs, planner=planner, min_depth=0, baseline=4)
    assert made.decide("think").depth <= made.decide("output").depth


def test_a_low_rate_inside_the_span_drafts_shallower_there():
    made = calibrated(0.3, 0.9)
    assert made.draft_depths([view("think"), view("output")]) == [2, 7]


def test_the_ceiling_caps_an_overconfident_rate():
    made = calibrated(0.9, 0.9)
    ceiling = float(entropy_ceiling(11.0, QWEN3_V))
    found = made.decide("output", ceiling)
    assert (found.depth, found.basis, found.rate) == (1, "measured_prior_capped_by_entropy", ceiling)
    assert made.decide("output", 0.95).basis == "measured_prior"
    sampled = calibrated(0.9, 0.9, deterministic=False)
    assert sampled.draft_depths([view("output", 11.0)]) == [7]


@pytest.mark.parametrize("stage", ["prefill", "complete"])
def test_outside_decoding_the_baseline_stands(stage):
    found = calibrated(0.1, 0.1, baseline=5).decide(stage, 0.1)
    assert (found.depth, found.basis, found.rate, found.tau) == (5, "not_decoding", None, None)


# Rates: measured, of this very use, and read at the end that changes less.


def test_a_synthetic_trace_cannot_calibrate():
    with pytest.raises(TypeError, match="only a measured run"):
        MeasuredRates(Synthetic("ambiguous boundary"), phase_rate(0.3), phase_rate(0.9))


def test_without_the_run_there_is_no_calibration():
    with_run, without = calibrated(0.1, 0.95, baseline=2), hook(baseline=2)
    assert with_run.decide("output").depth > 2
    assert [without.decide(p).basis for p in ("think", "output")] == ["baseline", "baseline"]
    with pytest.raises(ValueError, match="say what is served"):
        hook(rates=rates_of(0.3, 0.9))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"target": "other"}, "target"),
        ({"drafter": "other"}, "drafter"),
        ({"drafter_revision": "d2"}, "drafter"),
        ({"depth": 5}, "depth"),
    ],
)
def test_rates_of_another_run_are_refused(change, named):
    with pytest.raises(ValueError, match=f"measured with {named} "):
        hook(rates=rates_of(0.3, 0.9, **change), serving=SERVING)


def test_rates_of_another_sampling_are_refused_when_a_request_has_it():
    made = calibrated(0.3, 0.9)
    assert made.draft_depths([view()])
    with pytest.raises(ValueError, match="measured with sampling"):
        made.draft_depths([view(sampling=Sampling(0.7))])


@pytest.mark.parametrize("planner", ["iid", "curve"])
def test_the_end_of_the_interval_that_changes_less_plans(planner):
    """Costs under which 0.3 is worth one slot, 0.55 two and 0.9 all seven."""

    def decided(value, width, baseline):
        rate = phase_rate(value, [value] * 7, width)
        return calibrated(rate, rate, planner=planner, baseline=baseline, costs=CostModel(60, 500, 30)).decide("think")

    exact = {a: decided(a, 0.0, 1).depth for a in (0.3, 0.55, 0.9)}
    assert exact == {0.3: 1, 0.55: 2, 0.9: 7}
    raised, lowered, kept = decided(0.85, 0.1, 1), decided(0.45, 0.2, 7), decided(0.6, 0.3, 2)
    assert 1 < raised.depth < decided(0.85, 0.0, 1).depth
    assert raised.rate == pytest.approx(0.75)
    assert decided(0.45, 0.0, 7).depth < lowered.depth < 7
    assert lowered.rate == pytest.approx(0.65)
    assert (kept.depth, kept.rate) == (2, pytest.approx(0.6))
    assert {d.basis for d in (raised, lowered, kept)} == {"measured_prior"}


@given(rates, rates, st.floats(0, 0.5), st.integers(0, 7), costs, planners)
def test_no_interval_moves_a_depth_further_than_its_middle_does(think, output, width, baseline, costs, planner):
    options = {"baseline": baseline, "min_depth": 0, "costs": costs, "planner": planner}
    wide = calibrated(*(phase_rate(a, width=width) for a in (think, output)), **options)
    exact = calibrated(think, output, **options)
    for phase in ("think", "output"):
        moved, known = wide.decide(phase).depth, exact.decide(phase).depth
        assert min(known, baseline) <= moved <= max(known, baseline)


def test_the_ends_of_a_survival_cover_it_and_are_no_wider_than_they_must_be():
    """Drawn anew from binomial counts, 2.5 % of the low ends lie above what is true, and as many high ends below; of
    the products of ends hardly any do."""
    c, n = np.array([0.8, 0.75, 0.7, 0.65]), 300
    random = np.random.default_rng(0)
    missed, product = [], []
    for _ in range(2000):
        judged, curve = n, []
        for rate in c:
            kept = random.binomial(judged, rate)
            seen, error = kept / judged, 1.96 * np.sqrt(rate * (1 - rate) / judged)
            curve.append(Interval(seen, max(0.0, seen - error), min(1.0, seen + error)))
            judged = kept
        missed.append((survivals(curve, "low")[-1] > c.prod(), survivals(curve, "high")[-1] < c.prod()))
        product.append(np.prod([one.low for one in curve]) > c.prod())
    assert (np.mean(missed, axis=0) > 0.01).all()
    assert (np.mean(missed, axis=0) < 0.045).all()
    assert np.mean(product) < 0.005


def test_survivals_at_zero():
    half = Interval(0.5, 0.0, 1.0)
    assert survivals([half, Interval(0.9, 0.8, 1.0)], "low").tolist() == [0.0, 0.0]
    assert survivals([Interval(0.0, 0.0, 0.1), half], "value").tolist() == [0.0, 0.0]
    assert survivals([Interval(0.0, 0.0, 0.1)], "high").tolist() == pytest.approx([0.1])


@given(curves)
def test_the_survival_of_exact_rates_is_their_product(rates):
    for end in ("low", "value", "high"):
        found = survivals(phase_rate(0.5, rates).curve, end)
        np.testing.assert_allclose(found, np.cumprod(rates), atol=1e-12)


def test_the_curve_planner_reads_the_curve():
    """The first slot is nearly sure and the second hopeless: one slot, where the mean rate would draft more."""
    rate = phase_rate(0.7, [0.95, 0.02, 0.02])
    assert calibrated(rate, rate, planner="curve").decide("think").depth == 1
    assert calibrated(rate, rate, planner="iid").decide("think").depth > 1
    found = calibrated(rate, rate, planner="curve").decide("think", 0.4)
    assert (found.rate, found.tau, found.basis) == (0.4, 1.4, "measured_prior_capped_by_entropy")


# Costs: the note's, or a machine's.


def test_depth_zero_where_drafting_cannot_pay():
    options = {"min_depth": 0, "baseline": 4}
    assert calibrated(0.2, 0.9, costs=FLAT, **options).draft_depths([view("think"), view("output")]) == [0, 7]
    assert calibrated(1.0, 1.0, costs=DEAR, **options).draft_depths([view("think")]) == [0]
    assert calibrated(0.2, 0.9, costs=FLAT, baseline=4).draft_depths([view("think")])[0] >= 1


def test_a_measured_capacity_is_asked_for_the_batch_and_its_context():
    table = CapacityTable((16, 160), (DEAR.verify, FLAT.verify), ((Curve((1,), (0.1,)),),) * 2)
    made = calibrated(0.9, 0.9, costs=table, min_depth=0)
    assert made.draft_depths([view(position=16)]) == [0]
    assert made.draft_depths([view(position=160)]) == [7]
    steep = Capacity(Curve((1, 8, 64), (1.0, 1.0, 60.0)))  # room for seven drafts of one request, not of eight
    assert calibrated(0.9, 0.9, costs=steep, min_depth=0).draft_depths([view()]) == [7]
    assert calibrated(0.9, 0.9, costs=steep, min_depth=0).draft_depths([view()] * 8) == [0] * 8


@given(st.integers(1, 9), st.integers(0, 7))
def test_a_step_costs_what_the_capacity_says(requests, depth):
    capacity = Capacity(Curve((1, 9, 30), (1.0, 3.0, 8.0)), tuple(Curve((1, 4), (0.1 * d, 0.2 * d)) for d in (1, 2, 3)))
    expected = capacity.seconds(requests * (1 + depth), requests, depth=depth)
    assert StepCycle(capacity, requests).cycle_us(depth) == pytest.approx(1e6 * float(expected))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"min_depth": -1}, "0 <= min"),
        ({"baseline": 0}, "min <= baseline"),
        ({"baseline": 9}, "baseline <= max"),
        ({"vocab_size": 1}, "vocab_size must be at least 2"),
        ({"planner": "magic"}, "unknown planner 'magic'"),
        ({"planner": "curve"}, "needs a measured position curve"),
        ({"planner": "curve", "rates": rates_of(0.3, 0.9), "serving": SERVING}, "none for the phase 'think'"),
    ],
)
def test_bad_input_gets_one_clear_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        hook(**options)
