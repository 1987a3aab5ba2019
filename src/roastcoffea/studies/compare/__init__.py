"""Runs side by side: what changed, and why."""

from roastcoffea.studies.compare.comparison import Comparison

__all__ = ["Comparison"]
