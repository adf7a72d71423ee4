"""Temperatures: what they can and cannot do to confidences, and fits that find a miscalibrated head and mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from companion.calibration import F64, GRID, METHODS, Temperatures, ece, fit, group_counts, product_errors, rank_auc

GOLDEN = Path(__file__).parent / "fixtures" / "golden"
DRAFTER = {"name": "dspark", "weights_sha256": {"model.safetensors": "5554"}}

confidences = st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=20)
temperatures = st.lists(st.floats(0.05, 5), min_size=4, max_size=4)


# --- a record of temperatures ----------------------------------------------------------------------------------------


@given(confidences)
def test_temperature_one_changes_no_bit(c: list[list[float]]) -> None:
    assert (Temperatures.ones(4).apply(c) == np.array(c)).all()


@given(confidences, temperatures)
def test_order_within_a_position_and_the_side_of_one_half_are_kept(c: list[list[float]], t: list[float]) -> None:
    before, after = np.array(c), Temperatures("sts", tuple(t)).apply(c)
    assert ((after >= 0) & (after <= 1)).all()
    assert ((before > 0.5) <= (after >= 0.5)).all()
    assert ((before < 0.5) <= (after <= 0.5)).all()
    for k in range(4):
        ranked = after[np.argsort(before[:, k], kind="stable"), k]
        assert (np.diff(ranked) >= 0).all()


def test_products_change_places_where_positions_do_not() -> None:
    # by hand: sigmoid(logit(1/2) / 3) stays 1/2, and 0.8 goes to 1 / (1 + 4^(-1/3)) = 0.6135
    pair = np.array([[0.9, 0.5], [0.6, 0.8]])
    after = Temperatures("sts", (1.0, 3.0)).apply(pair)
    assert after[1, 1] == pytest.approx(1 / (1 + 4 ** (-1 / 3)))
    assert pair.prod(1)[0] < pair.prod(1)[1]
    assert after.prod(1)[0] > after.prod(1)[1]
    for k in (0, 1):
        assert (np.diff(after[:, k]) > 0) == (np.diff(pair[:, k]) > 0)
    pair = np.array([[0.99, 0.1], [0.33, 0.33]])  # a single T does it, too
    after = Temperatures("single", (3.0, 3.0)).apply(pair)
    assert pair.prod(1)[0] < pair.prod(1)[1]
    assert after.prod(1)[0] > after.prod(1)[1]


def test_saturated_confidences_stay_and_logits_do_not_saturate() -> None:
    t = Temperatures("sts", (2.0, 2.0))
    assert t.apply([1.0, 0.0]).tolist() == [1.0, 0.0]
    assert t.of_logits([8.0, -8.0]) == pytest.approx(expit([4.0, -4.0]))
    assert t.of_logits([np.inf, -np.inf]).tolist() == [1.0, 0.0]
    assert t.apply(expit([2.0, -1.0])) == pytest.approx(t.of_logits([2.0, -1.0]))


def test_a_shorter_draft_takes_the_first_temperatures_and_a_deeper_one_is_refused() -> None:
    t = Temperatures("sts", (1.0, 2.0, 3.0))
    assert t.apply([0.9, 0.8]) == pytest.approx([0.9, expit(logit(0.8) / 2)])
    assert t.apply(np.zeros((5, 0))).shape == (5, 0)
    with pytest.raises(ValueError, match="got 4 positions for temperatures of 3 positions"):
        t.apply([0.9] * 4)
    with pytest.raises(ValueError, match="got a single number"):
        t.of_logits(0.3)
    for slot in (0, -1, 3):
        with pytest.raises(ValueError, match=f"slot {slot} has none of these 2 temperatures"):
            Temperatures("made", (2.0, 3.0)).one(slot, 0.7)


def test_a_file_comes_back_and_belongs_to_one_drafter(tmp_path: Path) -> None:
    path = tmp_path / "temperatures.json"
    t = Temperatures("sts", (1.05, 2.0), DRAFTER, {"prompts": "even"})
    t.save(path)
    assert Temperatures.load(path, DRAFTER) == t
    assert Temperatures.load(path, DRAFTER | {"name": "another name, the same weights"}) == t
    other = DRAFTER | {"name": "dspark-1", "weights_sha256": {"model.safetensors": "66"}}
    with pytest.raises(ValueError, match="fitted to drafter dspark, not to the weights of dspark-1"):
        Temperatures.load(path, other)
    Temperatures.ones(2).save(path)
    with pytest.raises(ValueError, match="fitted to an unnamed drafter"):
        Temperatures.load(path, DRAFTER)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "something"}, "not a file of temperatures .another format"),
        ({"values": [1.0, -2.0]}, "positive numbers"),
        ({"values": []}, "positive numbers"),
        ({"values": ["warm"]}, "not a file of temperatures"),
        ({"method": None, "values": None}, "not a file of temperatures"),
    ],
)
def test_a_file_that_is_none_says_so(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "t.json"
    Temperatures.ones(2).save(path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Temperatures.load(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="not a file of temperatures"):
        Temperatures.load(path)
    with pytest.raises(ValueError, match="cannot read"):
        Temperatures.load(tmp_path / "none.json")


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_temperature_is_a_positive_number(value: float) -> None:
    with pytest.raises(ValueError, match="positive numbers"):
        Temperatures("sts", (1.0, value))


# --- fits ------------------------------------------------------------------------------------------------------------


def head(
    blocks: int, scale: tuple[float, ...], seed: int = 0, shift: float = 1.2
) -> tuple[F64, F64]:  # -> logits, bits
    """A head that knows every slot's chance and states it ``scale[k]`` times too boldly, on the scale of logits."""
    generator = np.random.default_rng(seed)
    true = generator.normal(shift, 1.3, (blocks, len(scale)))
    return true * scale, (generator.random(true.shape) < expit(true)).astype(float)


def errors(t: Temperatures, logits: F64, bits: F64) -> F64:
    """ECE of each position."""
    counts = group_counts(
        t.of_logits(logits).cumprod(1), bits.cumprod(1), np.ones(bits.shape, bool), np.zeros(len(bits), np.int64), 1
    )[0]
    return np.array([ece(counts[[k]]) for k in range(bits.shape[1])])


BOLD = (2.0, 1.5, 2.5, 2.0)


@pytest.mark.parametrize("method", ["sts", "nll", "nll-pull", "single"])
def test_a_bold_head_is_found_and_mended_on_other_blocks(method: str) -> None:
    t, (logits, bits) = fit(method, *head(6000, BOLD)), head(6000, BOLD, seed=1)
    before, after = errors(Temperatures.ones(4), logits, bits), errors(t, logits, bits)
    assert (before > 0.06).all()
    if method == "single":  # one T cannot be right at every position
        assert len(set(t.values)) == 1
        assert after.mean() < before.mean() / 2
    else:
        assert t.values == pytest.approx(BOLD, rel=0.35 if method == "sts" else 0.1)  # ECE is flat around its minimum
        assert (after < before / 2).all()
        assert after.mean() < 0.02


@pytest.mark.parametrize("method", ["sts", "nll", "nll-pull", "single", "none"])
def test_an_honest_head_is_left_alone(method: str) -> None:
    assert fit(method, *head(6000, (1.0,) * 4)).values == pytest.approx([1.0] * 4, abs=0.25 if method == "sts" else 0.1)


def test_a_head_whose_slots_are_shuffled_cannot_be_mended_by_order() -> None:
    """Negative control: with other blocks' bits there is nothing to find, and a fit makes every block average."""
    logits, bits = head(6000, (1.0,) * 4)
    strangers = np.roll(bits, 1, axis=0)
    assert abs(float(rank_auc(expit(logits[:, 0]), strangers[:, 0])) - 0.5) < 0.03
    assert fit("nll", logits, strangers).values[0] > 1.8


def test_sts_is_the_search_that_the_paper_describes() -> None:
    numbers = json.loads((GOLDEN / "confidence.json").read_text(encoding="utf-8"))
    with np.load(GOLDEN / "confidence.npz") as stored:
        logits, curves = stored["logits"], stored["sts_ece_curves"]
        accepted = np.unpackbits(stored["accepted"], axis=1, count=5)
        judged = np.arange(5) < stored["effective_length"][:, None]
    t = fit("sts", logits, accepted, judged)
    assert t.values == pytest.approx(numbers["temperatures"], abs=1e-12)
    np.testing.assert_allclose(GRID, np.linspace(0.05, 5, 100), atol=1e-12)
    before, lived = np.ones(400), accepted.cumprod(1).astype(float)
    for k in range(5):
        rows = judged[:, k]
        found = product_errors(before[rows], logits[rows, k].astype(float), lived[rows, k])
        np.testing.assert_allclose(found, curves[k], atol=1e-8)  # theirs has an fp32 sigmoid
        before = before * t.of_logits(logits)[:, k]


def test_the_first_minimum_is_taken() -> None:
    logits, bits = np.zeros((10, 2)), np.ones((10, 2))  # sigmoid(0 / T) is one half at every T
    assert fit("sts", logits, bits).values == (0.05, 0.05)


def test_a_pull_decides_where_little_is_known_and_vanishes_beside_much() -> None:
    few, many = (tuple(part[:n] for part in head(20_000, BOLD)) for n in (12, 20_000))
    free, pulled = (np.array(fit(method, *few).values) for method in ("nll", "nll-pull"))
    assert (np.abs(np.log(pulled)) <= np.abs(np.log(free))).all()
    assert (np.abs(np.log(pulled)) < np.abs(np.log(free))).any()
    assert fit("nll", *many).values == pytest.approx(fit("nll-pull", *many).values, abs=0.06)
    logits, bits = head(50, BOLD)
    bits[:, 0] = 0  # nothing lives to position 2
    assert fit("nll-pull", logits, bits).values[1:] == (1.0, 1.0, 1.0)


def test_chances_for_bits_give_the_same_fit_with_less_noise() -> None:
    generator = np.random.default_rng(5)
    true = generator.normal(1.2, 1.3, (1500, 4))
    for method in ("sts", "nll"):
        of_chances = fit(method, true * 2, expit(true)).values
        assert of_chances == pytest.approx([2.0] * 4, abs=0.051)


@pytest.mark.parametrize("method", list(METHODS))
def test_what_cannot_be_fitted_is_refused(method: str) -> None:
    logits, bits = head(40, BOLD)
    with pytest.raises(ValueError, match=r"must agree in number and in positions; got logits \(40, 4\), accepted"):
        fit(method, logits, bits[:, :3])
    with pytest.raises(ValueError, match="at least one of each"):
        fit(method, logits[:0], bits[:0])
    with pytest.raises(ValueError, match="logits are NaN or infinite"):
        fit(method, np.where(logits > 3, np.nan, logits), bits)
    with pytest.raises(ValueError, match="acceptances are probabilities; these run from 0 to 2"):
        fit(method, logits, bits * 2)
    nothing = np.zeros(bits.shape, bool)
    if method in ("none", "nll-pull"):
        assert fit(method, logits, bits, nothing).values == (1.0,) * 4
    else:
        with pytest.raises(ValueError, match=r"nothing to fit|no slot at position 1|no block reached position 1"):
            fit(method, logits, bits, nothing)


def test_an_unknown_fit_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match="no fit named 'platt'; choose one of none, single, sts, nll, nll-pull"):
        fit("platt", *head(4, BOLD))
