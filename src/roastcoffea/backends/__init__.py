"""How a cluster is seen: the client's half, and the plugins on scheduler and workers."""
