"""An executable companion to Phase-Conditioned Speculative Decoding and DSpark."""

from companion.drafters.load import load_drafter
from companion.engine.generate import GenerationResult, StreamEvent, generate, stream
from companion.engine.load import load_target
from companion.scheduling.fixed import FixedDepth

__all__ = ["FixedDepth", "GenerationResult", "StreamEvent", "generate", "load_drafter", "load_target", "stream"]
