"""The hook's file: no rate without its run, nothing unknown, nothing blank."""

import tomllib
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from phase.origins import measured

from companion.phase.rates import MeasuredRates, PhaseRate
from companion.phase.settings import Settings, acceptance_prior, parse_settings, read_settings
from companion.planning import CostModel
from companion.protocols import Sampling
from companion.resampling import Interval

RATES = MeasuredRates(
    measured(sampling=Sampling(0.7, top_k=20, top_p=0.95), seeds=(0, 1)),
    PhaseRate(Interval(0.3, 0.25, 0.35)),
    PhaseRate(Interval(0.8, 0.75, 0.85), (Interval(0.9, 0.8, 0.95), Interval(0.7, 0.6, 0.8))),
)
PRIOR = acceptance_prior(RATES)
KEYS = [line.split(" = ")[0] for line in PRIOR.splitlines()[1:]]


def without(key):
    return "\n".join(line for line in PRIOR.splitlines() if not line.startswith(f"{key} = "))


def with_value(key, value):
    return "\n".join(f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in PRIOR.splitlines())


def test_defaults_are_the_notes():
    for text in ("", "[speculation]", "[server]\nport = 1"):
        assert parse_settings(text) == Settings()
    assert Settings() == Settings(False, 7, 1, 7, 151_936, True, CostModel(40.0, 900.0, 25.0), None)


def test_every_key_of_the_note_is_read():
    text = """[speculation]
    enabled = true
    baseline_proposal_len = 3
    min_proposal_len = 0
    max_proposal_len = 5
    vocab_size = 1024
    use_entropy_ceiling = false
    draft_token_us = 1
    verify_fixed_us = 2.5
    verify_token_us = 0.0
    """
    assert parse_settings(text) == Settings(True, 3, 0, 5, 1024, False, CostModel(1.0, 2.5, 0.0))


def test_rates_come_back_as_they_were_written():
    assert parse_settings(PRIOR).rates == RATES
    plain = replace(RATES, output=RATES.think, definition="token_acceptance")
    assert parse_settings(acceptance_prior(plain)).rates == plain


@example('a\x7f\t"b" \\ \U0001f600', [0.1, 0.5, 1.0], [0], date(1999, 1, 2))
@given(
    st.text(min_size=1).filter(str.strip),
    st.tuples(*[st.floats(0, 1)] * 3).map(sorted),
    st.lists(st.integers(-(2**40), 2**40), min_size=1),
    st.dates(),
)
def test_any_run_survives_the_file(name, numbers, seeds, day):
    try:
        name.encode()
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    low, value, high = numbers
    run = measured(target=name, hardware=name, seeds=tuple(seeds), recorded_on=day)
    rates = MeasuredRates(run, PhaseRate(Interval(value, low, high)), RATES.output)
    assert parse_settings(acceptance_prior(rates)).rates == rates


@pytest.mark.parametrize("key", [key for key in KEYS if key != "output_curve"])
def test_rates_without_all_of_their_run_are_refused(key):
    with pytest.raises(ValueError, match=f"lacks {key}"):
        parse_settings(without(key))


def test_the_curve_alone_is_optional():
    assert parse_settings(without("output_curve")).rates.output.curve is None


@pytest.mark.parametrize(
    "key",
    ["harness", "target_model", "target_revision", "draft_checkpoint", "draft_revision", "hardware", "prompt_set"],
)
@pytest.mark.parametrize("blank", ['""', '"  "'])
def test_blanks_are_refused(key, blank):
    with pytest.raises(ValueError, match=r"blank|sha256"):
        parse_settings(with_value(key, blank))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("untrimmed", "false", "untrimmed = true"),
        ("untrimmed", '"true"', "untrimmed = true"),
        ("untrimmed", "1", "untrimmed = true"),
        ("thinking_mode", '"on"', "thinking"),
        ("recorded_on", '"2026-08-07"', "recorded_on must be a date"),
        ("recorded_on", "2026-08-07T00:00:00", "recorded_on must be a date"),
        ("seeds", "0", "seeds must be a list"),
        ("seeds", "[]", "seeds"),
        ("depth", "0", "depth"),
        ("depth", "7.0", "depth"),
        ("prompt_set", '"gsm8k"', "sha256"),
        ("sampling", "{ top_k = 20 }", "temperature"),
        ("sampling", "{ temperature = 0.7, top-k = 20 }", "sampling has no key top-k"),
        ("sampling", "{ temperature = -1.0 }", "temperature"),
        ("sampling", '"greedy"', "sampling must be a table"),
        ("rate", '"guessed"', "definition"),
        ("think", "1.3", "inside its interval"),
        ("think", "nan", "inside its interval"),
        ("think", '"0.3"', "think must be a number"),
        ("think", "true", "think must be a number"),
        ("think_interval", "[0.4, 0.5]", "inside its interval"),
        ("think_interval", "0.3", "think_interval must be a list of 2"),
        ("output_curve", "[]", "output_curve must be a list"),
        ("output_curve", "[0.9, 0.8]", "output_curve must be a list of 3"),
        ("output_curve", "[" + "[0.5, 0.4, 0.6], " * 8 + "]", "8 positions, but the run drafted 7"),
    ],
)
def test_what_is_not_what_it_should_be(key, value, said):
    with pytest.raises(ValueError, match=said):
        parse_settings(with_value(key, value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[speculation]\nenable = true", r"\[speculation\] has no key enable"),
        (PRIOR + "note = 'measured by hand'", r"acceptance_prior\] has no key note"),
        ("[speculation]\nacceptance_prior = 0.8", "must be a table"),
        ("[speculation.acceptance_prior]\nthink = 0.5\noutput = 0.9", "lacks depth, draft_checkpoint"),
        ("speculation = 1", "must be a table"),
        ("[speculation]\nenabled = 1", "speculation.enabled must be true or false"),
        ("[speculation]\nvocab_size = true", "speculation.vocab_size must be a whole number"),
        ("[speculation]\nvocab_size = 1", "vocab_size"),
        ("[speculation]\nmax_proposal_len = 7.5", "max_proposal_len must be a whole number"),
        ("[speculation]\nbaseline_proposal_len = 8", "min_proposal_len <= baseline_proposal_len"),
        ("[speculation]\nmin_proposal_len = -1", "min_proposal_len"),
        ("[speculation]\nverify_fixed_us = 0", "verify_fixed_us"),
        ("[speculation]\ndraft_token_us = inf", "draft_token_us"),
        ("[speculation\n", "not TOML"),
    ],
)
def test_bad_files(text, said):
    with pytest.raises(ValueError, match=said):
        parse_settings(text)


def test_a_file_is_named_when_it_is_wrong(tmp_path):
    path = tmp_path / "hook.toml"
    with pytest.raises(ValueError, match=r"cannot read .*hook\.toml"):
        read_settings(path)
    path.write_text("[speculation]\nenable = true")
    with pytest.raises(ValueError, match=r"hook\.toml: .*enable"):
        read_settings(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="UTF-8"):
        read_settings(path)
    path.write_text(f"[speculation]\nenabled = true\n{PRIOR}")
    found = read_settings(path)
    assert found.enabled
    assert found.rates.origin.recorded_on == date(2026, 8, 7)


def test_the_notes_own_keys_are_in_the_table():
    table = tomllib.loads(PRIOR)["speculation"]["acceptance_prior"]
    notes = {"think", "output", "harness", "draft_checkpoint", "target_model", "thinking_mode", "recorded_on"}
    assert notes <= table.keys()
