"""Replaying recorded chunks on simulated workers."""
