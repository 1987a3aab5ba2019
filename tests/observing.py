"""Observations that are written down by hand: one run of four threads for ten seconds, and changes to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from roastcoffea.studies.compare.observations import Branch, Observation

TIME = {
    "compute": 10.0,
    "decompress": 4.0,
    "interpret": 2.0,
    "read": 8.0,
    "blocked": 1.0,
    "open": 5.0,
    "merge": 0.5,
    "failed": 0.5,
    "idle: tail": 1.0,
    "idle: client": 8.0,
    "residual": 0.0,
}
CLIENT_OF = {"before": 5.0, "between": 1.0, "after": 2.0}


def branch(size: int, read: float, decompress: float, interpret: float) -> Branch:
    return Branch(size, {"read": read, "decompress": decompress, "interpret": interpret})


BRANCHES = {"pt": branch(600, 5.0, 3.0, 1.0), "eta": branch(400, 3.0, 1.0, 1.0)}


def observation(
    *, events: int = 1000, chunks: int = 10, payload: int = 1000, threads: float = 4.0, **changes: Any
) -> Observation:
    """Return the run above, with some fields changed; its wall time is what its thread time makes it."""
    time = changes.pop("time", TIME)
    wall = sum(time.values()) / threads or 1.0
    metrics = {
        "total_events": float(events),
        "num_chunks": float(chunks),
        "elapsed_time_seconds": wall,
        "total_cores": threads,
        "event_rate_elapsed_khz": events / 1e3 / wall,
    }
    fields: dict[str, Any] = {
        "id": "0123abcd",
        "name": "by hand",
        "facts": {},
        "metrics": metrics | changes.pop("metrics", {}),
        "missing": {},
        "time": time,
        "time_absent": None,
        "client_of": CLIENT_OF,
        "bytes": {"payload": payload, "re-read": 0},
        "branches": BRANCHES,
        "hosts": {},
        "chunk_seconds": np.full(chunks, 1.0),
        "chunk_cpu_seconds": np.full(chunks, 0.5),
        "incomplete": (),
    }
    return Observation(**fields | changes)


def with_metric(name: str, *values: float) -> list[Observation]:
    """Repeats of the run above with these values of a metric."""
    return [replace(observation(metrics={name: value}), name=f"run {number}") for number, value in enumerate(values)]
