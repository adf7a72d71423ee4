"""Origins that the tests of this folder share."""

from datetime import date

from companion.phase.origin import Measured, Synthetic
from companion.protocols import Sampling

FIXTURE = Synthetic("hand-made trace")


def measured(**changes):
    """A run of tiny-qwen3 as somebody might describe it; nothing here was measured, the tests only need the type."""
    fields = {
        "harness": "companion 0.1.0",
        "target": "tiny-qwen3",
        "target_revision": "t" * 40,
        "drafter": "dspark",
        "drafter_revision": "d" * 40,
        "thinking": True,
        "sampling": Sampling(1.0),
        "seeds": (0,),
        "prompt_set": "0" * 64,
        "hardware": "a test",
        "recorded_on": date(2026, 8, 7),
        "depth": 7,
        "untrimmed": True,
    }
    return Measured(**(fields | changes))
