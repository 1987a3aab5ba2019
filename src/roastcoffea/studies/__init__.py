"""Studies over several runs: compare, scenarios, branches."""
