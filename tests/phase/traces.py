"""Hand-made traces: one word a step, one letter a committed token (t: inside the span, o: outside)."""

from phase.origins import FIXTURE

from companion.phase.ledger import Ledger, Step
from companion.phase.report import Report

PHASES = {"t": "think", "o": "output"}


def steps(text, proposed=7, cluster="a", domain=None, start=10):
    """Each step ran to its end: one committed token more than accepted drafts."""
    made, position = [], start
    for word in text.split():
        phases = tuple(PHASES[letter] for letter in word)
        made.append(Step(cluster, phases, proposed, len(word) - 1, position, domain))
        position += len(word)
    return made


def report(text, policy="exclude", origin=FIXTURE, **options):
    return Report(Ledger(origin, steps(text, **options), policy))


def two_phase_steps(rng, *, responses, inside, outside, per_phase=20, proposed=7, domain=None, spread=0.0, name="r"):
    """Random responses: in each, every draft is accepted with one chance inside the span and another outside.

    ``spread`` shifts both chances from response to response, which makes steps of one response alike.
    """
    made = []
    for index in range(responses):
        shift = spread * rng.standard_normal()
        for phase, rate in (("think", inside), ("output", outside)):
            chance = min(0.98, max(0.02, rate + shift))
            for _ in range(per_phase):
                kept = int(min(proposed, rng.geometric(1 - chance) - 1))
                made.append(Step(f"{name}{index}", (phase,) * (kept + 1), proposed, kept, domain=domain))
    return made
