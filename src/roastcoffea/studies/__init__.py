"""Studies of several runs, and of a run under other conditions."""
