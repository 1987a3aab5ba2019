"""Recorded chunks on simulated workers."""
