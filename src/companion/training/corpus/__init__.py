"""A seeded procedural corpus of three domains, each with and without a think span."""

from .chat import chat_prompts
from .mixture import OVERLAP, SHARES, held_out_samples, training_sample
from .sample import DOMAINS, KINDS, MODES, Domain, Kind, Mode, Sample, extract_final, is_held_out, is_right

__all__ = [
    "DOMAINS",
    "KINDS",
    "MODES",
    "OVERLAP",
    "SHARES",
    "Domain",
    "Kind",
    "Mode",
    "Sample",
    "chat_prompts",
    "extract_final",
    "held_out_samples",
    "is_held_out",
    "is_right",
    "training_sample",
]
