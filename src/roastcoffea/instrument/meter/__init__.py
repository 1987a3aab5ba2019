"""Bytes and time of reading, by branch and basket."""
