"""Comparisons of several runs, and predictions of a run under other conditions."""
