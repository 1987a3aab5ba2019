"""Measuring inside a chunk, and the client side that sets it up."""
