"""Headlines of findings: what is wrong, in a few words of the field."""

from __future__ import annotations

from typing import Final

HEADLINES: Final = {
    "re-read": "Much was read more than once",
    "storage": "Reading waits for storage",
    "decompression": "Decompression is slow",
    "metadata": "Opening files is slow",
    "start-up": "New workers are slow to start",
    "contention": "Threads wait for a free core",
    "interpreter lock": "Threads wait for the interpreter lock (GIL)",
    "blocked": "process() waits instead of computing",
    "compute": "One function dominates process()",
    "repeated work": "Loading is repeated from chunk to chunk",
    "interpretation": "Building arrays is slow",
    "checkpoint": "Checkpoints are slow",
    "chunk size": "Small chunks repeat fixed work",
    "scheduler": "Task scheduling is slow",
    "transfer": "Tasks wait for results from other workers",
    "merge": "Merging results is slow",
    "preprocessing": "Preprocessing delays the run",
    "tail": "Threads sit idle while the last chunks run",
    "client": "Workers sit idle while the client is busy",
    "memory": "Workers run out of memory",
    "time limit": "A time limit ends workers",
    "failures": "Failed attempts waste time",
    "missing data": "The result is incomplete",
    "serialization": "Serialization is slow",
    "compression": "Dask's compression is slow",
    "other tasks": "Other tasks occupy the workers",
    "slow worker": "Slow worker",
    "slow host": "Slow host",
    "slow endpoint": "Slow storage server",
    "slow file": "Slow file",
    "slow dataset": "Slow dataset",
    "slow chunk": "One chunk takes much longer than the others",
}
"""Headlines by cause."""


def headline_of(cause: str) -> str:
    """Headline of a cause; one without gets its own name."""
    return HEADLINES.get(cause) or f"{cause[:1].upper()}{cause[1:]}"
