"""A cluster from its scheduler: a live page, Prometheus metrics, and records of every run."""
