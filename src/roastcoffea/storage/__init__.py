"""A run on disk."""
