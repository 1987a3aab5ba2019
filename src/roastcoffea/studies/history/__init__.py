"""Runs of an analysis over time: their rates and costs, and where these changed."""
