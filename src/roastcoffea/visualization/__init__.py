"""Plots of a run. Nothing is measured or stored in this package."""
