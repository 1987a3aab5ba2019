"""Measurements in the formats of other programs."""
