"""What our scheduler is told, and the releases of vLLM that it is told to."""

import json
import sys
import types

import pytest
from phase.origins import measured

from companion.engine.load import find_model
from companion.phase.rates import MeasuredRates, PhaseRate
from companion.phase.settings import acceptance_prior
from companion.phase.tracker import ThinkTokens
from companion.protocols import Phase, RequestView
from companion.resampling import Interval
from companion.scheduling.by_phase import DepthByPhase
from companion.serving.vllm import plugin, release
from companion.serving.vllm.export import export
from companion.serving.vllm.offline import Setup
from companion.serving.vllm.options import Options, build_policy, depth_asked
from companion.serving.vllm.release import check_hooks, check_release, require_vllm

TAGS = ThinkTokens(open=1, close=2, turn=3)


def test_options_travel_as_json(tmp_path):
    for options in (
        Options(TAGS),
        Options(ThinkTokens(1, 2), {"depth": 3}, tmp_path / "log", tmp_path / "rows", untested=True),
    ):
        assert Options.from_config(json.loads(json.dumps(options.to_dict()))) == options


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (None, "no table"),
        ({"policy": {"depth": 3}}, '"tags" must hold'),
        ({"tags": {"open": 1, "close": "2"}}, "token ids"),
        ({"tags": {"open": 1, "close": 2, "end": 3}}, "tags has no key end"),
        ({"tags": {"open": 1, "close": 2}, "polcy": {}}, "companion has no key polcy"),
        ({"tags": {"open": 1, "close": 2}, "policy": "fixed"}, "must be a table"),
    ],
)
def test_a_broken_table_is_refused(table, said):
    with pytest.raises(ValueError, match=said):
        Options.from_config({} if table is None else {"companion": table})


def view(phase: Phase):
    return RequestView(request=0, position=9, phase=phase, room=9)


def test_policies_of_a_table():
    made = build_policy({"think": 0, "output": 7}, vocab_size=100, deepest=7)
    assert isinstance(made, DepthByPhase)
    assert list(made.draft_depths([view("think"), view("output")])) == [0, 7]
    fixed = build_policy({"depth": 3}, vocab_size=100, deepest=7)
    assert list(fixed.draft_depths([view("think")])) == [3]


def test_a_calibrated_hook_plans_by_phase(tmp_path):
    path = tmp_path / "hook.toml"
    arms = {p: PhaseRate(Interval(v, v - 0.01, v + 0.01), None) for p, v in (("think", 0.05), ("output", 0.95))}
    rates = MeasuredRates(measured(), arms["think"], arms["output"], "solved")
    head = "[speculation]\nenabled = true\nvocab_size = 100\nbaseline_proposal_len = 4\nmax_proposal_len = 7\n"
    named = {"hook": str(path), "target": "tiny-qwen3", "drafter": "dspark"}
    path.write_text(head + acceptance_prior(rates), encoding="utf-8")
    hook = build_policy(named | {"target_revision": "t" * 40, "drafter_revision": "d" * 40}, vocab_size=100, deepest=7)
    asked = [RequestView(0, 9, phase, 9, sampling=measured().sampling) for phase in ("think", "output")]
    think, output = hook.draft_depths(asked)
    assert think < output
    path.write_text(head, encoding="utf-8")
    with pytest.raises(ValueError, match="no measured rates"):
        build_policy(named, vocab_size=100, deepest=7)
    with pytest.raises(ValueError, match="lacks drafter"):
        build_policy({"hook": str(path), "target": "t"}, vocab_size=100, deepest=7)
    with pytest.raises(ValueError, match="7 tokens deep"):
        build_policy(named, vocab_size=100, deepest=3)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "an empty table"),
        ({"depth": 3, "think": 2}, "got depth, think"),
        ({"depth": -1}, "depth must be"),
        ({"think": 2, "output": 1.5}, "output must be"),
        ({"factory": "companion.scheduling.fixed"}, 'is "module:callable"'),
        ({"factory": "companion.scheduling.fixed:None"}, "cannot make a policy"),
        ({"factory": "nowhere:Policy"}, "cannot make a policy"),
        ({"factory": "companion.scheduling.fixed:FixedDepth", "arguments": {"dept": 1}}, "cannot make a policy"),
        ({"factory": "builtins:dict"}, "no policy that keeps"),
        ({"factory": "companion.scheduling.retrospective:Retrospective"}, "cannot make a policy|no policy that keeps"),
    ],
)
def test_a_table_without_a_policy_is_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        build_policy(asked, vocab_size=100, deepest=7)


def test_what_a_request_may_ask():
    assert [depth_asked(x) for x in (None, {}, {"companion_depth": "off"}, {"companion_depth": 0})] == [
        None,
        None,
        "off",
        0,
    ]
    for value in ("deep", -1, 1.5, True):
        with pytest.raises(ValueError, match="companion_depth must be"):
            depth_asked({"companion_depth": value})


def test_releases():
    assert check_release("0.32.0+cpu") == "0.32.0"
    with pytest.raises(ValueError, match=r"vLLM 0\.31\.9"):
        check_release("0.31.9")
    assert check_release("0.31.9", untested=True) == "0.31.9"


def test_vllm_that_is_missing_or_broken(monkeypatch):
    monkeypatch.setattr(release, "installed_release", lambda: None)
    with pytest.raises(ValueError, match="vLLM is not installed here"):
        require_vllm()
    monkeypatch.setattr(release, "installed_release", lambda: "0.31.0")
    with pytest.raises(ValueError, match="install one of those"):
        require_vllm()
    monkeypatch.setattr(release, "installed_release", lambda: "0.32.0+cpu")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match="cannot be imported"):
        require_vllm()


def test_a_scheduler_without_the_hooks():
    with pytest.raises(ValueError, match="has no update_draft_token_ids, _update_after_schedule, update_from_output"):
        check_hooks(type("Scheduler", (), {}))


def test_what_vllm_is_started_with(tmp_path):
    plain = Setup("t", "dspark", 7, drafter="d", drafter_revision="r", arguments={"tensor_parallel_size": 2})
    keywords = plain.keywords()
    assert keywords["speculative_config"] == {
        "method": "dspark",
        "num_speculative_tokens": 7,
        "model": "d",
        "revision": "r",
    }
    assert keywords["per_request_spec_decode_metrics"] == "detailed"
    assert keywords["disable_log_stats"] is False
    assert keywords["tensor_parallel_size"] == 2
    assert "scheduler_cls" not in keywords
    options = Options(TAGS, {"depth": 2}, tmp_path / "log", tmp_path / "rows")
    for asynchronous, name in ((False, "PolicyScheduler"), (True, "AsyncPolicyScheduler")):
        keywords = Setup("t", "eagle3", 7, drafter="d", options=options, asynchronous=asynchronous).keywords()
        assert keywords["scheduler_cls"] == f"companion.serving.vllm_scheduler.{name}"
        assert keywords["async_scheduling"] is asynchronous
        assert Options.from_config(keywords["additional_config"]) == options
        assert keywords["logits_processors"] == ["companion.serving.vllm_probe:RowProbe"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("t", "medusa", 7, "d"), "method must be one of"),
        (("t", "dspark", 0, "d"), "at least 1"),
        (("t", "dspark", 7, None), "dspark needs a drafter"),
        (("t", "ngram", 7, "d"), "takes no drafter"),
    ],
)
def test_a_setup_that_is_none(given, said):
    with pytest.raises(ValueError, match=said):
        Setup(*given)


@pytest.mark.parametrize(
    ("method", "drafter", "said"),
    [
        ("dspark", "dspark", None),
        ("dspark", "dspark-rnn", "rnn Markov head"),
        ("dspark", "dflash", "no Markov head"),
        ("dflash", "dflash", "DeepSpec's layout.*z-lab's"),
        ("eagle3", "eagle3", "companion vllm export"),
    ],
)
def test_our_drafters_are_read_or_refused(method, drafter, said):
    folder = str(find_model(drafter).path)
    if said is None:
        Setup("t", method, 7, drafter=folder)
    else:
        with pytest.raises(ValueError, match=said):
            Setup("t", method, 7, drafter=folder)


def test_dflash_in_z_labs_layout_and_hub_ids_are_left_to_vllm(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["DFlashDraftModel"]}), encoding="utf-8")
    Setup("t", "dflash", 7, drafter=str(tmp_path))
    Setup("t", "dflash", 7, drafter="z-lab/Qwen3-4B-DFlash-b16")


def test_eagle3_under_the_configuration_that_vllm_asks_for(tmp_path):
    source, folder = find_model("eagle3"), tmp_path / "eagle3"
    assert export("eagle3", folder) == "eagle3"
    Setup("t", "eagle3", 7, drafter=str(folder))
    written = find_model(str(folder))
    config = written.config()
    assert config["architectures"] == ["Eagle3Qwen3ForCausalLM"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [layer + 1 for layer in source.config()["target_layer_ids"]]
    assert written.describe()["weights_sha256"] == source.describe()["weights_sha256"]
    with pytest.raises(ValueError, match="is not empty"):
        export("eagle3", folder)
    with pytest.raises(ValueError, match="no Eagle3 in DeepSpec's layout"):
        export("dspark", tmp_path / "dspark")


class SchedulerConfig:
    scheduler_cls, async_scheduling = None, True

    def get_scheduler_cls(self):
        return self.scheduler_cls or "vLLM's own"


@pytest.fixture
def stand_in(monkeypatch):
    """vllm.config.scheduler, and a module of our schedulers that needs no vLLM."""
    config = types.ModuleType("vllm.config.scheduler")
    config.SchedulerConfig = type("SchedulerConfig", (SchedulerConfig,), {})
    ours = types.ModuleType("companion.serving.vllm_scheduler")
    ours.PolicyScheduler, ours.AsyncPolicyScheduler = "ours", "ours, asynchronous"
    for name, module in (
        ("vllm", types.ModuleType("vllm")),
        ("vllm.config", types.ModuleType("vllm.config")),
        ("vllm.config.scheduler", config),
        ("companion.serving.vllm_scheduler", ours),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return config.SchedulerConfig


def test_the_plug_in_does_nothing_unless_asked(monkeypatch, stand_in):
    monkeypatch.delenv(plugin.VARIABLE, raising=False)
    plugin.register()
    assert stand_in().get_scheduler_cls() == "vLLM's own"


def test_the_plug_in_takes_the_kind_that_vllm_chose(monkeypatch, stand_in, tmp_path):
    path = tmp_path / "options.json"
    options = Options(TAGS, {"depth": 2})
    path.write_text(json.dumps(options.to_dict()), encoding="utf-8")
    monkeypatch.setenv(plugin.VARIABLE, str(path))
    plugin.register()
    plugin.register()  # vLLM may call it again
    config = stand_in()
    assert config.get_scheduler_cls() == "ours, asynchronous"
    config.async_scheduling = False
    assert config.get_scheduler_cls() == "ours"
    config.scheduler_cls = "somebody's"
    assert config.get_scheduler_cls() == "somebody's"
    assert plugin.options_of({}) == options
    other = Options(TAGS, {"depth": 4})
    assert plugin.options_of(other.to_dict()) == other
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="no file of companion vllm options"):
        plugin.register()
    path.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        plugin.register()
