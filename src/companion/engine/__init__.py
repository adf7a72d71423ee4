"""The engine: target, cache, sampling, verification and the decode loop."""
