"""Replays of recorded chunks on simulated workers."""
