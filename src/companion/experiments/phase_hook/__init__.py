"""The phase hook against the clock: what it is worth inside the think span and outside, drafter by drafter."""
