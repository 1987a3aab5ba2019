"""Measuring without a change to the analysis."""
