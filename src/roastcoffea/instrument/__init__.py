"""Chunk instrumentation and its setup on the client."""
