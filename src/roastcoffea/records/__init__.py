"""Plain, immutable records of a run, in seconds and bytes."""
