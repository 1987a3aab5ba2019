"""Watching a cluster: the client's half, and the plugins on scheduler and workers."""
