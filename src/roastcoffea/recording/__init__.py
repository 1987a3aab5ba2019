"""Measuring without changes to the analysis."""
