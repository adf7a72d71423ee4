"""The design: which drafters, which prompts rates are fitted on and judged on, and which ways of choosing a depth."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from companion.training.corpus import DOMAINS, Domain, Sample, held_out_samples

PLAIN, OFF = "plain", "off"  # no drafter; the drafter's full depth in every round
AGAIN = "off, again"  # the negative control: it differs from OFF in nothing
SHIPPED, SHRUNK = "uncalibrated, note's costs", "uncalibrated"
PLACEHOLDERS, NOTE, SOLVED, CURVE = "solved rate, note's costs", "note's rate", "solved rate", "position curve"
ORACLE = "oracle"
UNCALIBRATED = (SHIPPED, SHRUNK)  # of deterministic drafters alone: a sampled proposal is not bound
CALIBRATED = (PLACEHOLDERS, NOTE, SOLVED, CURVE, ORACLE)
JUDGED = (SOLVED, CURVE)  # named beforehand: costs of this machine, and rates that mean what a planner takes them for
AT_LEAST = 0.97  # of plain decoding's speed inside the span, and of the un-hooked speed outside it
UNDISTURBED = 0.9  # of the time with a core, at least: what was timed with less is not judged

ARGMAX = "-argmax"  # behind a drafter's name: its likeliest token, which makes a proposal deterministic


class Config(BaseModel):
    """``prompts`` and ``fitted`` are of each domain, thinking on. A drafter named NAME-argmax proposes its argmax."""

    target: str = "tiny-qwen3"
    drafters: tuple[str, ...] = (
        "lookup",
        "draft",
        "eagle3",
        "dflash-argmax",
        "dspark",
        "dspark-think-50",
    )
    temperatures: tuple[float, ...] = (0.0, 1.0)
    device: str = "cpu"
    threads: int = 1
    fitted: int = 16
    prompts: int = 5
    repeats: int = 1
    timed_rounds: int = 60  # of every depth, for the costs
    max_new_tokens: int = 400
    resamples: int = 2000
    seed: int = 0

    def quick(self) -> Config:
        """Two drafters and few prompts: enough to see that everything works."""
        few = {"drafters": ("dspark", "dflash-argmax"), "fitted": 6, "prompts": 2, "timed_rounds": 12}
        return self.model_copy(update={**few, "max_new_tokens": 200, "resamples": 200})


def check(config: Config) -> None:
    """ValueError for a design that measures nothing."""
    if not config.drafters or not config.temperatures:
        raise ValueError("name at least one drafter and one temperature")
    for name, values in (("drafters", config.drafters), ("temperatures", config.temperatures)):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} were given twice: {list(values)}")
    if "none" in config.drafters:
        raise ValueError("drafter 'none' is plain decoding, which every drafter is compared with already: leave it out")
    for name, least in (
        ("threads", 1),
        ("fitted", 2),
        ("prompts", 2),
        ("repeats", 1),
        ("timed_rounds", 3),
        ("max_new_tokens", 2),
    ):
        if getattr(config, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(config, name)}")


def fitting(config: Config) -> list[Sample]:
    """What rates and costs are measured on, the domains in turns."""
    return _in_turns({domain: held_out_samples(domain, "think", config.fitted, seed=config.seed) for domain in DOMAINS})


def judging(config: Config) -> list[Sample]:
    """What everything is judged on: none of the prompts of `fitting`."""
    known = {sample.prompt for sample in fitting(config)}
    found = {}
    for domain in DOMAINS:
        fresh = held_out_samples(domain, "think", config.prompts + config.fitted, seed=config.seed + 1000)
        found[domain] = [sample for sample in fresh if sample.prompt not in known][: config.prompts]
    return _in_turns(found)


def _in_turns(found: Mapping[Domain, list[Sample]]) -> list[Sample]:
    return [sample for row in zip(*found.values(), strict=True) for sample in row]


def arms(deterministic: bool, temperature: float) -> tuple[str, ...]:
    """Ways of choosing a depth, of which all answer the same prompts. Uncalibrated, a hook has a signal only where
    proposals are deterministic and the target is sampled; elsewhere it is the same as no hook."""
    return (PLAIN, OFF, AGAIN, *(UNCALIBRATED if deterministic and temperature > 0 else ()), *CALIBRATED)
