"""Many requests at once in the real engine: the design, the runs, and what they say of each policy."""
