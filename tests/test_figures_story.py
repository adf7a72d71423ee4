"""The landing page's figure shows what the stored result holds, and is not drawn without it."""

import gzip
import json

import matplotlib.pyplot as plt
import pytest

from companion.engine.load import data_folder
from companion.experiments.phase_gap import study
from companion.figures_story import AT_HOME, FOREIGN, PARTS, TRAINED_WITHOUT, story

STORED = data_folder() / "results" / "phase_gap.json.gz"


def test_every_mark_is_a_number_of_the_result():
    pooled = json.loads(gzip.decompress(STORED.read_bytes()))["pooled"]
    own = {p["drafter"]: p for p in pooled if (p["sampling"], p["domain"]) == ("T1", "all")}
    left, right = story(study.load(STORED)).axes
    assert [bar.get_height() for bar in left.patches] == [1, *(own[d]["off"]["value"] for d in TRAINED_WITHOUT)]
    drawn = {line.get_label(): line.get_ydata().tolist() for line in right.get_lines() if "DSpark" in line.get_label()}
    assert list(drawn.values()) == [[own[d][part]["value"] for part in PARTS] for d in (AT_HOME, FOREIGN)]
    plt.close("all")


@pytest.mark.parametrize("drafter", [AT_HOME, *TRAINED_WITHOUT])
def test_without_one_of_its_drafters_there_is_no_story(drafter):
    result = study.load(STORED)
    result.pooled = [p for p in result.pooled if p.drafter != drafter]
    with pytest.raises(ValueError, match=f"nothing was measured of {drafter}"):
        story(result)
