"""Signals of acceptance on rounds made by hand: what each of them can see, and how late a ceiling is."""

from __future__ import annotations

import json
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from phase_tables import DOMAINS, same, table
from test_cli import run

from companion import figures_signals
from companion.ceiling import entropy_ceiling
from companion.experiments import phase_signals as study
from companion.experiments.phase_gap.lag import lags
from companion.experiments.phase_gap.signals import Signal, first_slots, signals
from companion.rounds import Round

VOCAB = 50


def with_statistics(rows: list[Round], seed: int = 0) -> list[Round]:
    """Entropies at random, and a largest probability at half of what each allows."""
    draw = np.random.default_rng(seed)
    made = []
    for r in rows:
        h = draw.uniform(0.1, 2.0, r.verified + 1)
        p = np.asarray(entropy_ceiling(h, VOCAB)) / 2
        made.append(
            replace(
                r,
                entropy=h.tolist(),
                max_p=p.tolist(),
                think_end_mass=[0.0] * len(h),
                served_entropy=h.tolist(),
                served_max_p=p.tolist(),
            )
        )
    return made


def judge(rows: list[Round]) -> dict[tuple[str, str], Signal]:
    slots = first_slots(rows, DOMAINS, VOCAB)
    found = signals(slots, DOMAINS, drafter="d", sampling="T1", resamples=100, seed=0)
    return {(s.side, s.signal): s for s in found if s.domain == "all"}


def test_a_head_that_knows_nothing_of_the_phase_is_blind_to_it_and_the_rate_is_not() -> None:
    """Acceptance falls from 0.8 to 0.3 inside the span; the confidence stays where it is."""
    confidence = dict.fromkeys(("think", "output", "off"), 0.8)
    found = judge(with_statistics(list(table(same(0.3, 0.8, 0.8), prompts=60, confidence=confidence))))
    inside, outside = found["think", "confidence"], found["output", "confidence"]
    assert inside.forecast == outside.forecast == 0.8
    assert inside.accepted == pytest.approx(0.3, abs=0.06)
    assert outside.accepted == pytest.approx(0.8, abs=0.06)
    assert found["on", "confidence"].auc.value == 0.5
    rate = found["on", "phase_rate"]
    assert rate.auc.low is not None
    assert rate.auc.low > 0.65
    assert found["think", "phase_rate"].forecast == pytest.approx(0.3, abs=0.06)
    assert found["think", "phase_rate"].auc.value == 0.5  # inside one phase it is a constant
    assert rate.brier is not None
    assert found["on", "confidence"].brier > rate.brier


def test_a_signal_that_decides_ranks_perfectly_and_one_of_chance_does_not() -> None:
    rows = with_statistics(list(table(same(0.5, 0.5, 0.5), prompts=60)))
    told = [replace(r, max_p=[0.9 if r.accepted else 0.1, *r.max_p[1:]]) for r in rows]
    found = judge(told)
    assert found["think", "own_row"].auc.value == 1.0
    assert found["think", "ceiling"].auc.value == pytest.approx(0.5, abs=0.06)
    assert ("think", "confidence") not in found  # no head


def test_the_ceiling_is_that_of_the_row_before() -> None:
    """Entropy is high after every round that failed; only the row before the slot may be used."""
    rows = with_statistics(list(table(same(0.5, 0.5, 0.5))))
    shifted = []
    for before, row in zip([None, *rows[:-1]], rows, strict=True):
        nxt = row.accepted > 0
        h = list(before.entropy) if before is not None else []
        if before is not None and before.prompt_id == row.prompt_id:
            h[before.committed - 1] = 0.1 if nxt else 2.0
            shifted[-1] = replace(before, entropy=h)
        shifted.append(row)
    assert judge(shifted)["off", "ceiling"].auc.value == 1.0


def test_rounds_without_row_statistics_are_refused() -> None:
    with pytest.raises(ValueError, match="no statistics of their rows"):
        first_slots(table(same(0.5, 0.5, 0.5)), DOMAINS, VOCAB)


# --- one row late --------------------------------------------------------------------------------------------------


def one_text(entropies: list[float], largest: list[float]) -> list[Round]:
    """Two responses of one token a round, all inside the span."""
    return [
        Round(
            request=n, round=i + 1, position=10 + i, drafted=0, verified=0, accepted=0, rejected=False, bonus=True,
            tokens=[], phases=["think"], ended="stop" if i == len(entropies) - 1 else None,
            entropy=[h], max_p=[p], think_end_mass=[0.0], served_entropy=[h], served_max_p=[p],
            prompt_id=f"math/think/{n}", domain="math", mode="think",
        )
        for n in range(2)
        for i, (h, p) in enumerate(zip(entropies, largest, strict=True))
    ]  # fmt: skip


def test_lag_counts_rows_above_the_ceiling_of_the_row_before() -> None:
    h = [2.0, 0.1, 2.0, 0.1, 2.0]
    top = [float(entropy_ceiling(x, VOCAB)) for x in h]
    found, *_ = lags(one_text(h, top), ["math"], sampling="T1", vocab_size=VOCAB, top_k=None, resamples=50, seed=0)
    assert found.rows == 10
    assert found.broken.value == found.broken_by_a_tenth.value == 0.5  # the two sure rows after unsure ones, of four
    assert found.own == 0.0
    assert found.autocorrelation[1] == pytest.approx(-1.0)
    assert found.autocorrelation[2] == pytest.approx(1.0)
    assert found.loose_vocabulary.value == pytest.approx(0.0, abs=1e-5)
    assert found.loose_kept.value is None


def test_the_kept_set_gives_a_closer_ceiling() -> None:
    rows = one_text([1.0] * 4, [0.5] * 4)
    wide, kept = (
        next(iter(lags(rows, ["math"], sampling="s", vocab_size=VOCAB, top_k=k, resamples=50, seed=0)))
        for k in (None, 4)
    )
    assert kept.loose_kept.value == pytest.approx(float(entropy_ceiling(1.0, 4)) - 0.5, abs=1e-5)
    assert wide.loose_vocabulary.value == kept.loose_vocabulary.value
    assert kept.loose_vocabulary.value is not None
    assert kept.loose_kept.value is not None
    assert kept.loose_kept.value < kept.loose_vocabulary.value


def test_a_row_above_its_own_ceiling_would_show() -> None:
    found, *_ = lags(
        one_text([1.0] * 3, [0.99] * 3), ["math"], sampling="s", vocab_size=VOCAB, top_k=None, resamples=50, seed=0
    )
    assert found.own == 1.0


# --- how alike the phases are --------------------------------------------------------------------------------------


def test_divergence_is_0_for_the_same_words_and_1_bit_for_none_shared() -> None:
    a, b = np.array([3.0, 1.0, 0.0, 0.0]), np.array([0.0, 0.0, 5.0, 5.0])
    assert study.divergence(a, 7 * a) == 0.0
    assert study.divergence(a, b) == 1.0
    assert study.divergence(np.array([1.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(0.31128, abs=1e-5)
    assert study.divergence(a, np.zeros(4)) is None


def test_overlaps_count_tokens_by_side() -> None:
    rows = [replace(r, tokens=[1 if p == "think" else 2 for p in r.phases]) for r in table(same(0.5, 0.5, 0.5))]
    for found in study.overlaps(rows, DOMAINS, 5):
        assert (found.think_output, found.think_off, found.output_off, found.halves) == (1.0, 1.0, 0.0, 0.0)


def test_the_command_decodes_and_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--drafter", "dspark", "--per-domain", "4", "--max-new-tokens", "60", "--resamples", "20")
    code, out, _ = run(capsys, monkeypatch, "experiment", "phase-signals", *options, "--json")
    assert code == 0
    result = study.PhaseSignals.model_validate(json.loads(out))
    assert {s.sampling for s in result.signals} == {"T1", "T1 k20"}
    assert all(g.own == 0.0 for g in result.lags)  # the bound holds for every row it speaks of
    assert all((g.loose_kept.value is None) == (g.sampling == "T1") for g in result.lags)
    assert any(s.signal == "confidence" and s.rounds > 20 for s in result.signals)
    study.show(result)
    assert "one row late" in capsys.readouterr().out
    left, right = figures_signals.ranking(result, "dspark", "T1").axes
    confidence = next(
        s for s in result.signals if (s.signal, s.side, s.domain, s.sampling) == ("confidence", "think", "all", "T1")
    )
    drawn = next(line for line in left.lines if line.get_label() == "inside the span")
    assert confidence.auc.value in drawn.get_xdata()
    moved = next(line for line, of in zip(right.lines, left.lines, strict=True) if of is drawn)
    assert confidence.forecast - confidence.accepted in moved.get_xdata()
    with pytest.raises(ValueError, match="nothing to draw"):
        figures_signals.ranking(result, "dflash", "T1")
    (panel,) = figures_signals.autocorrelation(result, "T1", ["math"]).axes
    assert panel.get_lines()[0].get_xdata()[0] == 1
    (panel,) = figures_signals.alike(result, {"math": (-1.0, -2.0, 0.5)}, "gap").axes
    assert [text.get_text() for text in panel.texts] == ["math"]
    plt.close("all")
    code, _, err = run(capsys, monkeypatch, "experiment", "phase-signals", "--temperature", "0")
    assert code == 1
    assert "above temperature 0" in err
