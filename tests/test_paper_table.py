"""The paper's Table 1 gives the gains that its text states by one average, and by no other that was tried."""

import numpy as np
import pytest

from companion.experiments import paper_table
from companion.experiments.paper_table import AVERAGES, STATED, gain


@pytest.fixture(scope="module")
def table():
    return paper_table.load()


def test_only_the_ratio_of_means_prints_all_six(table):
    prints = {a: [gain(table, *key, a).prints(v) for key, v in STATED.items()] for a in AVERAGES}
    assert all(prints.pop("ratio of means"))
    assert not any(all(row) for row in prints.values())
    assert [round(gain(table, *key, "ratio of means").value, 2) for key in STATED] == [
        30.89, 26.74, 30.02, 16.29, 18.36, 18.32,
    ]  # fmt: skip


def test_rounding_is_a_range_around_the_value(table):
    rng = np.random.default_rng(0)
    for average, by in AVERAGES.items():
        for key in STATED:
            found = gain(table, *key, average)
            assert found.low < found.value < found.high
            new, old = (table.loc[[(key[0], name)]].to_numpy()[0] for name in ("DSpark", key[1]))
            for _ in range(20):  # every table that would print as this one lies inside
                jitter = rng.uniform(-0.005, 0.005, size=(2, 9))
                assert found.low <= 100 * (by(new + jitter[0], old + jitter[1]) - 1) <= found.high


def test_domain_means_are_the_stated_ones(table):
    assert paper_table.domain_means(table).loc[("Qwen3-4B", "DSpark")].round(2).tolist() == [5.57, 5.12, 3.49]


def test_dspark_is_ahead_in_every_cell(table):
    assert (paper_table.ratios(table, "DFlash") > 1).all(axis=None)
    assert paper_table.ratios(table, "Eagle3").loc["Qwen3-4B", "GSM8K"] == pytest.approx(6.11 / 5.14)


def test_another_file_is_refused(tmp_path, table):
    with pytest.raises(ValueError, match="restore it"):
        paper_table.load(tmp_path / "none.csv")
    table.drop(columns="Alpaca").to_csv(tmp_path / "short.csv")
    with pytest.raises(ValueError, match="expected a row a drafter"):
        paper_table.load(tmp_path / "short.csv")
    with pytest.raises(ValueError, match="no average"):
        gain(table, "Qwen3-4B", "Eagle3", "median")
    with pytest.raises(ValueError, match="no row for DSpark on Qwen3-32B"):
        gain(table, "Qwen3-32B", "Eagle3", "ratio of means")
