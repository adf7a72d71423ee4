"""From a file to a hook: what the file does not say, the hook does not do."""

import pytest
from phase.origins import measured

from companion.phase.rates import MeasuredRates, PhaseRate
from companion.phase.settings import acceptance_prior, parse_settings
from companion.planning import CostModel
from companion.protocols import RequestView, Sampling
from companion.resampling import Interval
from companion.scheduling.hook_settings import configured_hook
from companion.scheduling.phase_hook import Serving

HERE = Serving("tiny-qwen3", "dspark")
RATES = MeasuredRates(measured(), PhaseRate(Interval(0.05, 0.04, 0.06)), PhaseRate(Interval(0.98, 0.97, 0.99)))
ON = "[speculation]\nenabled = true\nbaseline_proposal_len = 3\nmin_proposal_len = 0\nvocab_size = 1024\n"


def hook(text, serving=HERE):
    return configured_hook(parse_settings(text), deterministic=True, serving=serving)


def view(phase, sampling=None):
    return RequestView(0, 10, phase, 100, None, sampling or Sampling(1.0))


def test_off_unless_the_file_says_so():
    assert hook("") is None
    assert hook("[speculation]\nenabled = false") is None


def test_without_rates_it_never_raises_and_with_them_it_does():
    plain, calibrated = hook(ON), hook(ON + acceptance_prior(RATES))
    views = [view("think"), view("output")]
    assert plain.draft_depths(views) == [3, 3]
    think, output = calibrated.draft_depths(views)
    assert think == 0
    assert output == 7
    assert plain.vocab_size == 1024
    assert plain.costs == CostModel()


@pytest.mark.parametrize(
    ("serving", "named"), [(Serving("Qwen/Qwen3-4B", "dspark"), "target"), (Serving("tiny-qwen3", "dflash"), "drafter")]
)
def test_rates_of_other_models_are_refused(serving, named):
    with pytest.raises(ValueError, match=f"measured with {named}"):
        hook(ON + acceptance_prior(RATES), serving)


def test_rates_of_another_depth_or_sampling_are_refused():
    with pytest.raises(ValueError, match="measured with depth 7 and are asked for with 5"):
        hook(f"{ON}max_proposal_len = 5\n{acceptance_prior(RATES)}")
    with pytest.raises(ValueError, match="measured with sampling"):
        hook(ON + acceptance_prior(RATES)).draft_depths([view("think", Sampling(0.0))])
