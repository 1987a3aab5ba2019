"""Studies over several runs, and over what a run would be elsewhere."""
