"""A synthetic report has no way to become a claim: not at run time, and not past the type checker."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from phase.origins import FIXTURE, measured
from phase.traces import report, steps

from companion.phase.claim import Claim
from companion.phase.ledger import Ledger, merge
from companion.phase.origin import Measured
from companion.phase.rates import MeasuredRates
from companion.phase.report import Report
from companion.protocols import Sampling

ROOT = Path(__file__).resolve().parents[2]
PUBLISHING = ROOT / "tests" / "phase" / "publishing.py"
CLEAN = "t tt t tt oooo ooo oooo ooo"


def two_responses(origin, domain="math"):
    other = "tt tt t t oooo oooo ooo ooo"
    return Report(Ledger(origin, (*steps(CLEAN, domain=domain), *steps(other, domain=domain, cluster="b"))))


def test_the_type_checker_refuses_what_publishes_a_synthetic_report(tmp_path):
    config = tmp_path / "mypy.ini"  # the phase's own types decide; all else that is imported takes a minute to read
    config.write_text(
        f"[mypy]\nmypy_path = {ROOT / 'src'}\nfollow_imports = skip\nignore_missing_imports = true\n"
        "[mypy-companion.phase.*]\nfollow_imports = silent\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", tmp_path, PUBLISHING],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    errors = {int(line): said for line, said in re.findall(r"publishing\.py:(\d+): error: (.*)", found.stdout)}
    refused = {n for n, line in enumerate(PUBLISHING.read_text().splitlines(), 1) if line.endswith("# refused")}
    assert set(errors) == refused, found.stdout + found.stderr
    assert len(refused) == 4
    synthetic = [said for said in errors.values() if "Synthetic]" in said]
    assert len(synthetic) == 3
    assert all('expected "Report[Measured]"' in said for said in synthetic)


@pytest.mark.parametrize("text", [CLEAN, "t", ""])
def test_a_synthetic_report_computes_and_cannot_be_claimed(text):
    """Provenance is looked at before the amount of data: thin synthetic data is refused as synthetic."""
    made_up = report(text)
    assert made_up.verdict(0.0) == ("supported" if text == CLEAN else "insufficient_data")
    with pytest.raises(TypeError, match=r"only a measured run can become a claim.*SYNTHETIC TRACE"):
        Claim(made_up, 0.0)
    with pytest.raises(TypeError, match="only a measured run can become rates"):
        MeasuredRates.from_report(made_up)


def test_no_side_door():
    """What might pass for a measured report without being one."""

    class Plausible:
        origin = measured()
        verdict = report(CLEAN).verdict

    for other in (Plausible(), report(CLEAN).ledger, None):
        with pytest.raises(TypeError, match="made of a report"):
            Claim(other, 0.0)
    claim = Claim(two_responses(measured()), 0.0)
    with pytest.raises(TypeError, match="SYNTHETIC"):
        dataclasses.replace(claim, report=report(CLEAN))
    with pytest.raises(dataclasses.FrozenInstanceError):
        claim.report = report(CLEAN)
    with pytest.raises(AttributeError):
        report(CLEAN).origin = measured()
    with pytest.raises(TypeError):  # nothing can be both
        type("Both", (Measured, type(FIXTURE)), {})


def test_thin_or_straddling_data_make_no_claim():
    with pytest.raises(ValueError, match="insufficient_data"):
        Claim(report("t oo", origin=measured()), 0.0)
    with pytest.raises(ValueError, match="straddle_stop_line"):
        Claim(report(f"{CLEAN} to", origin=measured()), 0.0)


def test_domains_are_not_pooled():
    one, two = two_responses(measured()).ledger, two_responses(measured(), "chat").ledger
    with pytest.raises(ValueError, match="pools chat, math"):
        Claim(Report(merge([one, two])), 0.0)


def test_a_claim_names_its_scope():
    run = measured(sampling=Sampling(0.7, top_k=20), seeds=(1, 2), hardware="two cores")
    text = str(Claim(two_responses(run), 0.5))
    for part in ("tiny-qwen3", "t" * 40, "dspark", "d" * 40, "thinking on", "temperature 0.7", "top-k 20", "depth 7"):
        assert part in text
    for part in ("0" * 64, "(math)", "seeds 1, 2", "companion 0.1.0", "two cores", "2026-08-07"):
        assert part in text
    assert "Verdict: supported (by steps), supported (by responses)" in text
    assert text.startswith("Scope: tiny-qwen3 ")
    assert run.banner in text
    assert "Qwen3-4B" not in text
    assert "top-k" not in str(Claim(two_responses(measured(sampling=Sampling(0.0))), 0.5))
    assert "depth 7 (trimmed)" in str(Claim(two_responses(measured(untrimmed=False)), 0.5))


def test_a_claim_of_one_response_says_so():
    text = str(Claim(report(CLEAN, origin=measured()), 0.5))
    assert "supported (by steps), insufficient_data (by responses)" in text
    assert "no domain named" in text
    assert "none (one response only)" in text
