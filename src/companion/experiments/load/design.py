"""The design of the measurement under load: what is served, to how many at once, under which policies."""

from __future__ import annotations

from pydantic import BaseModel

from companion.experiments.load.policies import DEPLOYED, LIMITED, PLAIN, POLICIES
from companion.experiments.load.serve import RunKey
from companion.training.corpus import DOMAINS, Mode, held_out_samples

CALIBRATED_ON = 0, 60  # seed and number of the held-out prompts of each kind behind the stored blocks


class Setting(BaseModel, frozen=True):
    """What is served, and to how many at once under which policies."""

    name: str
    temperature: float
    thinking: bool
    threads: tuple[int, ...]
    concurrency: tuple[int, ...]
    policies: tuple[str, ...]
    repeats: int


FEW = (PLAIN, "fixed-1", "fixed-3", "fixed-5", "fixed-7", "prefix", DEPLOYED, LIMITED, "goodput")
MAIN = Setting(
    name="mixed",
    temperature=1.0,
    thinking=False,
    threads=(1,),
    concurrency=(1, 2, 4, 8, 16, 32),
    policies=tuple(p for p in POLICIES if p not in ("fixed-4", "fixed-6")),
    repeats=4,
)
TWO_CORES = MAIN.model_copy(update={"name": "two cores", "threads": (2,), "policies": FEW})
GREEDY = Setting(
    name="greedy", temperature=0.0, thinking=False, threads=(1,), concurrency=(1, 8, 32), policies=FEW, repeats=3
)
THINKING = GREEDY.model_copy(update={"name": "thinking", "temperature": 1.0, "thinking": True})


class Config(BaseModel):
    target: str = "tiny-qwen3"
    drafter: str = "dspark"
    device: str = "cpu"
    settings: tuple[Setting, ...] = (MAIN, TWO_CORES, GREEDY, THINKING)
    max_new_tokens: int = 400
    window: int = 2400  # committed tokens of a run's window, and
    window_each: int = 210  # as many more for each request served at once
    resamples: int = 2000
    seed: int = 0

    def quick(self) -> Config:
        """Few runs: enough to see that everything works, not to compare policies."""
        few = (PLAIN, "fixed-1", "fixed-7", DEPLOYED, LIMITED)
        cut = {"threads": (1,), "concurrency": (1, 4), "policies": few, "repeats": 2}
        return self.model_copy(
            update={
                "settings": tuple(s.model_copy(update=cut) for s in self.settings),
                "window": 60,
                "window_each": 10,
                "resamples": 200,
            }
        )


def check(config: Config) -> None:
    """ValueError for a design that measures nothing."""
    for s in config.settings:
        if not (s.threads and s.concurrency and s.policies) or min((*s.threads, *s.concurrency)) < 1:
            raise ValueError(f"setting {s.name} needs threads, concurrencies from 1 on, and policies")
        if s.repeats < 2:
            raise ValueError(f"repeats must be at least 2 for an interval, got {s.repeats} in setting {s.name}")
    if not config.settings or len({s.name for s in config.settings}) < len(config.settings):
        raise ValueError("give at least one setting, each with a name of its own")
    if config.window < 1 or config.window_each < 0:
        raise ValueError(f"a window needs at least one token, got {config.window} and {config.window_each}")


def design(config: Config) -> list[list[RunKey]]:
    """Groups of runs that take turns: one for each setting, thread count, repeat and concurrency."""
    return [
        [
            RunKey(setting=s.name, threads=threads, concurrency=concurrency, policy=policy, repeat=repeat)
            for policy in s.policies
        ]
        for s in config.settings
        for threads in s.threads
        for repeat in range(s.repeats)
        for concurrency in s.concurrency
    ]


def texts(s: Setting, repeat: int, seed: int) -> list[str]:
    """Prompts of a repeat, the domains in turns; none of those that the calibration was fitted on."""
    mode: Mode = "think" if s.thinking else "no_think"
    known_seed, known_count = CALIBRATED_ON
    columns = []
    for domain in DOMAINS:
        known = {p.prompt for p in held_out_samples(domain, mode, known_count, seed=known_seed)}
        fresh = held_out_samples(domain, mode, 48, seed=1000 + 100 * seed + repeat)
        columns.append([p.prompt for p in fresh if p.prompt not in known])
    return [text for row in zip(*columns, strict=False) for text in row]
