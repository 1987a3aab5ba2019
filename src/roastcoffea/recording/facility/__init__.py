"""Monitoring of a cluster on its scheduler: live page, Prometheus metrics, run records."""
