"""DSpark and DFlash: a parallel draft block over injected target features, corrected left to right by a small head."""
