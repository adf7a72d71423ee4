"""Many requests at once in the simulator: curves, demands, bounds, and the open questions."""
