"""Runs side by side: what changed, and why."""
